"""The bytes of a header region: what lies where, little-endian, and how the file describes itself.

    [file header 4,096 B][extent table][session table][slot headers]

Slot headers lie at fixed addresses: each extent has as many as it would hold slots of the smallest block size, used or
not; the file is sparse, so those unused cost nothing. A reader needs nothing but the file: its first page names every
offset and size, so that a worker, a checker or a daemon that takes the region over finds its way.

Every counter that is read without a lock is one aligned 8-byte word, at offset 0 of its entry. Odd means "not to be
read" (free, reserved, being changed), even means readable; it only ever grows. Zero is never valid: it is what a
header looks like that nobody has written.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.pools import MIN_BLOCK_BYTES, PoolId
from hybridkv.tiers.states import Tier

MAGIC = b"HKVHEADS"
FORMAT_VERSION = 2
PAGE_BYTES = 4096
SESSION_COUNT = 1024
MAX_EXTENTS = 1 << 16  # a translation holds the extent in 16 bits
MAX_KEY_BYTES = 64
FINGERPRINT_BYTES = 32


class PaddedKeys(NamedTuple):
    """Keys as headers have them: zeros up to MAX_KEY_BYTES (V64[n]), and their lengths (uint16[n]); 0: none."""

    values: npt.NDArray[np.void]
    lengths: npt.NDArray[np.uint16]


HEADER_DTYPE = np.dtype(
    {
        "names": [
            *("generation", "extent_epoch", "state", "key_bytes", "parent_bytes", "fingerprint", "key", "parent"),
            *("length", "checksum", "holders", "access_count", "sealed_at", "last_access_at"),
            *("checked", "private", "owner", "haunts"),
        ],
        "formats": [
            *("<u8", "<u8", "<u4", "<u2", "<u2", f"V{FINGERPRINT_BYTES}", f"V{MAX_KEY_BYTES}", f"V{MAX_KEY_BYTES}"),
            *("<u8", "<u8", "<u4", "<f4", "<f8", "<f8"),
            *("u1", "u1", "<u2", "<u4"),
        ],
        "offsets": [0, 8, 16, 20, 22, 24, 56, 120, 184, 192, 200, 204, 208, 216, 224, 225, 226, 228],
        "itemsize": 256,
    }
)
"""A slot. `state` is a BlockState, `length` in bytes, `checksum` xxh3_64 of the block, times in seconds since 1970.

