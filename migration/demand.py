"""Demand: acquires and reservations that may have to wait for blocks to come up or for room to be made.

Everything here runs under the directory's lock and returns at once. A call is a ticket; when transfers end or memory is
carved, the tickets that wait for them are advanced, oldest first.
"""

from collections.abc import Callable, Iterable

from hybridkv.migration.acquires import AcquireReply, Acquires
from hybridkv.migration.advice import Advice
from hybridkv.migration.placement import Placement
from hybridkv.migration.reclaim import Reclaim
from hybridkv.migration.reserves import ReserveReply, Reserves
from hybridkv.migration.tickets import Hooks, Ticket
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.moves import Transfer

AnyTicket = Ticket[AcquireReply] | Ticket[ReserveReply]


class Demand:
    """The calls under way. Called under the directory's lock."""

    def __init__(
        self, directory: Directory, reclaim: Reclaim, send: Callable[[Iterable[Transfer]], None], advice: Advice
    ) -> None:
        self.hooks = Hooks()
        self.placement = Placement(directory)
        self.acquires = Acquires(directory, reclaim, send, self.placement, advice, self.hooks)
        self.reserves = Reserves(directory, reclaim, self.placement, self.hooks)
        self._forgotten: list[AnyTicket] = []

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self.acquires) + len(self.reserves)

    def forget_session(self, session: int) -> None:
        """The session ends: nobody waits for it any more; the next `advance` answers whoever still does. Its holds are
        the directory's to end, afterwards."""
        self._forgotten += [*self.acquires.of_session(session), *self.reserves.of_session(session)]

    def note_failures(self, pools: set[int]) -> None:
        """Demotions out of these pools failed: calls that wait for their room do not wait for ever."""
        self.acquires.note_failures(pools)
        self.reserves.note_failures(pools)

    def advance(self) -> list[AnyTicket]:
        """Something ended, was freed or lapsed. Tickets that are done now: finish them once the lock is free."""
        done, self._forgotten = self._forgotten, []
        return [*done, *self.acquires.advance(), *self.reserves.advance()]
