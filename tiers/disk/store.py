"""The disk tier: a directory of LMDB segments under one physical cap.

Threads: `put`, `delete`, `drop_segment`, `clear`, `probe`, `open` and `close` take turns on one lock (they are meant for
one writer thread); `read` and `usage` may be called from any thread at any time and wait for no writer.
Not for use in a forked child.

Failures: no error of the file system or of LMDB leaves this class as such. A store that cannot write is READ_ONLY, one
whose device or directory is gone is OFF; `put` then raises ResourceExhaustedError (no space) or UnavailableError, `read`
answers FAILED when off, and `probe`, called from time to time, brings the store back when it can.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from hybridkv.tiers.clock import Clock, SystemClock
from hybridkv.tiers.disk import sizing
from hybridkv.tiers.disk.codec import FINGERPRINT_BYTES, MAX_KEY_BYTES, lmdb_key, shape_of
from hybridkv.tiers.disk.faults import StorageFault, Trouble, storage
from hybridkv.tiers.disk.folder import Stamp, write_marker
from hybridkv.tiers.disk.health import Health, try_write
from hybridkv.tiers.disk.reading import Reader
from hybridkv.tiers.disk.shelf import Shelf, live_bytes
from hybridkv.tiers.disk.tally import Tally
from hybridkv.tiers.disk.tenure import Tenure
from hybridkv.tiers.disk.types import (
    DiskBlock,
    DiskRef,
    DiskState,
    DiskUsage,
    Probe,
    ReadOutcome,
    Recovered,
)
from hybridkv.tiers.disk.writer import Writer
from hybridkv.tiers.errors import (
    DiskFullError,
    FailedPreconditionError,
    HybridKVError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)


class DiskStore:
    """Blocks on disk, by (fingerprint, key). `capacity_bytes` bounds what the directory holds on the file system."""

    def __init__(
        self, path: Path, capacity_bytes: int, *, verify_at_start: bool = True, clock: Clock | None = None
    ) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._shelf = Shelf(path, capacity_bytes)
        self._tenure = Tenure(path, self._shelf, verify=verify_at_start)
        self._tally = Tally()
        self._writer = Writer(self._shelf, self._tally)
        self._health = Health()
        self._reader = Reader(self._shelf, self._tally, self._health)
        self._turn = threading.RLock()
        self._opened = False

    def __repr__(self) -> str:
        return f"DiskStore({str(self.path)!r}, {self.state.value}, {len(self._shelf.segments)} segments)"

    # -- size -------------------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self._shelf.capacity_bytes

    def resize(self, capacity_bytes: int) -> None:
        """Another cap, at most the one the store was made with. What is on disk stays: `excess_bytes` says how much of it
        has to go, by whole segments (`drop_segment`)."""
        self._shelf.resize(capacity_bytes)

    @property
    def excess_bytes(self) -> int:
        """Bytes on disk beyond the cap: more than 0 only after the cap was lowered."""
        return max(0, self._shelf.used_bytes() - self.capacity_bytes) if self.state is DiskState.ON else 0

    # -- figures ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> DiskState:
        return self._health.state

    @property
    def reason(self) -> str:
        """Why the state is not ON; empty when it is."""
        return self._health.status[1]

    def pages_per_block(self, block_bytes: int) -> int:
        """Pages of 4 KiB that a block occupies in its segment's file, without its share of the trees."""
        return shape_of(block_bytes).pages

    def capacity_blocks(self, block_bytes: int, capacity_bytes: int | None = None) -> int:
        """Blocks of this size that fit when there are no others, reserves and trees taken off; under another cap, if one
        is given."""
        cap = self.capacity_bytes if capacity_bytes is None else capacity_bytes
        return sizing.capacity_blocks(cap, block_bytes, self._shelf.sizes(block_bytes))

    def usage(self) -> DiskUsage:
        """Room and counters, from what is open now."""
        state, reason = self._health.status
        segments = [seg for seg in self._shelf.segments.values() if seg.pin()]
        try:
            aside = self._shelf.aside_bytes
            physical = sizing.STORE_OVERHEAD_BYTES + aside + sum(seg.physical_bytes for seg in segments)
            return DiskUsage(
                physical_bytes=physical,
                capacity_bytes=self.capacity_bytes,
                live_bytes=sum(live_bytes(seg) for seg in segments),
                live_blocks=sum(seg.live_blocks for seg in segments),
                segments=len(segments),
                aside_bytes=aside,
                state=state,
                reason=reason,
                counters=self._tally.read(),
            )
        finally:
            for segment in segments:
                segment.unpin()

    # -- start and stop ---------------------------------------------------------------------------------------------

    def open(self) -> Recovered:
        """Take the directory and list what it holds. Raises UnavailableError when another process has it (its pid is
        named) or when it cannot be used; open() may then be called again."""
        with self._turn:
            if self._opened:
                raise FailedPreconditionError(f"{self.path} is open")
            try:
                with storage(f"open {self.path}"):
                    recovered = self._tenure.begin()
            except (StorageFault, HybridKVError) as error:
                self._tenure.end()
                self._health.become(DiskState.OFF, str(error))
                raise UnavailableError(str(error)) from error
            self._opened = True
            self._tally.add(segments_aside=len(recovered.aside))
            self._now_on()
            self._shelf.lost.clear()  # the list tells
            return recovered

    def _now_on(self) -> None:
        self._reader.reset()
        self._health.become(DiskState.ON, "")

    def close(self, clean: bool = True) -> None:
        """Stop. `clean` deletes what is doomed and writes the marker that spares the next start its verification;
        a store that could not write at the end leaves none. May be called twice; waits for reads under way."""
        with self._turn:
            if not self._opened:
                return
            stamps = self._finish_writes() if clean and self.state is DiskState.ON else None
            self._health.become(DiskState.OFF, "closed")
            self._shelf.close()
            try:
                if stamps is not None:
                    with storage("write the marker"):
                        write_marker(self.path, stamps)
            except StorageFault:
                self._tally.add(faults=1)  # without a marker the next start verifies
            finally:
                self._tenure.end()
                self._opened = False

    def _finish_writes(self) -> dict[str, Stamp] | None:
        """Delete what is doomed; how each segment's file looks then, None when something failed."""
        try:
            for segment in list(self._shelf.segments.values()):
                self._writer.flush(segment)
            with storage("look at the segments"):
                return {str(seg.name): Stamp.of(seg.path) for seg in self._shelf.segments.values()}
        except StorageFault:
            self._tally.add(faults=1)
            return None

    # -- reads ------------------------------------------------------------------------------------------------------

    def read(self, items: Sequence[DiskRef], into: Sequence[memoryview]) -> list[ReadOutcome]:
        """Read blocks into flat, writable buffers of their `block_bytes`. A buffer's content means nothing unless its
        outcome is OK; then it is exactly the block asked for."""
        return self._reader.read(items, into)

    # -- writes -----------------------------------------------------------------------------------------------------

    def put(self, blocks: Sequence[DiskBlock]) -> list[int]:
        """Store blocks durably; the segment of each. A key that is there already is replaced within a segment only:
        do not put a key that another segment holds.

        Raises DiskFullError (some blocks may be stored: `stored` says which), ResourceExhaustedError or
        UnavailableError; after the latter two nothing of this call is stored.
        """
        by_size: dict[int, list[int]] = {}
        for index, block in enumerate(blocks):
            by_size.setdefault(_checked_bytes(block), []).append(index)
        placed: list[int | None] = [None] * len(blocks)
        with self._turn:
            self._health.require_on()
            try:
                with self._writing():
                    self._condemn()
                    for block_bytes, indices in by_size.items():
                        self._put_size(block_bytes, blocks, indices, placed)
            except DiskFullError as full:
                full.stored = tuple(placed)
                raise
            except (ResourceExhaustedError, UnavailableError):
                self._forget(blocks, placed)
                raise
        return [number for number in placed if number is not None]

    def _put_size(
        self, block_bytes: int, blocks: Sequence[DiskBlock], indices: list[int], placed: list[int | None]
    ) -> None:
        done = 0
        for count, number in self._writer.put(block_bytes, [blocks[i] for i in indices], self._clock.now()):
            for index in indices[done : done + count]:
                placed[index] = number
            done += count

    def _forget(self, blocks: Sequence[DiskBlock], placed: list[int | None]) -> None:
        """Doom what a failed call had stored before it failed: the caller will not know of it."""
        for block, number in zip(blocks, placed, strict=True):
            segment = self._shelf.segments.get(number) if number is not None else None
            if segment:
                segment.doom([lmdb_key(block.fingerprint, block.key)])

    def delete(self, items: Sequence[tuple[bytes, bytes, int]], *, durable: bool = False) -> None:
        """Delete blocks given as (fingerprint, key, segment); unknown ones are ignored. They are gone for readers at
        once, and on disk with a later transaction of their segment, unless `durable` asks for it now.

        After a crash a block whose deletion was not durable may be listed again: it is as good as it was.
        """
        by_segment: dict[int, list[bytes]] = {}
        for fingerprint, key, number in items:
            by_segment.setdefault(number, []).append(lmdb_key(fingerprint, key))
        with self._turn:
            if durable:
                self._health.require_on()
            segments = [segment for number in by_segment if (segment := self._tenure.segment(number))]
            for segment in segments:
                segment.doom(by_segment[segment.name.number])
            if self.state is not DiskState.ON:
                return
            quiet = contextlib.nullcontext() if durable else contextlib.suppress(HybridKVError)
            with quiet, self._writing():
                for segment in segments:
                    (self._writer.flush if durable else self._writer.tidy)(segment)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Storage faults become the store's state and the caller's error."""
        try:
            yield
        except StorageFault as fault:
            self._note(fault)
            if self.state is DiskState.ON:
                raise UnavailableError(str(fault)) from fault
            self._health.refuse()

    def _note(self, fault: StorageFault) -> None:
        self._tally.add(faults=1)
        self._health.note(fault)

    def drop_segment(self, segment: int) -> None:
        """Close and unlink a segment with all it holds; unknown numbers are ignored. Waits for its reads to end."""
        with self._turn:
            self._health.require_on()
            if segment in self._shelf.segments:
                with self._writing():
                    self._writer.unlink(segment)

    def clear(self, fingerprint: bytes | None = None) -> int:
        """Delete all blocks of a namespace, or all there are, durably, in segments set aside as well; how many."""
        if fingerprint is not None and len(fingerprint) != FINGERPRINT_BYTES:
            raise InvalidArgumentError("fingerprint", f"{len(fingerprint)} bytes, must be {FINGERPRINT_BYTES}")
        with self._turn:
            self._health.require_on()
            with self._writing():
                self._condemn()
                cleared = sum(self._clear_segment(number, fingerprint) for number in list(self._shelf.segments))
                with storage("clear what was set aside"):
                    while self._shelf.remove_oldest_aside():
                        pass
            return cleared

    def _clear_segment(self, number: int, fingerprint: bytes | None) -> int:
        segment = self._shelf.segments[number]
        live = segment.live_blocks
        if fingerprint is None:
            self._writer.unlink(number)
            return live
        with storage(f"scan segment {number}"):
            names = [name for name, _ in segment.scan(prefix=fingerprint)]
        if not names:
            return 0
        segment.doom(names)
        left = segment.live_blocks
        self._writer.flush(segment)
        return live - left

    # -- coming back ------------------------------------------------------------------------------------------------

    def probe(self) -> Probe:
        """Look whether the store works, and bring it back if it can be. To be called from time to time, by the writer.

        Coming back from OFF verifies every segment, as a start after a crash does; reads answer FAILED meanwhile.
        """
        with self._turn:
            if not self._opened:
                return Probe(*self._health.status)
            try:
                with storage(f"probe {self.path}"):
                    self._look()
                if self.state is DiskState.ON:
                    self._condemn()
            except StorageFault as fault:
                self._note(fault)
            except UnavailableError as error:  # another process took the directory, or nothing can be verified
                self._health.become(DiskState.OFF, str(error))
            if self.state is DiskState.OFF:
                return Probe(*self._health.status)
            lost, self._shelf.lost = tuple(sorted(self._shelf.lost)), set()
            return Probe(*self._health.status, lost)

    def _look(self) -> None:
        """One look, by the state we are in; raises what stands in the way of ON."""
        if self.state is not DiskState.OFF:
            self._tenure.require_in_place()
        if self.state is DiskState.READ_ONLY:
            try_write(self.path, 2 * sizing.MAX_BATCH_BYTES if self._health.trouble is Trouble.FULL else 0)
            self._shelf.reopen()
            self._now_on()
        elif self.state is DiskState.OFF:
            self._tenure.resume()
            self._now_on()

    def _condemn(self) -> None:
        """Set segments aside in which readers met damage."""
        while self._reader.condemned:
            number = self._reader.condemned.pop()
            if number in self._shelf.segments:
                self._writer.condemn(number, "LMDB found it damaged while reading")


def _checked_bytes(block: DiskBlock) -> int:
    """The block's size, its fields checked."""
    lmdb_key(block.fingerprint, block.key)
    if len(block.parent) > MAX_KEY_BYTES:
        raise InvalidArgumentError("parent", f"{len(block.parent)} bytes, must be at most {MAX_KEY_BYTES}")
    return shape_of(block.payload.nbytes).block_bytes
