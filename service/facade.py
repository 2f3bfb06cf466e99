"""The host's KV memory as one object: every verb, checked and answered, whoever the caller is.

Servicers and the in-process client call the same methods, so bad input is refused in one place. Thread-safe. No verb
waits: what may take time is a `Ticket`. Only `attach` may take milliseconds and more; call it from a thread that may block.
"""

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.fences import DeviceEvents
from hybridkv.migration.tickets import Ticket
from hybridkv.service.checks import check_chain, check_counts, check_device, check_keys, checked_positions
from hybridkv.service.host_base import HostBase
from hybridkv.service.replies import (
    AcquireReply,
    Attached,
    LookupReply,
    ReserveReply,
)
from hybridkv.service.side.server import RegionOffer
from hybridkv.tiers.directory.holds import Lease, Session
from hybridkv.tiers.directory.state import Space
from hybridkv.tiers.errors import ExpiredError, InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints, checked_seconds
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import Outcome, Reason, Tier

__all__ = ["Host", "Ticket"]

MAX_ESTIMATE_S = 3600.0
"""The largest `recompute_s` and `deadline_s`."""


class Host(HostBase):
    """One per daemon, or one per process that embeds it."""

    # ------------------------------------------------------------------------------------------------ sessions

    def attach(
        self,
        space: Namespace,
        *,
        fingerprint: bytes | None = None,
        block_bytes: int | None = None,
        pid: int | None = None,
        in_process: bool = False,
        owner: str | None = None,
    ) -> Attached:
        """A session for blocks of `space`. `fingerprint` and `block_bytes` are what the client computed. `in_process`:
        the caller uses the pools' memory in this very process. `owner`: the tenant whose blocks and session they are.

        Raises NamespaceMismatchError with both values, InvalidArgumentError for a block that fits no extent,
        ResourceExhaustedError beyond the limits. May take milliseconds.
        """
        return self._sessions.attach(
            space, fingerprint=fingerprint, block_bytes=block_bytes, pid=pid, in_process=in_process, owner=owner
        )

    def owner_of(self, session: int) -> str | None:
        """The tenant a session belongs to; None when it is not known, or nobody's."""
        return self._sessions.owner_of(session)

    def maps(self, session: int) -> bool:
        """Whether the session's process was handed the regions."""
        return self._sessions.maps(session)

    def detach(self, session: int) -> None:
        """The worker says goodbye: everything it held ends now, and it touches no slot any more."""
        self._sessions.detach(session)

    def stream_broken(self, session: int) -> None:
        """The worker's stream ended without a goodbye: what it held lapses after the grace."""
        self._sessions.stream_broken(session)

    def regions(self, session: int, token: bytes) -> list[RegionOffer]:
        """For the side socket: the memory a session may map. NotFoundError, ForeignHoldError on a wrong token."""
        return self._sessions.regions(session, token)

    def on_mapped(self, session: int, pid: int) -> None:
        """For the side socket: process `pid` is about to map the regions."""
        self._sessions.on_mapped(session, pid)

    def confirm_unmapped(self, session: int, epoch: int, former: int) -> bool:
        """A worker says that its process maps nothing any more of session `former`, which it had with the daemon of `epoch`:
        the slots that were kept from reuse for it are free. False when no slot was kept for this process."""
        confirmed = self._sessions.confirm_unmapped(session, epoch, former)
        if confirmed:
            self.migrator.stir()
        return confirmed

    def on_gone(self, session: int) -> None:
        """For the side socket: the session's process is proved gone."""
        self._sessions.on_gone(session)

    # ------------------------------------------------------------------------------------------------ reading

    def lookup(self, session: int, keys: Keys) -> LookupReply:
        """Where blocks are now; promises nothing."""
        self._settle()
        with self.directory.lock:
            found = self._rows(session, keys)
            known = found != NO_ROW
            states = np.where(known, Outcome.HIT, Outcome.MISS).astype(np.uint8)
            tiers = np.where(known, self.directory.blocks.highest[found], Tier.DISK).astype(np.uint8)
        return LookupReply(states, tiers)

    def acquire(
        self,
        session: int,
        keys: Keys,
        *,
        tier: Tier | None = None,
        device: int | None = None,
        views: bool = True,
        independent: bool = False,
        request: int | None = None,
        lease: int | None = None,
        recompute_s: float | None = None,
        hints: Hints = NO_HINTS,
    ) -> Ticket[AcquireReply]:
        """Lease the longest prefix of `keys` (or, `independent`, every one) that is or can be brought to `tier`.

        With `recompute_s`, the seconds the caller needs to compute one block: the tail that would land later than it could
        be computed is answered RECOMPUTE. With `lease` and no keys: what has landed of that lease since.
        """
        if recompute_s is not None:
            checked_seconds("recompute_s", recompute_s, MAX_ESTIMATE_S)
        self._settle()
        with self.directory.lock:
            owner = self._sessions.live(session)
            if lease is not None:
                if len(keys):
                    raise InvalidArgumentError("keys", "must be empty when lease is given")
                return self.migrator.demand.acquires.again(self.directory.state.ledger.lease(session, lease))
            check_keys(self._space(owner), keys, self._sessions.told(session).keys_per_call_count)
            self._sessions.check_holds(owner)
            check_device(tier, device)
            return self.migrator.demand.acquires.acquire(
                owner,
                keys,
                tier=tier,
                device=device,
                views=views,
                independent=independent,
                request=request,
                life_s=self._sessions.told(session).lease_s,
                recompute_s=recompute_s,
                hints=hints,
            )

    def renew(self, session: int, holds: list[int], requests: list[int] | None = None) -> list[bool]:
        """Leases, reservations, then requests live on for their full time; False for one that is not alive."""
        limit = self._sessions.told(session).keys_per_call_count
        if len(holds) + len(requests or ()) > limit:
            raise InvalidArgumentError("holds", f"{len(holds) + len(requests or ())} in one call; the limit is {limit}")
        with self.directory.lock:
            owner = self._sessions.live(session)
            now, life_s = self.clock.now(), self._sessions.told(session).lease_s
            alive = [self._renew(owner.id, hold) for hold in holds]
            for number in requests or ():
                request = owner.requests.get(number)
                alive.append(request is not None)
                if request is not None:
                    request.expires_at = now + life_s
            return alive

    def _renew(self, session: int, number: int) -> bool:
        ledger = self.directory.state.ledger
        hold = ledger.leases.get(number) or ledger.reservations.get(number)
        if hold is None or hold.session != session:
            return False
        if isinstance(hold, Lease):
            return self.directory.leases.renew(hold, self._sessions.told(session).lease_s)
        return self.directory.writes.renew(hold, self._sessions.told(session).reservation_s)

    def release(self, session: int, lease: int, events: DeviceEvents = ()) -> None:
        """The lease ends; slots of device pools are free once their `events` are done (see `Fences`).

        NotFoundError, ForeignHoldError; ExpiredError when it had lapsed.
        """
        pending = self.migrator.fences.open(session, events)
        with self.directory.lock:
            self._sessions.live(session)
            held = self.directory.state.ledger.lease(session, lease)
            waiting = self.migrator.demand.acquires.forget_lease(held)
            self.migrator.fences.before_release(held, pending)
            expired: ExpiredError | None = None
            try:
                self.directory.leases.release(held)
            except ExpiredError as error:
                expired = error
        if waiting is not None:
            # Another thread of the caller waits for this lease: it hears of its end, whichever that is.
            waiting.finish()
        if expired is not None:
            raise expired
        self._stir_if_waited_for()

    def touch(self, session: int, keys: Keys, counts: NDArray[np.int64] | None = None) -> int:
        """Note an access of each block that is here, the first key's being the most recent: how many blocks.

        `counts`: how often each was read without a call since that was last told; such a read is a hit as any.
        """
        check_counts(keys, counts)
        with self.directory.lock:
            found = self._rows(session, keys)
            known = found != NO_ROW
            rows, times = found[known][::-1], None if counts is None else counts[known][::-1]
            if times is not None:
                self.migrator.demand.acquires.note_reads(rows, times)
            return self.directory.accesses.touch(rows, times)

    def prefetch(
        self,
        session: int,
        keys: Keys,
        *,
        tier: Tier | None = None,
        device: int | None = None,
        deadline_s: float | None = None,
    ) -> int:
        """Begin to bring blocks up to `tier` (None: CPU) without waiting: how many transfers were begun. Those that have not
        begun to move after `deadline_s` are given up."""
        if deadline_s is not None:
            checked_seconds("deadline_s", deadline_s, MAX_ESTIMATE_S)
        with self.directory.lock:
            check_device(tier, device)
            target = self._sessions.target(tier, device)
            return self.migrator.prefetch(self._rows(session, keys), target, deadline_s)

    def end_request(self, session: int, request: int, hints: Hints = NO_HINTS) -> None:
        """The request is over: its blocks are touched once, in reverse order, and its hints, these and those given before,
        are followed. An unknown one is over already."""
        with self.directory.lock:
            self.directory.accesses.end(self._sessions.live(session), request, hints)
        self._stir_if_waited_for()

    # ------------------------------------------------------------------------------------------------ writing

    def reserve(
        self,
        session: int,
        keys: Keys,
        *,
        parent: bytes | None = None,
        tier: Tier | None = None,
        device: int | None = None,
        request: int | None = None,
        hints: Hints = NO_HINTS,
    ) -> Ticket[ReserveReply]:
        """Slots for the blocks nobody has, a chain behind `parent`; the longest prefix that fits."""
        self._settle()
        with self.directory.lock:
            owner = self._sessions.live(session)
            check_keys(self._space(owner), keys, self._sessions.told(session).keys_per_call_count)
            check_chain(self._space(owner), keys, parent or b"")
            self._sessions.check_holds(owner)
            check_device(tier, device)
            return self.migrator.demand.reserves.reserve(
                owner,
                keys,
                parent=parent or b"",
                tier=tier,
                device=device,
                request=request,
                life_s=self._sessions.told(session).reservation_s,
                hints=hints,
            )

    def seal(
        self,
        session: int,
        reservation: int,
        indices: NDArray[np.int64] | None,
        checksums: NDArray[np.uint64] | None,
        events: DeviceEvents = (),
    ) -> NDArray[np.uint8]:
        """Publish filled slots (None: all that are ours): SealOutcome of each. Checksums: xxh3_64 of each block.

        With `events` of a device pool the blocks are found once those are done; SEALED is a promise then.
        """
        pending = self.migrator.fences.open(session, events)
        with self.directory.lock:
            self._sessions.live(session)
            held = self.directory.state.ledger.reservation(session, reservation)
            positions = checked_positions(held, indices)
            if checksums is not None and len(checksums) != len(positions):
                raise InvalidArgumentError("checksums", f"{len(checksums)} given for {len(positions)} blocks")
            life_s = self._sessions.told(session).reservation_s
            outcomes = self.migrator.fences.seal(held, positions, checksums, pending, life_s)
        self._stir_if_waited_for()
        return outcomes

    def abort(
        self, session: int, reservation: int, indices: NDArray[np.int64] | None, events: DeviceEvents = ()
    ) -> None:
        """Undo what is not sealed (None: all of it). The caller touches these slots no more, its streams once `events`
        are done."""
        pending = self.migrator.fences.open(session, events)
        with self.directory.lock:
            self._sessions.live(session)
            held = self.directory.state.ledger.reservation(session, reservation)
            positions = checked_positions(held, indices)
            self.migrator.fences.before_abort(held, positions, pending)
            self.directory.writes.abort(held, positions)
        self._stir_if_waited_for()

    def remove(self, session: int, keys: Keys) -> int:
        """Blocks are gone from every tier: how many there were. Leased copies stay readable to their holders. Durable, too,
        once `removals` is done."""
        with self.directory.lock:
            found = self._rows(session, keys)
            found = np.unique(found[found != NO_ROW])
            self.migrator.moves.history.removed(found, Reason.REMOVE)
            self.directory.copies.remove(found)
            self.directory.state.counters["removed"] += len(found)
        self.migrator.stir()
        return len(found)

    # ------------------------------------------------------------------------------------------------ checks

    def _rows(self, session: int, keys: Keys) -> Rows:
        owner = self._sessions.live(session)
        check_keys(self._space(owner), keys, self._sessions.told(session).keys_per_call_count)
        return self.directory.sealed(owner.namespace, keys)

    def _space(self, owner: Session) -> Space:
        return self.directory.state.spaces[owner.namespace]

    def _settle(self) -> None:
        """What workers' device streams have reached meanwhile counts for whoever asks now."""
        if self.migrator.fences.settle():
            self._stir_if_waited_for()

    def _stir_if_waited_for(self) -> None:
        if self.migrator.demand.waiting:
            self.migrator.stir()
