"""Reading and writing: the verbs that a handle and a request have in common."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from hybridkv.service.client.core import Budget, States, Wish, as_keys, one_call, tier_of
from hybridkv.service.client.lease import Lease, take_lease
from hybridkv.service.client.link import Attachment, Link
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.reading import read_asked, read_known, read_one
from hybridkv.service.client.reservation import Reservation, take_reservation
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, NotFoundError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier

T = TypeVar("T")
KeysLike = Keys | Iterable[bytes]
TierLike = Tier | str | None
_HIT = int(Outcome.HIT)
_ONE_HIT = np.array([_HIT], np.uint8)


class Verbs:
    """What reads and writes, for a handle (each call a request of its own) or for one request."""

    def __init__(self, space: Namespace, link: Link, request: int | None, hints: Hints = NO_HINTS) -> None:
        self.space = space
        self._link = link
        self._request = request
        self._hints = hints
        self._block_bytes = space.layout.block_bytes

    def acquire(
        self,
        keys: KeysLike,
        tier: TierLike = None,
        device: int | None = None,
        timeout_s: float = 0.0,
        views: bool = True,
        independent: bool = False,
        recompute_s: float | None = None,
    ) -> Lease:
        """Look up and lease in one step; waits up to `timeout_s` for what is PENDING.

        `tier`: a copy there is a HIT; None: any tier in memory. `views=False` gives a lease for `read_into` only,
        which may be revoked. `independent`: the keys are no chain, so a MISS does not end the search. On a session
        without regions the lease holds private copies.
        `recompute_s`: the seconds it takes here to compute one block. The tail of the chain that would land later than it
        could be computed, by the speed and queue of the lanes it would come through, is answered RECOMPUTE and not
        loaded: as good as a MISS. A session without regions does not send it.
        Raises InvalidArgumentError for more keys than one call takes.
        """
        wish = Wish(
            self._keys(keys), tier_of(tier), device, views, independent, self._request, recompute_s, self._hints
        )

        def call(attachment: Attachment, budget: Budget) -> Lease:
            one_call(wish.keys, attachment.attached.limits.keys_per_call_count)
            return take_lease(attachment, wish, budget, self._link.timeout_s)

        return self._run(call, timeout_s)

    def read(self, keys: KeysLike, out: Any, *, timeout_s: float = 0.0) -> States:
        """Copy blocks to the rows of `out`; an Outcome per key. Waits up to `timeout_s` for what is PENDING.

        Blocks that this handle has met before (acquired, read, sealed) and that lie where they did are copied without a
        call, unless the read is a request's; the daemon is told afterwards that they were read.
        `out`: a NumPy array or torch tensor (any device) with a row of block_bytes bytes per key, or a list of such
        rows; contiguous, any dtype. The keys need not be a chain, and there may be more than one call takes. Every
        HIT was verified to be that block during the whole copy. Rows that are no HIT are left untouched, unless their
        block was reclaimed in the middle of its copy: then they hold anything.
        """
        wanted = self._keys(keys)
        count = len(wanted)
        target = rows_of(out, count, self._block_bytes)
        # A request's blocks have to be protected until its end.
        live = self._link.live if self._request is None else None
        if live is not None and count == 1 and read_one(live, wanted, target):
            return _ONE_HIT.copy()
        rows, states = np.arange(count), np.full(count, _HIT, np.uint8)
        if live is not None and count != 1:
            read = read_known(live, wanted, target)
            if len(read) == count and count:
                return states
            if len(read):
                rows = np.delete(rows, read)
                wanted = wanted.at(rows)
        wish = Wish(wanted, views=False, independent=True, request=self._request, hints=self._hints)
        states[rows] = self._run(lambda on, budget: read_asked(on, wish, budget, target, rows), timeout_s)
        return states

    def reserve(
        self,
        keys: KeysLike,
        parent: bytes | None = None,
        tier: TierLike = None,
        device: int | None = None,
        timeout_s: float = 1.0,
    ) -> Reservation:
        """Slots for the keys that nobody has; waits up to `timeout_s` for room that is being made.

        `parent` is the key before `keys[0]`, None at the head of a chain. `tier` None: the highest there is.
        The longest prefix that fits is granted; raises ResourceExhaustedError when nothing fits, InvalidArgumentError
        for more keys than one call takes.
        """
        wish = Wish(self._keys(keys), tier_of(tier), device, request=self._request, hints=self._hints)
        if parent is not None and len(parent) != self.space.key_bytes:
            raise InvalidArgumentError("parent", f"has {len(parent)} bytes; keys here have {self.space.key_bytes}")

        def call(attachment: Attachment, budget: Budget) -> Reservation:
            one_call(wish.keys, attachment.attached.limits.keys_per_call_count)
            return take_reservation(attachment, wish, parent, budget, self._link.timeout_s)

        return self._run(call, timeout_s)

    def _run(self, call: Callable[[Attachment, Budget], T], wait_s: float) -> T:
        """Run a call; the session's renewer keeps the request open from then on."""
        request = self._request
        if request is None:
            return self._link.run(call, wait_s)

        def in_request(attachment: Attachment, budget: Budget) -> T:
            attachment.renewer.add_request(request)
            return call(attachment, budget)

        return self._link.run(in_request, wait_s)

    def _keys(self, keys: KeysLike) -> Keys:
        return as_keys(keys, self.space.key_bytes)


class Request(Verbs):
    """One use of a chain: its blocks are protected until `end`, and touched once, together, then.

    A context manager. After the daemon was lost in the middle it protects only what is acquired from then on.
    """

    def end(self, *, end_of_session: bool = False, expected_next_use_s: float | None = None) -> None:
        """End the request. Its leases and reservations live on until they are given back.

        `end_of_session`: no further request continues this chain; what no other chain shares makes room first.
        `expected_next_use_s`: when it is continued, from now. Both are hints: see `tiers.hints.Hints`.
        """
        request, link = self._request, self._link
        hints = Hints(expected_next_use_s=expected_next_use_s, end_of_session=end_of_session).over(self._hints)

        def call(attachment: Attachment, budget: Budget) -> None:
            if request is not None:
                attachment.renewer.discard_request(request)
                attachment.transport.end_request(request, hints=hints, timeout_s=budget.left_s())

        try:
            link.run(call)
        except NotFoundError:
            return  # nothing was asked for in its name, or it ended with its session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.end()
        except HybridKVError:
            if error is None:
                raise
