"""Holding lanes back: device lanes at their streams, the others at the named points of a move."""

import threading
from dataclasses import dataclass

from hybridkv.migration.lanes import LaneWorker
from hybridkv.migration.movers import DeviceMover, DeviceRelocator
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import UnavailableError

_POINT_OF = {"move.before_copy": HoldAt.BEFORE_COPY, "move.copied": HoldAt.BEFORE_COMPLETION}


@dataclass(frozen=True)
class Gate:
    """One lane worker, and its stream when it has one."""

    worker: str
    stream: HostStream | None


class Gates:
    """All lanes of one migrator. `handler` is to be installed with `points.listening` while they are in use."""

    def __init__(self, workers: list[LaneWorker]) -> None:
        self._gates = [Gate(worker.thread.name, _stream_of(worker)) for worker in workers]
        self._changed = threading.Condition()
        self._held: dict[str, HoldAt] = {}

    def __len__(self) -> int:
        return len(self._gates)

    @property
    def any_held(self) -> bool:
        return bool(self._held)

    def hold(self, number: int, at: HoldAt) -> None:
        """Batches of this lane stand at `at` from now on."""
        gate = self._gates[number % len(self)]
        with self._changed:
            self._held[gate.worker] = at
        if gate.stream is not None:
            gate.stream.hold(at)

    def release(self, number: int) -> None:
        """The lane goes on."""
        gate = self._gates[number % len(self)]
        with self._changed:
            self._held.pop(gate.worker, None)
            self._changed.notify_all()
        if gate.stream is not None:
            gate.stream.release_held()

    def release_all(self) -> None:
        for number in range(len(self)):
            self.release(number)

    def fail_next(self, number: int) -> None:
        """The next batch of the lane's stream fails (a lane without a stream is left alone)."""
        stream = self._gates[number % len(self)].stream
        if stream is not None:
            stream.fail_next(UnavailableError("a copy failed, as the test wished"))

    def handler(self, point: str) -> None:
        """Stand here while this thread's lane is held at this point."""
        at, name = _POINT_OF.get(point), threading.current_thread().name
        if at is None or self._has_stream(name):
            return
        with self._changed:
            self._changed.wait_for(lambda: self._held.get(name) is not at)

    def _has_stream(self, name: str) -> bool:
        return any(gate.worker == name and gate.stream is not None for gate in self._gates)


def _stream_of(worker: LaneWorker) -> HostStream | None:
    mover = worker.mover
    if isinstance(mover, DeviceMover | DeviceRelocator) and isinstance(mover.stream, HostStream):
        return mover.stream
    return None