For the daemon that takes the region over: `checked` says whether the checksum is known (a `Checksum` of
`directory/blocks.py`; 0: it is not), `private` is 1 for a block whose key only a sequence knew. Who may still touch the slot:
`holders` counts leases, `haunts` lapsed holders of any kind, `owner` is one more than the entry in the session table of the
worker that was told the slot to write it, 0 for none.
"""

EXTENT_DTYPE = np.dtype(
    {
        "names": ["epoch", "slot_bytes", "slot_count", "state"],
        "formats": ["<u8", "<u8", "<u8", "<u4"],
        "offsets": [0, 8, 16, 24],
        "itemsize": 64,
    }
)
"""An extent. `state` is 1 while carved, else 0."""

SESSION_DTYPE = np.dtype(
    {
        "names": ["session", "start_time", "pid", "state", "boot_id", "epoch"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "V16", "<u8"],
        "offsets": [0, 8, 16, 20, 24, 40],
        "itemsize": 64,
    }
)
"""A process that maps the regions (see `tiers/process.py`), and for which session of which daemon's epoch. `state` is 1 while
the entry is in use, else 0."""

_FILE_DTYPE = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("tier", "<u4"),
        ("device", "<u4"),
        ("header_bytes", "<u4"),
        ("extent_entry_bytes", "<u4"),
        ("session_entry_bytes", "<u4"),
        ("capacity_bytes", "<u8"),
        ("extent_bytes", "<u8"),
        ("extent_count", "<u8"),
        ("slots_per_extent", "<u8"),
        ("session_count", "<u8"),
        ("extents_offset", "<u8"),
        ("sessions_offset", "<u8"),
        ("headers_offset", "<u8"),
        ("total_bytes", "<u8"),
        ("daemon_epoch", "<u8"),
        ("created_at", "<f8"),
        ("boot_id", "V16"),
        ("pid_namespace", "<u8"),
        ("never_mapped", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class HeaderLayout:
    """Where everything lies in a header region, and whose it is. Sizes and offsets in bytes."""

    pool: PoolId
    capacity_bytes: int
    extent_bytes: int
    extent_count: int
    slots_per_extent: int
    extents_offset: int
    sessions_offset: int
    headers_offset: int
    total_bytes: int
    daemon_epoch: int
    created_at: float
    boot_id: bytes
    pid_namespace: int
    never_mapped: bool

    @classmethod
    def of(
        cls,
        pool: PoolId,
        capacity_bytes: int,
        extent_bytes: int,
        daemon_epoch: int,
        created_at: float,
        boot_id: bytes,
        pid_namespace: int,
        never_mapped: bool = False,
    ) -> Self:
        """The layout for a new region; `pid_namespace`: that in which the session table's pids mean something;
        `never_mapped`: no process but daemons has the pool's memory. Raises InvalidArgumentError."""
        if extent_bytes < MIN_BLOCK_BYTES or extent_bytes % PAGE_BYTES:
            raise InvalidArgumentError("extent_bytes", f"{extent_bytes} is no positive multiple of {PAGE_BYTES}")
        extent_count = capacity_bytes // extent_bytes
        if not 1 <= extent_count <= MAX_EXTENTS:
            raise InvalidArgumentError("capacity_bytes", f"{extent_count} extents; the limits are 1 and {MAX_EXTENTS}")
        slots_per_extent = extent_bytes // MIN_BLOCK_BYTES
        sessions_offset = _page_up(PAGE_BYTES + extent_count * EXTENT_DTYPE.itemsize)
        headers_offset = _page_up(sessions_offset + SESSION_COUNT * SESSION_DTYPE.itemsize)
        return cls(
            pool=pool,
            capacity_bytes=capacity_bytes,
            extent_bytes=extent_bytes,
            extent_count=extent_count,
            slots_per_extent=slots_per_extent,
            extents_offset=PAGE_BYTES,
            sessions_offset=sessions_offset,
            headers_offset=headers_offset,
            total_bytes=_page_up(headers_offset + extent_count * slots_per_extent * HEADER_DTYPE.itemsize),
            daemon_epoch=daemon_epoch,
            created_at=created_at,
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            never_mapped=never_mapped,
        )

    @property
    def header_count(self) -> int:
        return self.extent_count * self.slots_per_extent

    def packed(self) -> bytes:
        """The file header."""
        record = np.zeros(1, _FILE_DTYPE)
        for name in _FILE_DTYPE.names or ():
            if hasattr(self, name):
                record[name] = _void(getattr(self, name))
        record["magic"] = np.void(MAGIC)
        record["version"] = FORMAT_VERSION
        record["tier"], record["device"] = self.pool.tier, self.pool.device
        record["header_bytes"] = HEADER_DTYPE.itemsize
        record["extent_entry_bytes"] = EXTENT_DTYPE.itemsize
        record["session_entry_bytes"] = SESSION_DTYPE.itemsize
        record["session_count"] = SESSION_COUNT
        return record.tobytes()

    @classmethod
    def parse(cls, raw: bytes, nbytes: int) -> Self:
        """Read the file header of a region of `nbytes`. Raises FailedPreconditionError when it is not one we know."""
        if len(raw) < _FILE_DTYPE.itemsize:
            raise FailedPreconditionError(f"header region: {len(raw)} bytes, too short for a file header")
        record = np.frombuffer(raw, _FILE_DTYPE, 1)[0]
        if record["magic"].tobytes() != MAGIC:
            raise FailedPreconditionError("header region: wrong magic")
        if record["version"] != FORMAT_VERSION:
            raise FailedPreconditionError(f"header region: version {record['version']}, known is {FORMAT_VERSION}")
        try:
            found = cls.of(
                PoolId(Tier(int(record["tier"])), int(record["device"])),
                int(record["capacity_bytes"]),
                int(record["extent_bytes"]),
                int(record["daemon_epoch"]),
                float(record["created_at"]),
                record["boot_id"].tobytes(),
                int(record["pid_namespace"]),
                bool(record["never_mapped"]),
            )
        except (InvalidArgumentError, ValueError) as error:
            raise FailedPreconditionError(f"header region: {error}") from error
        if found.packed() != record.tobytes() or found.total_bytes > nbytes:
            raise FailedPreconditionError(
                f"header region: the layout it describes is not ours, or exceeds {nbytes} bytes"
            )
        return found

    def describe(self) -> dict[str, Any]:
        """All figures by name, as JSON takes them."""
        return asdict(self) | {"pool": str(self.pool), "boot_id": self.boot_id.hex(), "version": FORMAT_VERSION}


def tables(raw: npt.NDArray[np.uint8], layout: HeaderLayout) -> tuple[Any, Any, Any]:
    """Views of the extent table, the session table and the slot headers of the region whose bytes are `raw`."""

    def view(offset: int, count: int, dtype: np.dtype[Any]) -> Any:
        return raw[offset : offset + count * dtype.itemsize].view(dtype)

    return (
        view(layout.extents_offset, layout.extent_count, EXTENT_DTYPE),
        view(layout.sessions_offset, SESSION_COUNT, SESSION_DTYPE),
        view(layout.headers_offset, layout.header_count, HEADER_DTYPE),
    )


def _void(value: object) -> Any:
    return np.void(value) if isinstance(value, bytes) else value


def _page_up(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
