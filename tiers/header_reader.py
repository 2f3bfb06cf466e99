"""Slot headers in shared memory, the reader: any process that maps the region. Call-free, beside a running writer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.header_format import EXTENT_DTYPE, HEADER_DTYPE, PAGE_BYTES, HeaderLayout, tables
from hybridkv.tiers.shm import SharedRegion

Indices = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]

_HEADER_WORDS = HEADER_DTYPE.itemsize // 8
_EXTENT_WORDS = EXTENT_DTYPE.itemsize // 8
_READ_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """What a readable header said, all at one moment."""

    generation: int
    extent_epoch: int
    fingerprint: bytes
    key: bytes
    parent: bytes | None
    length: int
    checksum: int
    sealed_at: float


class HeaderReader:
    """Reads a header region through a read-only mapping, beside a writer in another process. Thread-safe.

    An answer holds for the moment of the load. Whoever copies a block asks `valid` again after the copy.
    """

    def __init__(self, region: SharedRegion) -> None:
        """Raises FailedPreconditionError when the region is not one we know (magic, version, sizes)."""
        self.layout = HeaderLayout.parse(region.array[:PAGE_BYTES].tobytes(), region.nbytes)
        self._extents, self._sessions, self._headers = tables(region.array, self.layout)
        self._generation: U64s = self._headers["generation"]
        self._epoch: U64s = self._extents["epoch"]
        words = region.array.data.cast("Q")  # an item of a "Q" view is one aligned 8-byte load
        self._generation_words = words[self.layout.headers_offset // 8 :: _HEADER_WORDS]
        self._epoch_words = words[self.layout.extents_offset // 8 : self.layout.sessions_offset // 8 : _EXTENT_WORDS]

    def generation(self, index: int) -> int:
        """The slot's generation now."""
        return self._generation_words[index]

    def extent_epoch(self, extent: int) -> int:
        """The extent's epoch now."""
        return self._epoch_words[extent]

    def valid(self, index: int, generation: int) -> bool:
        """Whether the slot is readable and still of this generation."""
        return generation % 2 == 0 and generation != 0 and self._generation_words[index] == generation

    def holds(self, index: int, generation: int, extent: int, extent_epoch: int) -> bool:
        """`valid_slots` for one translation that was handed out."""
        return (
            self._epoch_words[extent] == extent_epoch
            and self._generation_words[index] == generation
            and (generation | extent_epoch) & 1 == 0
            and generation != 0
        )

    def unchanged(self, index: int, generation: int, extent: int, extent_epoch: int) -> bool:
        """Whether slot and extent are as they were told, readable or not: a slot that its owner may write to has an odd
        generation, which stays while it is the owner's."""
        return self._generation_words[index] == generation and self._epoch_words[extent] == extent_epoch

    def unchanged_slots(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """`unchanged` for translations (SLOT_DTYPE); False for one that is all zero."""
        same = (self._epoch[slots["extent"]] == slots["extent_epoch"]) & (
            self._generation[slots["header"]] == slots["generation"]
        )
        return np.asarray(same & (slots["generation"] != 0))

    @property
    def counters(self) -> tuple[U64s, U64s]:
        """The generations of all slots by header, and the epochs of all extents, as they are when they are looked at."""
        return self._generation, self._epoch

    def many(self, indices: Indices) -> U64s:
        """The slots' generations, one load each."""
        return self._generation[indices]

    def valid_slots(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these translations (SLOT_DTYPE) hold now: same generation, same extent epoch, both even."""
        generation, epoch = slots["generation"], slots["extent_epoch"]
        even = ((generation | epoch) & np.uint64(1)) == 0
        same = (self._epoch[slots["extent"]] == epoch) & (self._generation[slots["header"]] == generation)
        return np.asarray(even & same & (generation != 0))

    def read(self, index: int) -> SlotHeader | None:
        """The whole header, or None when the slot is not readable, or changes too fast to be read."""
        for _ in range(_READ_ATTEMPTS):
            generation = self._generation_words[index]
            if generation % 2 or generation == 0:
                return None
            row = self._headers[index].copy()
            if self._generation_words[index] == generation:
                return _slot_header(row, generation)
        return None

    def describe(self) -> dict[str, Any]:
        """What the region says of itself, as JSON takes it."""
        return self.layout.describe()


def _slot_header(row: Any, generation: int) -> SlotHeader:
    parent_bytes = int(row["parent_bytes"])
    return SlotHeader(
        generation=generation,
        extent_epoch=int(row["extent_epoch"]),
        fingerprint=row["fingerprint"].tobytes(),
        key=row["key"].tobytes()[: int(row["key_bytes"])],
        parent=row["parent"].tobytes()[:parent_bytes] if parent_bytes else None,
        length=int(row["length"]),
        checksum=int(row["checksum"]),
        sealed_at=float(row["sealed_at"]),
    )
