"""What workers may ask of sequences: sessions, limits and places checked, then handed to `paging`.

Servicers and the in-process client call the same methods. Thread-safe; nothing waits: what may take time is a `Ticket`.
"""

from collections.abc import Sequence as ListOf

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.fences import DeviceEvents
from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.backing import Blocks
from hybridkv.paging.replies import (
    AdvanceReply,
    FaultReply,
    OpenReply,
    ResizeReply,
    ResumeReply,
    SequenceInfo,
    StickyReply,
    SuspendReply,
    TranslateReply,
    Want,
)
from hybridkv.paging.sequences import Sequences
from hybridkv.paging.windows import Window
from hybridkv.service.checks import check_chain, check_device, check_keys
from hybridkv.service.sessions import SessionBook
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier


class SequenceCalls:
    """`Host.sequences`. A session that has ended raises NotFoundError, as does a sequence that is not open; another
    session's raises ForeignHoldError."""

    def __init__(self, sessions: SessionBook, migrator: Migrator, paging: Sequences) -> None:
        self._sessions = sessions
        self._migrator = migrator
        self._directory = migrator.directory
        self._paging = paging

    # ------------------------------------------------------------------------------------------------ life

    def open(
        self,
        session: int,
        keys: Keys,
        *,
        tokens: int,
        tier: Tier | None = None,
        device: int | None = None,
        page_blocks: int | None = None,
    ) -> OpenReply:
        """A sequence of `tokens` positions (0: it may grow), which lives in `tier` (None: the highest there is). Of `keys`,
        those of its first full blocks (there may be none), the longest sealed prefix is attached."""
        self._migrator.fences.settle()
        with self._directory.lock:
            owner = self._checked(session, keys)
            pool = self._pool(tier, device)
            return self._paging.open(
                owner,
                keys.as_list(),
                tokens=tokens,
                block_tokens=self._sessions.block_tokens(session),
                pool=pool,
                page_blocks=page_blocks,
            )

    def check_opening(self, session: int, keys_count: int) -> None:
        """Of several sequences opened by one call: their keys together are no more than one call may name."""
        self._live(session)
        self._check_count(session, "sequences.keys", keys_count)

    def _pool(self, tier: Tier | None, device: int | None) -> int:
        check_device(tier, device)
        placement = self._migrator.demand.placement
        if tier is not None:
            return placement.target_of(tier, device)
        gpus = self._directory.state.pools_in(Tier.GPU)
        return placement.least_used(gpus) if gpus else placement.target_of(None, None)

    def attach(self, session: int, sequence: int, first_block: int, keys: Keys) -> int:
        """Map sealed blocks from `first_block` on, where nothing is mapped: how many, the longest prefix of `keys`."""
        with self._directory.lock:
            owner = self._checked(session, keys, empty=False)
            return self._paging.attach(owner, sequence, first_block, keys.as_list())

    def extend(self, session: int, more: ListOf[tuple[int, int]]) -> list[int]:
        """Sequences grow by so many tokens each: their new lengths. All grow, or none."""
        return self._paging.extend(self._live(session), more)

    def close(self, session: int, sequences: ListOf[int], events: DeviceEvents = ()) -> None:
        """Sequences end. Closed once is enough: a second time raises NotFoundError."""
        pending = self._migrator.fences.open(session, events)
        self._paging.close(self._live(session), sequences, pending)

    # ------------------------------------------------------------------------------------------------ pages

    def fault(self, session: int, wants: ListOf[Want], *, hold: bool = False) -> Ticket[FaultReply]:
        """Bring up, allocate and copy what `wants` names: all of it, or nothing. `hold`: lease the readable blocks, one lease
        a want. A reply asked for before it is done undoes the fault and raises DeadlineExceededError."""
        self._settle()
        with self._directory.lock:
            owner = self._live(session)
            self._check_count(session, "blocks", sum(len(want.blocks) for want in wants), least=1)
            self._sessions.check_holds(owner)
            return self._paging.fault(owner, wants, hold=hold, life_s=self._sessions.told(session).lease_s)

    def translate(self, session: int, sequence: int, blocks: Blocks) -> TranslateReply:
        """Where blocks are now; brings nothing."""
        self._settle()
        self._check_count(session, "blocks", len(blocks))
        return self._paging.translate(self._live(session), sequence, blocks)

    def publish(
        self,
        session: int,
        sequence: int,
        first_block: int,
        keys: Keys,
        *,
        parent: bytes = b"",
        checksums: NDArray[np.uint64] | None = None,
        events: DeviceEvents = (),
    ) -> Ticket[NDArray[np.uint8]]:
        """Full blocks get their chain keys, and are found by others from then on: PublishOutcome of each, uint8 [n]."""
        pending = self._migrator.fences.open(session, events)
        self._settle()
        with self._directory.lock:
            owner = self._checked(session, keys, empty=False)
            check_chain(self._directory.state.spaces[owner.namespace], keys, parent)
            return self._paging.publish(
                owner, sequence, first_block, keys.as_list(), parent=parent, checksums=checksums, events=pending
            )

    # ------------------------------------------------------------------------------------------------ sharing, resting

    def fork(self, session: int, sequence: int, count: int = 1, events: DeviceEvents = ()) -> Ticket[tuple[int, ...]]:
        """`count` sequences that share all the parent has, until one of them writes."""
        pending = self._migrator.fences.open(session, events)
        self._settle()
        return self._paging.fork(self._live(session), sequence, count, pending)

    def suspend(self, session: int, sequences: ListOf[int], events: DeviceEvents = ()) -> Ticket[SuspendReply]:
        """Sequences leave their pools as a whole, and let go what they leased."""
        pending = self._migrator.fences.open(session, events)
        self._settle()
        return self._paging.suspend(self._live(session), sequences, pending)

    def resume(self, session: int, sequences: ListOf[int]) -> Ticket[ResumeReply]:
        """All their blocks come back in one batch, or none."""
        self._settle()
        return self._paging.resume(self._live(session), sequences)

    def adjust_page_size(
        self, page_blocks: int, *, session: int | None = None, sequence: int | None = None
    ) -> Ticket[ResizeReply]:
        """Pages of so many blocks: of one sequence, or, without `session` and `sequence`, of all there are and will be."""
        if (session is None) != (sequence is None):
            raise InvalidArgumentError("sequence", "needs its session, and a session its sequence")
        owner = None if session is None else self._live(session)
        return self._paging.adjust_page_size(page_blocks, session=owner, number=sequence)

    def set_sticky(self, session: int, sequence: int, first_block: int, count: int, sticky: bool) -> StickyReply:
        """Blocks are never evicted while the sequence is awake, or are like others again."""
        return self._paging.set_sticky(self._live(session), sequence, first_block, count, sticky)

    def advance(self, session: int, sequence: int, position: int, window: Window | None = None) -> AdvanceReply:
        """The sequence is read around `position`: keep what its window needs, prefetch what it will need."""
        return self._paging.advance(self._live(session), sequence, position, window)

    # ------------------------------------------------------------------------------------------------ figures

    def describe(self, session: int, sequence: int) -> SequenceInfo:
        """One sequence in figures."""
        return self._paging.describe(self._live(session), sequence)

    def note_tlb(self, session: int, hits: int, misses: int, invalidations: int) -> None:
        """A client's translations since it told last, for the stats."""
        counts = {"hits": hits, "misses": misses, "invalidations": invalidations}
        for name, count in counts.items():
            if count < 0:
                raise InvalidArgumentError(name, f"{count}: must not be negative")
        with self._directory.lock:
            self._live(session)
            for name, count in counts.items():
                self._paging.figures.tlb[name] += count

    # ------------------------------------------------------------------------------------------------ checks

    def _live(self, session: int) -> Session:
        with self._directory.lock:
            return self._sessions.live(session)

    def _check_count(self, session: int, field: str, count: int, *, least: int = 0) -> None:
        limit = self._sessions.told(session).keys_per_call_count
        if not least <= count <= limit:
            raise InvalidArgumentError(field, f"{count} in one call; at least {least}, and the limit is {limit}")

    def _checked(self, session: int, keys: Keys, *, empty: bool = True) -> Session:
        owner = self._sessions.live(session)
        if len(keys) or not empty:
            check_keys(
                self._directory.state.spaces[owner.namespace], keys, self._sessions.told(session).keys_per_call_count
            )
        return owner

    def _settle(self) -> None:
        """What workers' device streams have reached meanwhile counts for whoever asks now."""
        self._paging.settle()
        if self._migrator.fences.settle():
            self._migrator.stir()
