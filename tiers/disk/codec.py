"""Bytes of a stored block: the LMDB key, the `meta` record, and the value of `data` (lead, header, payload).

    value = [lead][header 256 B][payload block_bytes]

A value of LMDB's starts 16 bytes into its first page. Where it costs no further page, `lead` pads the value so that the
payload starts on a page of the file: reads into page-aligned memory may then bypass the page cache.
Everything is little-endian. Both records end in an xxh3_64 over what stands before it (the `meta` record's also over
its key), so that a flipped bit in a leaf page is found as well. An unknown version is a miss, never guessed at.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import xxhash

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.pools import BLOCK_ALIGN_BYTES, MIN_BLOCK_BYTES

PAGE_BYTES = 4096
PAGE_HEADER_BYTES = 16  # LMDB 0.9, 64 bit
FINGERPRINT_BYTES = 32
MIN_KEY_BYTES = 8
MAX_KEY_BYTES = 64
VERSION = 1

_MAGIC = b"HKVB"
_IDENTITY = struct.Struct("<4sHHQQ32s64s")
_HEADER = struct.Struct("<4sHHQQ32s64sH64s62x")  # identity, then parent
_PAGE = struct.Struct("<HHIQ")
_META = struct.Struct("<HHIQQQd64s")
_SUM = struct.Struct("<Q")
IDENTITY_BYTES = _IDENTITY.size
HEADER_BYTES = _HEADER.size + _SUM.size
META_BYTES = _META.size + _SUM.size
META_CHECKSUM_OFFSET = 16
META_STORED_AT_OFFSET = 32
META_PARENT_OFFSET = 40
META_SUM_OFFSET = _META.size


def lmdb_key(fingerprint: bytes, key: bytes) -> bytes:
    """The key of a block in both sub-databases: at most 96 bytes, well under LMDB's 511."""
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise InvalidArgumentError("fingerprint", f"{len(fingerprint)} bytes, must be {FINGERPRINT_BYTES}")
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise InvalidArgumentError("key", f"{len(key)} bytes, must be {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return fingerprint + key


@dataclass(frozen=True, slots=True)
class ValueShape:
    """Where header and payload lie in the value of a block of one size. Bytes; `pages` of the file per value."""

    block_bytes: int
    lead_bytes: int
    pages: int

    @property
    def value_bytes(self) -> int:
        return self.lead_bytes + HEADER_BYTES + self.block_bytes

    @property
    def payload_offset(self) -> int:
        """From the start of the value."""
        return self.lead_bytes + HEADER_BYTES

    @property
    def run_bytes(self) -> int:
        """Bytes of the file that one value occupies."""
        return self.pages * PAGE_BYTES

    def header_offset(self, page: int) -> int:
        """File offset of the header of the value whose first page is `page`; the payload follows it."""
        return page * PAGE_BYTES + PAGE_HEADER_BYTES + self.lead_bytes


@lru_cache(maxsize=1024)
def shape_of(block_bytes: int) -> ValueShape:
    """The shape of values of `block_bytes`."""
    if block_bytes < MIN_BLOCK_BYTES or block_bytes % BLOCK_ALIGN_BYTES:
        raise InvalidArgumentError(
            "block_bytes", f"{block_bytes}, must be a multiple of {BLOCK_ALIGN_BYTES}, at least {MIN_BLOCK_BYTES}"
        )
    tight = -(-(PAGE_HEADER_BYTES + HEADER_BYTES + block_bytes) // PAGE_BYTES)
    aligned = 1 + -(-block_bytes // PAGE_BYTES)
    lead = PAGE_BYTES - PAGE_HEADER_BYTES - HEADER_BYTES if aligned == tight else 0
    return ValueShape(block_bytes, lead, tight)


def pack_header(fingerprint: bytes, key: bytes, parent: bytes, checksum: int, block_bytes: int) -> bytes:
    """The header that stands before a payload."""
    body = _HEADER.pack(_MAGIC, VERSION, len(key), block_bytes, checksum, fingerprint, key, len(parent), parent)
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))


def identity(fingerprint: bytes, key: bytes, checksum: int, block_bytes: int) -> bytes:
    """What the header of exactly this block begins with: reads compare these IDENTITY_BYTES and no more."""
    return _IDENTITY.pack(_MAGIC, VERSION, len(key), block_bytes, checksum, fingerprint, key)


class Header(NamedTuple):
    """A value's header whose own checksum was right."""

    fingerprint: bytes
    key: bytes
    parent: bytes
    checksum: int
    block_bytes: int


def unpack_header(raw: bytes | bytearray | memoryview) -> Header | None:
    """The header in `raw` (HEADER_BYTES long), or None if it is damaged, foreign or of another version."""
    magic, version, key_len, block_bytes, checksum, fingerprint, key, parent_len, parent = _HEADER.unpack_from(raw)
    if magic != _MAGIC or version != VERSION or key_len > MAX_KEY_BYTES or parent_len > MAX_KEY_BYTES:
        return None
    if xxhash.xxh3_64_intdigest(memoryview(raw)[: _HEADER.size]) != _SUM.unpack_from(raw, _HEADER.size)[0]:
        return None
    return Header(fingerprint, key[:key_len], parent[:parent_len], checksum, block_bytes)


class MetaRecord(NamedTuple):
    """What `meta` says of a block. `page` is the first page of its value in the file; `stored_at` is wall clock, s."""

    page: int
    checksum: int
    block_bytes: int
    stored_at: float
    parent: bytes


def pack_meta(name: bytes, record: MetaRecord) -> bytes:
    """The `meta` value of the block whose LMDB key is `name`."""
    page, checksum, block_bytes, stored_at, parent = record
    body = _META.pack(VERSION, len(parent), 0, page, checksum, block_bytes, stored_at, parent)
    return body + _SUM.pack(xxhash.xxh3_64_intdigest(name + body))


def meta_sum(name: bytes, raw: bytes) -> int:
    """The checksum that the record `raw` (META_BYTES long) must end in to belong to `name`."""
    return xxhash.xxh3_64_intdigest(name + raw[:META_SUM_OFFSET])


def unpack_meta(name: bytes, raw: bytes) -> MetaRecord | None:
    """The record in `raw`; None if it is damaged, not `name`'s, or of another version."""
    if len(raw) != META_BYTES:
        return None
    version, parent_len, _, page, checksum, block_bytes, stored_at, parent = _META.unpack_from(raw)
    if version != VERSION or parent_len > MAX_KEY_BYTES or meta_sum(name, raw) != _SUM.unpack_from(raw, _META.size)[0]:
        return None
    return MetaRecord(page, checksum, block_bytes, stored_at, parent[:parent_len])


def page_in_meta(raw: bytes) -> int | None:
    """First page of the value the record `raw` speaks of, unverified: whoever reads there compares the header."""
    if len(raw) != META_BYTES:
        return None
    version, _, _, page = _PAGE.unpack_from(raw)
    return int(page) if version == VERSION else None
