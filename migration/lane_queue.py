"""What waits in a lane: transfers by priority, and which of them make the next batch."""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter

from hybridkv.migration.arrivals import Leg
from hybridkv.migration.inflight import InFlight
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.states import Priority

_PRIORITY = attrgetter("priority")


class LaneQueue:
    """The transfers queued for one leg. Not thread-safe: the worker calls it under its own lock, `take` also under the
    directory's."""

    def __init__(self, leg: Leg, directory: Directory, inflight: InFlight, wake: Callable[[], None]) -> None:
        """`wake` is called when background transfers that found too many bytes in flight may look again."""
        self._leg = leg
        self._directory = directory
        self._inflight = inflight
        self._wake = wake
        self._queues: dict[Priority, deque[Transfer]] = {priority: deque() for priority in Priority}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def demanded_bytes(self) -> int:
        """Bytes that somebody waits for."""
        return sum(transfer.size for transfer in self._queues[Priority.DEMAND])

    def put(self, transfers: Iterable[Transfer]) -> None:
        for priority, some in groupby(transfers, _PRIORITY):
            self._queues[priority].extend(some)

    def withdraw(self, transfer: Transfer) -> bool:
        """Take a transfer out again; False when it is not here (any more)."""
        queued = self._queues[transfer.priority]
        if transfer not in queued:
            return False
        queued.remove(transfer)
        return True

    def take(self, limit: int) -> list[Transfer]:
        """Transfers of one size up to `limit` bytes (at least one), urgent first; those that lack a lane slot stay, and
        so do those that nobody waits for while too many bytes are in flight. A block that failed before goes alone."""
        taken: list[Transfer] = []
        for priority, queue in self._queues.items():
            if queue:
                self._take_from(queue, priority is Priority.DEMAND, limit, taken)
        return taken

    def _take_from(self, queue: deque[Transfer], demanded: bool, limit: int, taken: list[Transfer]) -> None:
        fits, direct = self._inflight.fits, self._leg.target
        free = demanded or fits(max(limit, queue[0].size), self._wake)
        size = taken[0].size if taken else 0
        nbytes = len(taken) * size
        kept: list[Transfer] = []
        setbacks = self._directory.state.setbacks
        failures_of = setbacks.failures_of if len(setbacks) else None
        while queue and (not size or nbytes + size <= limit):
            transfer = queue[0]
            if taken and failures_of and (failures_of(transfer.row) or failures_of(taken[0].row)):
                break
            if size and transfer.size != size:
                break
            if not (free or fits(nbytes + transfer.size, self._wake)):
                break
            queue.popleft()
            if transfer.target == direct or self._has_place(transfer):
                taken.append(transfer)
                size = transfer.size
                nbytes += size
            else:
                kept.append(transfer)
        queue.extendleft(reversed(kept))

    def _has_place(self, transfer: Transfer) -> bool:
        """A first leg that does not end in the target needs a lane's CPU slot; take one."""
        if transfer.via is not None:
            return True
        free = self._directory.state.mapped(self._leg.target).lane_slots.get(transfer.size)
        if not free:
            return False
        transfer.via = free.pop()
        return True
