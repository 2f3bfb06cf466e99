"""The open segments of a store, and the bytes they hold. Changed by the store's one writer; read by any thread."""

import shutil
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import lmdb

from hybridkv.tiers.disk.folder import (
    ASIDE_NAME,
    SegmentName,
    bytes_on_disk,
    make_segment_directory,
    move_aside,
    parse_name,
    remove_segment_directory,
    sync_directory,
)
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.sizing import STORE_OVERHEAD_BYTES, Sizes, sizes_for
from hybridkv.tiers.points import point


class Shelf:
    """Segments by number. Numbers are never reused within a directory's segments and those set aside."""

    def __init__(self, root: Path, capacity_bytes: int) -> None:
        self.root = root
        self.capacity_bytes = self._built_bytes = capacity_bytes
        self.segments: Mapping[int, Segment] = MappingProxyType({})  # replaced as a whole, never changed
        self.aside_bytes = 0
        self.lost: set[int] = set()  # segments that went aside or vanished, until the caller is told
        self._sizes: dict[int, Sizes] = {}
        self._next_number = 1

    def sizes(self, block_bytes: int) -> Sizes:
        """Limits for blocks of this size."""
        if block_bytes not in self._sizes:
            built = sizes_for(self._built_bytes, block_bytes)
            self._sizes[block_bytes] = replace(built, capacity_bytes=self.capacity_bytes)
        return self._sizes[block_bytes]

    def resize(self, capacity_bytes: int) -> None:
        """Another cap from now on, at most the first one. Segments and batches stay as large as they are."""
        self.capacity_bytes = capacity_bytes
        self._sizes = {}

    def of_size(self, block_bytes: int) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.name.block_bytes == block_bytes]

    def used_bytes(self) -> int:
        """What the file system holds for the store, segments set aside included."""
        return STORE_OVERHEAD_BYTES + self.aside_bytes + sum(seg.physical_bytes for seg in self.segments.values())

    def open_all(self, names: Iterable[SegmentName]) -> list[tuple[SegmentName, str]]:
        """Open segments that are there; returns those LMDB refuses, moved aside, with its reason."""
        opened: dict[int, Segment] = {}
        refused: list[tuple[SegmentName, str]] = []
        for name in names:
            path = self.root / str(name)
            try:
                opened[name.number] = Segment.open(name, path, self.sizes(name.block_bytes))
            except lmdb.Error as error:
                move_aside(self.root, path, str(error))
                refused.append((name, str(error)))
                self.lost.add(name.number)
        self.segments = MappingProxyType(opened)
        self._count_aside()
        return refused

    def reopen(self) -> None:
        """Close and open every segment, after a failed write left LMDB's own state unknown. Doomed blocks stay so."""
        before = self.segments
        self.close()
        self.open_all([segment.name for segment in before.values()])
        self.carry_doomed(before)

    def carry_doomed(self, before: Mapping[int, Segment]) -> None:
        """Doom in the open segments what was doomed in earlier openings of them."""
        for number, segment in self.segments.items():
            if number in before:
                segment.doom(before[number].doomed())

    def in_place(self) -> bool:
        """Whether every open file is still the one in the directory."""
        return all(segment.in_place() for segment in self.segments.values())

    def create(self, block_bytes: int) -> Segment:
        """A new, empty segment."""
        name = SegmentName(self._next_number, block_bytes)
        self._next_number += 1
        path = make_segment_directory(self.root, name)
        segment = Segment.open(name, path, self.sizes(block_bytes))
        point("disk.segment.created")
        self.segments = MappingProxyType({**self.segments, name.number: segment})
        return segment

    def remove(self, number: int) -> None:
        """Close a segment and unlink it with all it holds. Waits for reads that are under way in it."""
        segment = self._take(number)
        segment.close()
        remove_segment_directory(segment.path)

    def set_aside(self, number: int, reason: str) -> None:
        """Close a segment that cannot be trusted any more and move it to `aside/`."""
        segment = self._take(number)
        segment.close()
        self.lost.add(number)
        move_aside(self.root, segment.path, reason)
        self._count_aside()

    def remove_oldest_aside(self) -> bool:
        """Remove the oldest of the segments set aside; False if there is none."""
        entries = sorted((self.root / ASIDE_NAME).glob("*"), key=lambda path: path.stat().st_mtime_ns)
        if not entries:
            return False
        shutil.rmtree(entries[0])
        sync_directory(self.root / ASIDE_NAME)
        self._count_aside()
        return True

    def cheapest_to_empty(self, needed_bytes: int, keep: Container[int]) -> int | None:
        """The segment whose loss costs least: fewest live bytes among those that make enough room. Never one of `keep`,
        or callers that retry would drop what they have just stored, for ever."""
        segments = [segment for number, segment in self.segments.items() if number not in keep]
        if not segments:
            return None
        enough = [segment for segment in segments if segment.physical_bytes >= needed_bytes]
        if enough:
            return min(enough, key=lambda seg: (live_bytes(seg), seg.name.number)).name.number
        return min(segments, key=lambda seg: (live_bytes(seg) / seg.physical_bytes, seg.name.number)).name.number

    def close(self) -> None:
        """Close all segments."""
        segments, self.segments = self.segments, MappingProxyType({})
        for segment in segments.values():
            segment.close()

    def _take(self, number: int) -> Segment:
        left = dict(self.segments)
        segment = left.pop(number)
        self.segments = MappingProxyType(left)
        return segment

    def _count_aside(self) -> None:
        aside = self.root / ASIDE_NAME
        self.aside_bytes = bytes_on_disk(aside)
        numbers = [self._next_number - 1, *self.segments]
        if aside.is_dir():
            names = (parse_name(entry.name.partition(".")[0]) for entry in aside.iterdir())
            numbers += [name.number for name in names if name]
        self._next_number = max(numbers) + 1


def live_bytes(segment: Segment) -> int:
    """Payload bytes of a segment's live blocks."""
    return segment.live_blocks * segment.name.block_bytes
