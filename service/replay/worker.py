"""One worker that serves the requests of a trace, one after the other, through the verbs of a host.

The host may be a `SimulatedHost` or a real one in this process; it is given the same calls at the same times, so that a
replay tells what a daemon would have served. For each request, at its time:

1. one pass of the background loop;
2. the chain is acquired in the highest tier there is (GPU if the config has devices, else CPU): what is hit is counted then;
3. what nobody has is reserved there and sealed, as far as there is room;
4. the lease is released, the request ends.

After each of these the lanes are drained, in turn, so that what comes of it does not depend on threads. A chain longer than
one call takes goes in several.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hybridkv.migration.acquires import AcquireReply
from hybridkv.migration.reserves import ReserveReply
from hybridkv.migration.simulate import Request
from hybridkv.service.facade import Host, Ticket
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.errors import InternalError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import ReserveOutcome, Tier

T = TypeVar("T")

KEY_BYTES = 16
SETTLE_WITHIN_S = 60.0

_NEW = ReserveOutcome.NEW
_NO_ROOM = ReserveOutcome.NO_ROOM


def trace_keys(request: Request) -> Keys:
    """Keys of the request's blocks: the trace's numbers, as wide as a key."""
    numbers = np.zeros((len(request.chain), KEY_BYTES // 8), "<u8")
    numbers[:, 0] = request.chain
    return Keys(numbers.tobytes(), KEY_BYTES)


class Worker:
    """`serve` takes one request after the other, and says how many of its blocks were there; `hits` has them by tier.

    `name_blocks` makes a request's keys; `key_bytes` of `space` says how wide.
    """

    def __init__(
        self,
        host: Host,
        clock: ManualClock,
        space: Namespace,
        name_blocks: Callable[[Request], Keys] = trace_keys,
        *,
        in_turn: bool = True,
    ) -> None:
        """`in_turn` False: the lanes of a real host run side by side, as in a daemon. Which of two transfers ends first is
        up to the threads then, and with it, now and then, by which way a block goes."""
        attached = host.attach(space, in_process=True)
        if in_turn:
            host.migrator.go_in_turn()
        self.host = host
        self.session = attached.session
        self.new_blocks = 0
        self._clock = clock
        self._began_at = clock.now()
        self._name_blocks = name_blocks
        self._keys_per_call = attached.limits.keys_per_call_count
        self._tier = host.directory.state.top
        self._served = 0

    @property
    def hits(self) -> Counter[Tier]:
        """Blocks that were there when asked for, by the highest tier that had them."""
        return self.host.migrator.demand.acquires.hits

    def serve(self, request: Request) -> int:
        """One request: the blocks of its chain, from the head, that were there."""
        self._clock.advance(max(0.0, self._began_at + request.at_s - self._clock.now()))
        self.host.tick()
        self._settle()
        self._served += 1
        keys = self._name_blocks(request)
        leases, known = self._acquire(keys)
        self._write(keys, known)
        for lease in leases:
            self.host.release(self.session, lease)
        self.host.end_request(self.session, self._served)
        self._settle()
        return known

    # ------------------------------------------------------------------------------------------------ verbs

    def _acquire(self, keys: Keys) -> tuple[list[int], int]:
        """(leases, blocks that were there)."""
        leases, known = [], 0
        while known < len(keys):
            piece = keys[known : known + self._keys_per_call]
            before = self.hits.total()
            ticket = self.host.acquire(self.session, piece, tier=self._tier, request=self._served)
            found = self.hits.total() - before
            reply = self._reply(ticket)
            self.acquired(piece, reply)
            leases.append(reply.lease)
            known += found
            if found < len(piece):
                break
        return leases, known

    def _write(self, keys: Keys, known: int) -> None:
        """Seal what nobody has; what finds no room is not kept, nor is what follows it."""
        for start in range(known, len(keys), self._keys_per_call):
            piece = keys[start : start + self._keys_per_call]
            parent = keys[start - 1] if start else None
            try:
                ticket = self.host.reserve(self.session, piece, parent=parent, tier=self._tier, request=self._served)
                reply = self._reply(ticket)
            except ResourceExhaustedError:
                return
            new = np.flatnonzero(reply.outcomes == _NEW)
            if len(new):
                self.reserved(piece, reply)
                self.host.seal(self.session, reply.reservation, new, None)
                self.new_blocks += len(new)
            if (reply.outcomes == _NO_ROOM).any():
                return

    def acquired(self, keys: Keys, reply: AcquireReply) -> None:
        """Where a worker would read what is leased."""

    def reserved(self, keys: Keys, reply: ReserveReply) -> None:
        """Where a worker would fill its slots."""

    # ------------------------------------------------------------------------------------------------ lanes

    def _reply(self, ticket: Ticket[T]) -> T:
        self._settle()
        return ticket.reply()

    def _settle(self) -> None:
        if not self.host.migrator.quiesce(SETTLE_WITHIN_S):
            raise InternalError("the lanes do not come to rest")
