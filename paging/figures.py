"""What the sequences of a host come to, for stats: use of memory, faults, tables, and what was copied. Under the lock."""

from dataclasses import asdict
from typing import Any

from hybridkv.paging.resizing import split_pages, waste_blocks
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.sequences import Sequences
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.extents import SlotUse


def figures(paging: Sequences, directory: Directory) -> dict[str, Any]:
    """`docs/paging.md` says what each means. JSON-serialisable; linear in the sequences and their tables."""
    sequences = list(paging.mappings.sequences.values())
    return {
        "sequences": {
            "open": len(sequences),
            "suspended": sum(sequence.suspended for sequence in sequences),
        },
        "pools": {str(book.id): _pool(paging, book) for book in directory.books if isinstance(book, MappedBook)},
        "entries": sum(sequence.table.entry_count for sequence in sequences),
        "table_bytes": sum(sequence.table.nbytes + sequence.backing.nbytes for sequence in sequences),
        "resident_blocks": sum(sequence.table.mapped_count for sequence in sequences),
        "split_pages": sum(split_pages(sequence) for sequence in sequences),
        "waiting_faults": len(paging.faults),
        "evictions": paging.mappings.evictions,
        "losses": paging.mappings.losses,
        **asdict(paging.figures),
    }


def _pool(paging: Sequences, book: MappedBook) -> dict[str, int]:
    """Bytes. `waste_bytes`: of the slots that sequences write in, what lies beyond their ends."""
    here = [sequence for sequence in paging.mappings.sequences.values() if sequence.pool == book.index]
    written = sum(len(sequence.writable) * sequence.block_bytes for sequence in here)
    unused = sum(waste_blocks(sequence) * sequence.block_bytes + _unused_tail(sequence) for sequence in here)
    return {
        "total_bytes": book.capacity_bytes,
        "used_bytes": book.used_bytes,
        "reserved_bytes": book.table.bytes_by_use[SlotUse.RESERVED],
        "written_bytes": written,
        "waste_bytes": unused,
        "sticky_bytes": paging.stickiness.bytes_in(book.index),
        "sticky_limit_bytes": int(book.capacity_bytes * paging.rules.sticky_limit),
    }


def _unused_tail(sequence: Sequence) -> int:
    """Bytes of the last block, if it is written, that no token of the space uses."""
    spare = -sequence.tokens % sequence.block_tokens
    if not spare or (sequence.blocks - 1) not in sequence.writable:
        return 0
    return int(sequence.block_bytes * spare // sequence.block_tokens)
