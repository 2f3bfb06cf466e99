"""Sequences from their opening to their end: opening, growing, publishing, forking, closing.

Sessions own sequences: when one ends or lapses, by whatever way, its sequences are gone.
"""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.ahead import Ahead
from hybridkv.paging.answers import Answer
from hybridkv.paging.behind import Behind
from hybridkv.paging.copier import Copier
from hybridkv.paging.deferred import Deferred
from hybridkv.paging.faults import Faults
from hybridkv.paging.planning import Planning
from hybridkv.paging.registry import PagingRules, Registry
from hybridkv.paging.replies import (
    Figures,
    OpenReply,
)
from hybridkv.paging.resizing import Resizing
from hybridkv.paging.room import Room
from hybridkv.paging.runs import Runs
from hybridkv.paging.sequence import Sequence
from hybridkv.paging.sharing import Sharing
from hybridkv.paging.states import Backed
from hybridkv.paging.stickiness import Stickiness
from hybridkv.paging.suspension import Suspension
from hybridkv.paging.table_checks import checked_page_blocks
from hybridkv.tiers.device.base import Event
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.errors import InvalidArgumentError, NotFoundError
from hybridkv.tiers.points import point

T = TypeVar("T")

Events = Mapping[int, Event]
NO_EVENTS: Events = {}


