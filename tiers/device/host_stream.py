"""Streams of the host device: worker threads that tests can hold back."""

from functools import partial

import numpy as np

from hybridkv.tiers.device.base import Bytes, Direction, Event, Offsets, Stream
from hybridkv.tiers.device.batch import Batch, check_batch, join_runs
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.gate import Gate, HoldAt
from hybridkv.tiers.device.host_pool import HostPool
from hybridkv.tiers.device.memcopy import copy_runs
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.device.worker import SerialWorker
from hybridkv.tiers.errors import UnavailableError


class HostEvent(Event):
    """Done when the stream came to it."""

    def __init__(self) -> None:
        self.reached = Completion()

    @property
    def done(self) -> bool:
        return self.reached.done

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.reached.wait(timeout_s)


class HostStream(Stream):
    """One thread that copies in order. An error ends its batch, never the thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._worker = SerialWorker(name)
        self._gate = Gate()

    def copy(
        self,
        direction: Direction,
        pool: DevicePool,
        device_offsets: Offsets,
        other: Bytes | DevicePool,
        other_offsets: Offsets,
        nbytes: int,
    ) -> Completion:
        batch = check_batch(direction, pool, device_offsets, other, other_offsets, nbytes)
        completion = Completion()
        try:
            self._worker.submit(partial(self._carry_out, batch, completion))
        except UnavailableError:
            batch.release()
            raise
        return completion

    def wait_event(self, event: Event) -> None:
        self._worker.submit(partial(_wait, event))

    def record_event(self) -> Event:
        event = HostEvent()
        self._worker.submit(event.reached.finish)
        return event

    def synchronize(self, timeout_s: float | None = None) -> bool:
        return self.record_event().wait(timeout_s)

    def close(self) -> None:
        self._gate.release()
        self._worker.close()

    def hold(self, at: HoldAt = HoldAt.BEFORE_COPY) -> None:
        """For tests: batches from now on stand at `at` until released."""
        self._gate.hold(at)

    def release_held(self, count: int | None = None) -> None:
        """For tests: let `count` batches go on; None ends the holding."""
        self._gate.release(count)

    def wait_held(self, timeout_s: float = 10.0) -> bool:
        """For tests: True once a batch stands at the gate, False when `timeout_s` passed first."""
        return self._gate.wait_held(timeout_s)

    def fail_next(self, error: BaseException) -> None:
        """For tests: the next batch fails with `error` and moves nothing."""
        self._gate.fail_next(error)

    def _carry_out(self, batch: Batch, completion: Completion) -> None:
        error: BaseException | None = None
        try:
            self._gate.pass_through(HoldAt.BEFORE_COPY)
            if (failure := self._gate.take_failure()) is not None:
                raise failure
            _copy(batch)
            self._gate.pass_through(HoldAt.BEFORE_COMPLETION)
        except BaseException as caught:  # whatever it is: the caller must hear of it, the thread must live
            error = caught
        batch.release()
        completion.finish(error)

    def __repr__(self) -> str:
        return f"HostStream({self.name})"


def _wait(event: Event) -> None:
    event.wait()


def _memory(side: Bytes | DevicePool) -> Bytes:
    return side.region.array if isinstance(side, HostPool) else np.asarray(side)


def _copy(batch: Batch) -> None:
    device, other = _memory(batch.pool), _memory(batch.other)
    to, at = (other, device) if batch.direction is Direction.TO_HOST else (device, other)
    copy_runs(to, at, join_runs(batch.destinations, batch.sources, batch.nbytes))
