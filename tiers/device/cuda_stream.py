"""CUDA streams that never block their caller.

Two threads per stream: one issues work to CUDA in order, one waits for it in the same order and reports. The
interpreter lock is not held while waiting. The order of a CUDA stream covers the device's side only; where the CPU
takes part (staging), this file makes the order whole:

- the CPU reads host memory for a staged batch only after what the stream was told to wait for, and after this
  stream's own copies to the host, have happened;
- whoever follows a staged copy to the host (a batch of another kind, an event) waits for the CPU's part of it.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from hybridkv.tiers.device.base import Bytes, Direction, Event, Offsets, Stream
from hybridkv.tiers.device.batch import Batch, check_batch
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.cuda_host import Registrations
from hybridkv.tiers.device.cuda_parts import Part, plan
from hybridkv.tiers.device.cuda_runtime import CudaRuntime
from hybridkv.tiers.device.cuda_staging import StagingRing
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.device.worker import SerialWorker
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, UnavailableError

PARTS_IN_FLIGHT = 3  # times COPIES_PER_PART stays below the 1,024 launches a stream queues before a call blocks
_POLL_S = 0.0002


class CudaEvent(Event):
    """A CUDA event of this process, or one opened from another's handle (then `recorded` from the start)."""

    def __init__(self, runtime: CudaRuntime, device: int, handle: int) -> None:
        self.recorded = Completion()
        self.device = device
        self.handle = handle
        self._runtime = runtime

    @property
    def done(self) -> bool:
        return self.recorded.done and self.recorded.error is None and self._runtime.event_done(self.device, self.handle)

    def wait(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self.recorded.wait(timeout_s):
            return False
        self.recorded.check()
        if deadline is None:
            self._runtime.wait_event(self.device, self.handle)
            return True
        while not self._runtime.event_done(self.device, self.handle):  # CUDA has no wait with a limit
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _finalizing():  # the process's end takes it along; this module's names are gone by now
            return
        with contextlib.suppress(HybridKVError):  # CUDA may be gone before the last event is
            self._runtime.destroy_event(self.device, self.handle)


class _Work:
    """A batch under way and its first error."""

    __slots__ = ("batch", "completion", "error")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.completion = Completion()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error


class CudaStream(Stream):
    """See `Stream`. A failed wait for an event fails all later batches: their order could not be kept."""

    def __init__(
        self,
        runtime: CudaRuntime,
        device: int,
        name: str,
        registrations: Registrations,
        ring: StagingRing | None = None,
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._device = device
        self._registrations = registrations
        self._ring = ring or StagingRing(runtime, device)
        self._kernels_reach_host = runtime.kernels_reach_host(device)
        self._handle = runtime.create_stream(device)
        self._events: SimpleQueue[int] = SimpleQueue()  # one per part that may be in flight
        for _ in range(PARTS_IN_FLIGHT):
            self._events.put(runtime.create_event(device))
        self._kinds: set[tuple[Direction, bool]] = set()  # of batches that touch the host, since the last drain
        self._awaited: list[CudaEvent] = []  # events the stream waits for and the CPU has not yet
        self._broken: BaseException | None = None
        self._close_lock = threading.Lock()
        self._closed = False
        self._issuer = SerialWorker(name)
        self._finisher = SerialWorker(f"{name}/done")

    def copy(
        self,
        direction: Direction,
        pool: DevicePool,
        device_offsets: Offsets,
        other: Bytes | DevicePool,
        other_offsets: Offsets,
        nbytes: int,
    ) -> Completion:
        work = _Work(check_batch(direction, pool, device_offsets, other, other_offsets, nbytes))
        try:
            self._issuer.submit(partial(self._issue, work))
        except UnavailableError:
            work.batch.release()
            raise
        return work.completion

    def wait_event(self, event: Event) -> None:
        if not isinstance(event, CudaEvent):
            raise InvalidArgumentError("event", f"{type(event).__name__}: a CUDA stream waits for CUDA events")
        self._issuer.submit(partial(self._wait, event))

    def record_event(self) -> CudaEvent:
        event = CudaEvent(self._runtime, self._device, self._runtime.create_event(self._device))
        self._issuer.submit(partial(self._record, event))
        return event

    def synchronize(self, timeout_s: float | None = None) -> bool:
        return self.record_event().wait(timeout_s)

    def close(self) -> None:
        self._issuer.close()
        self._finisher.close()
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        while not self._events.empty():
            self._runtime.destroy_event(self._device, self._events.get())
        self._awaited.clear()
        self._ring.close()
        self._runtime.destroy_stream(self._device, self._handle)

    # on the issuing thread

    def _issue(self, work: _Work) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            by_kernel = self._kernels_reach_host and self._registrations.all_through(self._device)
            chosen = plan(work.batch, self._registrations, self._ring, by_kernel)
            self._order_host_side(work.batch.direction, chosen.staged)
            for part in chosen.parts:
                self._issue_part(work, part)
        except BaseException as caught:  # whatever it is: the caller must hear of it, the thread must live
            work.fail(caught)
        self._finisher.submit(partial(_end, work))

    def _issue_part(self, work: _Work, part: Part) -> None:
        event = self._events.get()  # blocks while too much is in flight
        issued = False
        try:
            part.issue(self._runtime, self._device, self._handle)
            issued = True
        finally:  # what was issued before a failure still runs: its memory is in use until the stream has passed
            try:
                self._runtime.record_event(self._device, event, self._handle)
            finally:
                self._finisher.submit(partial(self._finish_part, work, part, event, issued))

    def _order_host_side(self, direction: Direction, staged: bool) -> None:
        if direction is Direction.ON_DEVICE:
            return
        kind = (direction, staged)
        if any(other != kind and (other[1] or staged) for other in self._kinds):
            self._drain()
        if staged and direction is Direction.TO_DEVICE:
            for event in self._awaited:
                event.wait()
            self._awaited.clear()
        self._kinds.add(kind)

    def _drain(self) -> None:
        """Wait until every batch issued so far has been finished."""
        finished = Completion()
        self._finisher.submit(finished.finish)
        finished.wait()
        self._kinds.clear()

    def _wait(self, event: CudaEvent) -> None:
        try:
            event.recorded.wait()  # an event that was never recorded would let the stream pass
            event.recorded.check()
            self._runtime.stream_wait_event(self._device, self._handle, event.handle)
            self._awaited = [known for known in self._awaited if not known.done]
            self._awaited.append(event)
        except BaseException as caught:
            self._broken = caught

    def _record(self, event: CudaEvent) -> None:
        try:
            if (Direction.TO_HOST, True) in self._kinds:
                self._drain()
            self._runtime.record_event(self._device, event.handle, self._handle)
        except BaseException as caught:
            event.recorded.finish(caught)
            return
        event.recorded.finish()

    # on the finishing thread

    def _finish_part(self, work: _Work, part: Part, event: int, issued: bool) -> None:
        try:
            self._runtime.wait_event(self._device, event)
            if issued:
                part.finish()
        except BaseException as caught:
            work.fail(caught)
        finally:
            part.give_back()
            self._events.put(event)

    def __repr__(self) -> str:
        return f"CudaStream({self.name}, device {self._device})"


def _end(work: _Work) -> None:
    work.batch.release()
    work.completion.finish(work.error)
