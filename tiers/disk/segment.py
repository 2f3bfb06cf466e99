"""One segment: an LMDB environment with blocks of one size.

`apply` and `close` belong to the store's one writer; `lookup`, `pin` and `doom` may be called from any thread.

The map is opened without readahead (MADV_RANDOM). Only tree pages are read through it, single pages among payload;
the kernel's default of 128 KiB around each fault would read mostly payload nobody asked for. Payload is read with
`preadv` through a descriptor of its own, marked POSIX_FADV_RANDOM, so that a read asks the device for one block as a
whole instead of growing its window from the default's first steps.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from hybridkv.tiers.disk.codec import (
    HEADER_BYTES,
    PAGE_BYTES,
    MetaRecord,
    lmdb_key,
    pack_header,
    pack_meta,
    page_in_meta,
    unpack_header,
    unpack_meta,
)
from hybridkv.tiers.disk.faults import StorageFault, Trouble
from hybridkv.tiers.disk.folder import DATA_NAME, SegmentName, sync_directory
from hybridkv.tiers.disk.offsets import page_of
from hybridkv.tiers.disk.sizing import MAX_BATCH_BYTES, SEGMENT_OVERHEAD_BYTES, Sizes
from hybridkv.tiers.disk.types import DiskBlock
from hybridkv.tiers.points import point

MAX_READERS = 4  # lookups take turns; the rest is for the writer's own reads
LMDB_ENGINE = 0  # data format of LMDB 0.9, whose page layout `offsets` and `codec` know
_TICK = b"tick"
_METAS = 2
META_DB = b"meta"
DATA_DB = b"data"


@dataclass(frozen=True, slots=True)
class _Room:
    """Pages after the last commit. `ripe` runs of freed pages can be reused now, `green` ones by the next but one."""

    pages: int = 0  # of the file
    free_pages: int = 0
    ripe_blocks: int = 0
    green_blocks: int = 0


class Segment:
    """An open segment. Made by `Segment.open`."""

    def __init__(self, name: SegmentName, path: Path, sizes: Sizes, env: lmdb.Environment, fd: int) -> None:
        self.name = name
        self.path = path
        self.sizes = sizes
        self.fd = fd  # for preadv; valid while pinned
        self.inode = os.fstat(fd).st_ino
        self._env = env
        self._meta: lmdb._Database
        self._data: lmdb._Database
        self._scratch = bytearray(sizes.shape.value_bytes)
        self._scratch_view = memoryview(self._scratch)  # assigned to: a slice of the bytearray would be copied twice
        self._lookups = threading.Lock()
        self._state = threading.Condition()
        self._pins = 0
        self._closed = False
        self._doomed: set[bytes] = set()
        self._room = _Room()
        self.offsets_known = True  # else values are copied out of the map: slower, but on any platform
        self._offsets_tried = False
        self.entries = 0
        self.halved = False  # some block stands in one of the two databases only

    @classmethod
    def open(cls, name: SegmentName, path: Path, sizes: Sizes) -> "Segment":
        """Open or fill the directory `path`. Raises OSError and lmdb.Error as they come."""
        env = lmdb.open(
            str(path),
            map_size=max(sizes.map_bytes, 2 * _size_of(path / DATA_NAME) + MAX_BATCH_BYTES),
            max_dbs=2,
            max_readers=MAX_READERS,
            readahead=False,
            mode=0o600,
            lib_version=LMDB_ENGINE,
        )
        fd = -1
        try:
            fd = os.open(path / DATA_NAME, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            segment = cls(name, path, sizes, env, fd)
            segment._open_databases()
        except BaseException:
            env.close()
            if fd >= 0:
                os.close(fd)
            raise
        return segment

    def _open_databases(self) -> None:
        with self._env.begin(write=True) as txn:
            self._meta = self._env.open_db(META_DB, txn=txn)
            self._data = self._env.open_db(DATA_DB, txn=txn)
        sync_directory(self.path)  # LMDB makes its file's content durable, not the name of the file
        self._refresh()
        self._room = _Room(self._room.pages, self._room.free_pages, self._room.free_pages // self.sizes.shape.pages)

    # -- figures ----------------------------------------------------------------------------------------------------

    @property
    def file_bytes(self) -> int:
        """What LMDB has handed out of its file, in bytes."""
        return self._room.pages * PAGE_BYTES

    @property
    def physical_bytes(self) -> int:
        """What the file system holds for this segment, at least `file_bytes`."""
        try:
            found = os.fstat(self.fd)
        except OSError:  # its device is gone; whoever reads or writes next finds out
            return self.file_bytes + SEGMENT_OVERHEAD_BYTES
        return max(self.file_bytes, found.st_size, found.st_blocks * 512) + SEGMENT_OVERHEAD_BYTES

    @property
    def live_blocks(self) -> int:
        return max(0, self.entries - len(self._doomed))

    @property
    def doomed_blocks(self) -> int:
        return len(self._doomed)

    def doomed(self) -> list[bytes]:
        """LMDB keys of the blocks to be deleted."""
        with self._state:
            return sorted(self._doomed)

    @property
    def reusable_blocks(self) -> int:
        """Blocks that fit into pages the next transaction may reuse, as far as we know: they may be scattered."""
        spare = self._room.free_pages - self._room.green_blocks * self.sizes.shape.pages
        return max(0, min(self._room.ripe_blocks, spare // self.sizes.shape.pages))

    @property
    def unripe_blocks(self) -> int:
        """Blocks freed by the last transaction: usable after one more."""
        return self._room.green_blocks

    def is_empty(self) -> bool:
        """Whether every block is doomed. Exact, where `live_blocks` takes every doomed key for a present one."""
        if self.live_blocks:
            return False
        names = self.doomed()
        with self._lookups, self._env.begin(db=self._meta) as txn:
            return not self.halved and sum(txn.get(name) is not None for name in names) == self.entries

    def in_place(self) -> bool:
        """Whether the file that is open is still the one in the directory."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path / DATA_NAME))
        except FileNotFoundError:
            return False

    # -- readers ----------------------------------------------------------------------------------------------------

    def pin(self) -> bool:
        """Keep the segment open until `unpin`; False if it is closed."""
        with self._state:
            if self._closed:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        with self._state:
            self._pins -= 1
            if not self._pins:
                self._state.notify_all()

    def lookup(self, names: Sequence[bytes]) -> list[int | None]:
        """First page of each block with these LMDB keys; None for what is absent, doomed or not understood.

        The read transaction ends with the lookup, before any payload is read, so that no reader keeps freed pages
        from being reused. A block deleted in between fails its verification: look it up again.
        """
        with self._lookups, self._env.begin(db=self._meta) as txn:
            found = [txn.get(name) for name in names]
        doomed = self._doomed
        return [
            None if raw is None or name in doomed else page_in_meta(raw) for name, raw in zip(names, found, strict=True)
        ]

    def copy_value(self, name: bytes) -> bytes | None:
        """The whole value of a block, through the map: for platforms where `page_of` does not hold."""
        with self._lookups, self._env.begin(db=self._data) as txn:
            return txn.get(name)

    def doom(self, names: Iterable[bytes]) -> None:
        """Delete these blocks with a later transaction; from now on they are not found."""
        with self._state:
            self._doomed.update(names)

    # -- the writer -------------------------------------------------------------------------------------------------

    def apply(self, blocks: Sequence[DiskBlock], stored_at: float, deletes: int | None = None) -> int:
        """One durable transaction: delete doomed blocks (at most `deletes`), store `blocks`. Returns deletions."""
        with self._state:
            doomed = sorted(self._doomed)[: self.sizes.delete_blocks if deletes is None else deletes]
        named = [(lmdb_key(block.fingerprint, block.key), block) for block in blocks]
        puts = sorted(named, key=lambda pair: pair[0])
        with self._env.begin(write=True, buffers=True) as txn:
            freed = sum(self._delete(txn, name) for name in doomed)
            for name, block in puts:
                self._store(txn, name, block, stored_at)
            if not freed and not puts:
                self._touch(txn)
            point("disk.put.before_commit" if puts else "disk.delete.before_commit")
        point("disk.put.committed" if puts else "disk.delete.committed")
        with self._state:
            self._doomed.difference_update(doomed)
            self._doomed.difference_update(name for name, _ in puts)
        with self._lookups:
            pass  # lookups that began before this commit are over: their snapshot keeps no page from being reused
        self._account(freed, len(puts))
        if puts and not self._offsets_tried:
            self.offsets_known, self._offsets_tried = self._offsets_hold(), True
        return freed

    def _delete(self, txn: "lmdb.Transaction[memoryview]", name: bytes) -> bool:
        in_meta = txn.delete(name, db=self._meta)
        in_data = txn.delete(name, db=self._data)
        return in_meta or in_data

    def _store(self, txn: "lmdb.Transaction[memoryview]", name: bytes, block: DiskBlock, stored_at: float) -> None:
        shape = self.sizes.shape
        header = pack_header(block.fingerprint, block.key, block.parent, block.checksum, shape.block_bytes)
        self._scratch_view[shape.lead_bytes : shape.payload_offset] = header
        self._scratch_view[shape.payload_offset :] = block.payload.cast("B")
        txn.put(name, self._scratch, db=self._data)
        value = txn.get(name, db=self._data)
        if value is None or len(value) != shape.value_bytes:
            raise StorageFault(Trouble.DAMAGED, f"{self.name}: a value just put is not there")
        record = MetaRecord(page_of(value), block.checksum, shape.block_bytes, stored_at, block.parent)
        txn.put(name, pack_meta(name, record), db=self._meta)

    def _touch(self, txn: "lmdb.Transaction[memoryview]") -> None:
        """Change something, so that the transaction counts."""
        txn.put(_TICK, txn.id().to_bytes(8, "little"))

    def _account(self, freed: int, put: int) -> None:
        before = self._room
        self._refresh()
        grown = max(0, self._room.pages - before.pages) // self.sizes.shape.pages
        ripe = before.ripe_blocks - max(0, put - grown) + before.green_blocks
        if put and before.ripe_blocks and grown:
            ripe -= grown  # pages thought reusable were not: scattered
        self._room = _Room(self._room.pages, self._room.free_pages, max(0, ripe), freed)

    def _refresh(self) -> None:
        """Read the figures of the last commit."""
        with self._lookups, self._env.begin() as txn:
            meta, data = txn.stat(self._meta), txn.stat(self._data)
            main = self._env.stat()
        used = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in (meta, data, main))
        pages = self._env.info()["last_pgno"] + 1
        free = max(0, pages - used - _METAS)
        listed = free * 8 // PAGE_BYTES + 2  # the free list itself lies in pages
        self._room = _Room(pages, max(0, free - listed), self._room.ripe_blocks, self._room.green_blocks)
        self.halved = meta["entries"] != data["entries"]
        self.entries = max(meta["entries"], data["entries"])

    def _offsets_hold(self) -> bool:
        """Whether the page noted for some block is where its header lies."""
        records = self.scan(limit=1)
        if not records:
            return True
        name, raw = records[0]
        record = unpack_meta(name, raw)
        if record is None:
            return True
        header = os.pread(self.fd, HEADER_BYTES, self.sizes.shape.header_offset(record.page))
        found = unpack_header(header) if len(header) == HEADER_BYTES else None
        return found is not None and found.fingerprint + found.key == name

    # -- whole-segment reads, by the writer -------------------------------------------------------------------------

    def scan(self, limit: int | None = None, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """(LMDB key, `meta` value) of all blocks whose key starts with `prefix`, in key order."""
        with self._lookups, self._env.begin(db=self._meta) as txn, txn.cursor() as cursor:
            if not (cursor.set_range(prefix) if prefix else cursor.first()):
                return []
            if not prefix and limit is None:
                return list(cursor.iternext())
            found: list[tuple[bytes, bytes]] = []
            for item in cursor.iternext():
                if len(found) == limit or not item[0].startswith(prefix):
                    break
                found.append(item)
            return found

    def half_present(self) -> list[bytes]:
        """LMDB keys that stand in one of the two databases only. Touches a page per block: for suspicion only."""
        with self._lookups, self._env.begin() as txn:
            with txn.cursor(self._meta) as meta, txn.cursor(self._data) as data:
                return sorted(set(meta.iternext(values=False)) ^ set(data.iternext(values=False)))

    def close(self) -> None:
        """Close once the last reader is done; may be called twice."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.wait_for(lambda: not self._pins)
        self._env.close()
        os.close(self.fd)


def _size_of(path: Path) -> int:
    """Size of a file of a store whose capacity may have been another; 0 if there is none yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