class SequencesBase:
    """The life of sequences, and what they share. Calls take the directory's `Session`, alive, and check the rest."""

    def __init__(self, migrator: Migrator, rules: PagingRules) -> None:
        self._migrator = migrator
        self._directory = migrator.directory
        self.registry = Registry(self._directory, rules)
        self.figures = Figures()
        self.mappings = self.registry.mappings
        self.copier = Copier(migrator.memory)
        self.runs = Runs(self._directory, migrator.reclaim, migrator.send)
        room = Room(self._directory, migrator.reclaim, migrator.prefetches)
        planning = Planning(self._directory, room, self.runs)
        self.faults = Faults(migrator, self.mappings, self.copier, planning, self.runs, self.figures)
        self.sharing = Sharing(self._directory, self.mappings)
        self.suspension = Suspension(migrator, self.mappings)
        self.resizing = Resizing(self.mappings, self.runs, self.figures)
        self.stickiness = Stickiness(self._directory, self.mappings)
        behind = Behind(self._directory, self.mappings, migrator.reclaim)
        self.ahead = Ahead(self._directory, self.mappings, migrator.prefetches, self.runs, behind, self.figures)
        self.deferred = Deferred(self._directory)
        self._page_blocks: int | None = None
        self._forgotten: list[Ticket[Any]] = []

    def __repr__(self) -> str:
        return f"Sequences({len(self.mappings.sequences)} open)"

    @property
    def page_blocks(self) -> int:
        """Of new sequences: what was last asked for all of them, else the rule."""
        return self._page_blocks or self.rules.page_blocks

    @property
    def rules(self) -> PagingRules:
        return self.registry.rules

    def retune(self, rules: PagingRules) -> None:
        """Go by `rules` from now on; sequences there are keep what they have. Under the lock."""
        self.registry.rules = rules

    # ------------------------------------------------------------------------------------------------ life

    def open(
        self,
        session: Session,
        keys: ListOf[bytes],
        *,
        tokens: int,
        block_tokens: int,
        pool: int,
        page_blocks: int | None = None,
    ) -> OpenReply:
        """A sequence of `tokens` positions in `pool`; `keys` are those of its first full blocks, of which the longest sealed
        prefix is attached. Raises InvalidArgumentError, ResourceExhaustedError beyond the session's limit."""
        self.registry.check_length(tokens)
        if len(keys) > tokens // block_tokens:
            raise InvalidArgumentError(
                "keys", f"{len(keys)} full blocks; {tokens} tokens have {tokens // block_tokens}"
            )
        size = checked_page_blocks(self.page_blocks if page_blocks is None else page_blocks)
        with self._directory.lock:
            self.registry.check_count(session, 1)
            sequence = self.registry.make(session, tokens, block_tokens, pool, size)
            cached = self.sharing.attach(sequence, 0, keys)
        return OpenReply(sequence.id, cached, cached * block_tokens, tokens, size, pool, block_tokens)

    def attach(self, session: Session, number: int, first_block: int, keys: ListOf[bytes]) -> int:
        """Map sealed blocks where nothing is mapped: how many, the longest prefix."""
        with self._directory.lock:
            sequence = self.registry.of(session, number)
            if not 0 <= first_block <= sequence.tokens // sequence.block_tokens - len(keys):
                raise InvalidArgumentError(
                    "first_block", f"{first_block} and {len(keys)} more: {sequence} has no such full blocks"
                )
            return self.sharing.attach(sequence, first_block, keys)

    def extend(self, session: Session, more: ListOf[tuple[int, int]]) -> list[int]:
        """Sequences grow by so many tokens: their new lengths. All grow, or none."""
        with self._directory.lock:
            wanted: dict[int, int] = {}
            for number, tokens in more:
                sequence = self.registry.of(session, number)
                if tokens < 0:
                    raise InvalidArgumentError("tokens", f"{tokens}: a sequence does not become shorter")
                wanted[number] = wanted.get(number, sequence.tokens) + tokens
                self.registry.check_length(wanted[number])
            for number, tokens in wanted.items():
                self.registry.used(self.mappings.sequences[number]).tokens = tokens
            return [wanted[number] for number, _ in more]

    def close(self, session: Session, numbers: ListOf[int], events: Events = NO_EVENTS) -> None:
        """Everything they have is given back; what streams still write to, once their events are done."""
        with self._directory.lock:
            sequences = self.registry.all_of(session, numbers)
            for sequence in sequences:
                self.faults.forget_sequence(sequence, NotFoundError(f"sequence: {sequence.id} was closed meanwhile"))
                for reservation, positions in self.mappings.places(sequence, sequence.backing.blocks(Backed.WRITABLE)):
                    self._migrator.fences.before_abort(reservation, positions, events)
                self._remove(sequence)
        self._migrator.stir()

    def _remove(self, sequence: Sequence) -> None:
        self.sharing.release(sequence)
        self.ahead.forget(sequence)
        self.registry.remove(sequence)

    def forget_session(self, number: int) -> None:
        """The session ends or lapses: its sequences are gone. What they wrote to is the session's reservations' to give back,
        or to quarantine. Under the lock; `stir` follows."""
        self.faults.forget_session(number)
        self._forgotten += self.deferred.forget(number)
        for sequence in [s for s in self.mappings.sequences.values() if s.session.id == number]:
            self.mappings.forget_writable(sequence, sequence.backing.blocks(Backed.WRITABLE))
            sequence.leases.clear()
            self._remove(sequence)

    def publish(
        self,
        session: Session,
        number: int,
        first_block: int,
        keys: ListOf[bytes],
        *,
        parent: bytes = b"",
        checksums: NDArray[np.uint64] | None = None,
        events: Events = NO_EVENTS,
    ) -> Ticket[NDArray[np.uint8]]:
        """Full blocks from `first_block` on get their chain keys: sealed and findable. PublishOutcome of each."""

        def act() -> Ticket[NDArray[np.uint8]]:
            sequence = self.registry.used(self.registry.of(session, number))
            outcomes = self.sharing.publish(sequence, first_block, keys, parent, checksums)
            point("sequence.published")
            return _done(outcomes)

        with self._directory.lock:
            sequence = self.registry.of(session, number)
            full = sequence.tokens // sequence.block_tokens
            if not 0 <= first_block <= full - len(keys):
                raise InvalidArgumentError("first_block", f"{first_block} and {len(keys)} blocks: {full} are full")
            if checksums is not None and len(checksums) != len(keys):
                raise InvalidArgumentError("checksums", f"{len(checksums)} given for {len(keys)} blocks")
            return self.deferred.run(session.id, events, act)

    # ------------------------------------------------------------------------------------------------ fork

    def fork(
        self, session: Session, number: int, count: int = 1, events: Events = NO_EVENTS
    ) -> Ticket[tuple[int, ...]]:
        """`count` sequences that share all the parent has, until one of them writes."""

        def act() -> Ticket[tuple[int, ...]]:
            parent = self.registry.of(session, number)
            self.registry.check_count(session, count)
            self.sharing.seal_for_itself(parent)
            made = tuple(self._fork(parent) for _ in range(count))
            point("sequence.forked")
            return _done(made)

        with self._directory.lock:
            self.registry.of(session, number)
            if count < 1:
                raise InvalidArgumentError("count", f"{count}: at least 1")
            return self.deferred.run(session.id, events, act)

    def _fork(self, parent: Sequence) -> int:
        child = self.registry.make(parent.session, parent.tokens, parent.block_tokens, parent.pool, parent.page_blocks)
        child.suspended = parent.suspended
        self.mappings.clone(parent, child)
        self.registry.used(parent)
        self.figures.forks += 1
        return child.id


def _done(value: T) -> Ticket[T]:
    """A ticket that is finished."""
    answer: Answer[T] = Answer()
    answer.give(value)
    answer.ticket.finish()
    return answer.ticket
