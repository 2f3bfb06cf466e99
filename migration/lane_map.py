"""All the lanes of a host: which there are, and which a transfer goes through."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from hybridkv.migration.arrivals import Leg
from hybridkv.migration.disk_movers import DiskReader, DiskWriter
from hybridkv.migration.disk_size import DiskSize
from hybridkv.migration.disk_watch import DiskWatch
from hybridkv.migration.estimate import LaneLoad
from hybridkv.migration.inflight import InFlight
from hybridkv.migration.lanes import LaneRules, LaneWorker
from hybridkv.migration.ledger import MoveLedger
from hybridkv.migration.memory import Memory
from hybridkv.migration.movers import CpuRelocator, DeviceMover, DeviceRelocator, Mover
from hybridkv.migration.speed import LaneSpeed
from hybridkv.migration.throttle import TokenBucket
from hybridkv.tiers.device.base import Direction
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Priority, Tier

_DEMAND = Priority.DEMAND

_BACKGROUND_PIECE_BYTES = 4 << 20
"""A capped background batch on host memory is at most this, so that demand copies wait for little."""


def _piece_bytes(batch_bytes: int, bytes_per_s: float | None) -> int:
    """Most bytes of a background batch on host memory. Without a cap it is throughput that is asked for: full batches."""
    return batch_bytes if bytes_per_s is None else min(batch_bytes, _BACKGROUND_PIECE_BYTES)


_way_of = attrgetter("source", "target", "priority")


class LaneMap:
    """Lanes between neighbouring pools, and within each mapped one. Sending never blocks."""

    def __init__(
        self,
        memory: Memory,
        moves: MoveLedger,
        disk_watch: DiskWatch,
        disk_size: DiskSize,
        inflight: InFlight,
        batch_bytes: int,
        background_bytes_per_s: float | None,
        ended: Callable[[Sequence[Transfer]], None],
    ) -> None:
        """`ended` hears, without the directory's lock, of transfers that ended."""
        self._memory = memory
        self._directory = memory.directory
        self._moves = moves
        self._disk_watch = disk_watch
        self._disk_size = disk_size
        self._tell_ended = ended
        self._landed: list[Transfer] = []
        self._in_turn = False
        now = self._directory.state.clock.now()
        piece = _piece_bytes(batch_bytes, background_bytes_per_s)
        self._rules = LaneRules(batch_bytes, batch_bytes, inflight)
        self._paced = LaneRules(batch_bytes, piece, inflight)
        self._throttle = TokenBucket(background_bytes_per_s, 2 * _BACKGROUND_PIECE_BYTES, now)
        self._lanes: dict[tuple[int, int], tuple[LaneWorker, LaneWorker]] = {}
        self._open_lanes()

    def retune(self, batch_bytes: int, background_bytes_per_s: float | None) -> None:
        """Go by these from the next batch on. Under the lock."""
        self._rules.batch_bytes = self._rules.background_batch_bytes = self._paced.batch_bytes = batch_bytes
        self._paced.background_batch_bytes = _piece_bytes(batch_bytes, background_bytes_per_s)
        self._throttle.set_rate(background_bytes_per_s, self._directory.state.clock.now())

    def _open_lanes(self) -> None:
        memory, cpu = self._memory, self._memory.cpu_index
        gate = threading.Lock()

        def open_lane(name: str, leg: Leg, make: Callable[[str], Mover], *, on_host: bool) -> None:
            speed = LaneSpeed()
            urgent, background = (
                self._worker(
                    f"{name}.{kind}",
                    leg,
                    make,
                    self._paced if on_host else self._rules,
                    urgent=kind == "demand",
                    throttle=self._throttle if on_host else None,
                    gate=gate if on_host and kind == "background" else None,
                    speed=speed,
                )
                for kind in ("demand", "background")
            )
            self._lanes[leg.source, leg.target] = (urgent, background)

        kinds = memory.kinds()
        for index in self._directory.state.pools_in(Tier.GPU):
            on_host, gpu = kinds[index] == "host", f"gpu{index}"
            open_lane(f"{gpu}-cpu", Leg(index, cpu), self._device_mover(index, Direction.TO_HOST), on_host=on_host)
            open_lane(f"cpu-{gpu}", Leg(cpu, index), self._device_mover(index, Direction.TO_DEVICE), on_host=on_host)
            open_lane(
                f"{gpu}-{gpu}",
                Leg(index, index),
                lambda name, index=index: DeviceRelocator(memory.device_pools[index], name),  # type: ignore[misc]
                on_host=on_host,
            )
        open_lane("cpu-cpu", Leg(cpu, cpu), lambda _name: CpuRelocator(memory), on_host=True)
        if memory.store is not None:
            disk = self._directory.books[-1].index
            open_lane("disk-cpu", Leg(disk, cpu), lambda _name: DiskReader(memory, self._disk_watch), on_host=False)
            # The last to be opened is the last to be closed: by then all that is to be deleted is known.
            self._open_writer(cpu, disk)

    def _device_mover(self, index: int, direction: Direction) -> Callable[[str], Mover]:
        return lambda name: DeviceMover(self._memory, self._memory.device_pools[index], direction, name)

    def _open_writer(self, cpu: int, disk: int) -> None:
        """The store takes one writer: urgent and background writes share a worker, urgent ones go first."""
        writer = self._worker(
            "cpu-disk",
            Leg(cpu, disk),
            lambda _name: DiskWriter(self._memory, self._disk_watch, self._disk_size),
            self._rules,
            urgent=True,
        )
        self._lanes[cpu, disk] = (writer, writer)

    def _worker(
        self,
        name: str,
        leg: Leg,
        make: Callable[[str], Mover],
        rules: LaneRules,
        *,
        urgent: bool,
        throttle: TokenBucket | None = None,
        gate: "threading.Lock | None" = None,
        speed: LaneSpeed | None = None,
    ) -> LaneWorker:
        return LaneWorker(
            name,
            leg,
            self._mover(make, name),
            self._directory,
            self._moves,
            rules,
            urgent=urgent,
            hand_over=self.route,
            ended=self._ended,
            throttle=throttle,
            gate=gate,
            speed=speed,
            threaded=not self._in_turn,
        )

    def _mover(self, make: Callable[[str], Mover], name: str) -> Mover:
        return make(name)

    # ------------------------------------------------------------------------------------------------ in turn

    def go_in_turn(self) -> None:
        """The workers, at rest now, have no threads from now on; `carry` does what they would."""
        for worker in self.workers:
            worker.end_thread()
        self._in_turn = True

    def carry(self) -> bool:
        """In turn: land what is queued in the fastest lanes that have something, and tell of it; False when nothing ended.

        What stays in memory goes before what is read from disk or written there, as it mostly would in lanes that take
        time; within these, lanes have a fixed order, urgent ones first, and each carries all it has. Not under the lock.
        """
        if not self._in_turn:
            return False
        workers = sorted(self.workers, key=lambda worker: not worker.urgent)
        disk = len(self._directory.books) - 1 if self._memory.store is not None else None
        for some in ([w for w in workers if disk not in (w.leg.source, w.leg.target)], workers):
            while sum(worker.step() for worker in some):
                pass
            if self._landed:
                landed, self._landed = self._landed, []
                self._tell_ended(landed)
                return True
        return False

    def _ended(self, transfers: Sequence[Transfer]) -> None:
        if self._in_turn:
            self._landed += transfers
        else:
            self._tell_ended(transfers)

    # ------------------------------------------------------------------------------------------------ ways

    @property
    def workers(self) -> list[LaneWorker]:
        """Every lane worker once."""
        return list(dict.fromkeys(worker for pair in self._lanes.values() for worker in pair))

    def lane(self, source: int, target: int, *, urgent: bool = True) -> LaneWorker:
        """The worker that carries blocks between two neighbouring pools."""
        return self._lanes[source, target][0 if urgent else 1]

    def _legs(self, source: int, target: int) -> list[tuple[int, int]]:
        """The lanes from pool to pool, by their ends."""
        cpu = self._memory.cpu_index
        return [(source, target)] if (source, target) in self._lanes else [(source, cpu), (cpu, target)]

    def way(self, source: int, target: int) -> list[LaneLoad]:
        """How fast the lanes from pool to pool are, and what somebody waits for there."""
        now = self._directory.state.clock.now()
        workers = [self._lanes[leg][0] for leg in self._legs(source, target)]
        return [LaneLoad(worker.speed.bytes_per_s(now), worker.demanded_bytes) for worker in workers]

    def send(self, transfers: Iterable[Transfer]) -> None:
        """Queue transfers that were decided just now, each on its first leg's lane."""
        decided = list(transfers)
        self._moves.history.decided(decided)
        for (source, target, priority), group in groupby(decided, _way_of):
            self._worker_for(self._legs(source, target)[0], priority).put(*group)

    def route(self, transfer: Transfer) -> None:
        """Queue the transfer on its next leg's lane."""
        leg = self._legs(transfer.source, transfer.target)[0 if transfer.via is None else 1]
        self._worker_for(leg, transfer.priority).put(transfer)

    def _worker_for(self, leg: tuple[int, int], priority: Priority) -> LaneWorker:
        return self._lanes[leg][0 if priority is Priority.DEMAND else 1]

    def hasten(self, rows: Rows) -> None:
        """Somebody waits for these blocks: queued background transfers of them go before others. Under the lock."""
        under_way = map(self._directory.state.transfers.get, rows.tolist())
        lazy = [transfer for transfer in under_way if transfer is not None and transfer.priority is not _DEMAND]
        for transfer in lazy:
            if self.withdraw(transfer):
                transfer.priority = Priority.DEMAND
                self.route(transfer)

    def withdraw(self, transfer: Transfer) -> bool:
        """Take a transfer out of the lane it is queued in; False when it is in none."""
        return any(worker.withdraw(transfer) for worker in self.workers)

    def close(self) -> None:
        """End every worker. Transfers not begun are given up."""
        for worker in self.workers:
            worker.close()

    # ------------------------------------------------------------------------------------------------ figures

    def rows(self) -> dict[str, dict[str, Any]]:
        """Per lane worker: queued transfers, bytes in flight, errors, whether its thread lives, and the lane's speed (0:
        nothing was carried lately)."""
        now = self._directory.state.clock.now()
        return {
            worker.name: {
                "queued": worker.queued,
                "bytes_in_flight": worker.bytes_in_flight,
                "errors": worker.pulse.errors,
                "alive": worker.pulse.alive(),
                "bytes_per_s": worker.speed.bytes_per_s(now) or 0.0,
            }
            for worker in self.workers
        }
