"""Rules of writers: reserve, fill, seal in parts or too late, abort."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hybridkv.migration.reserves import ReserveReply
from hybridkv.tiers.errors import NotFoundError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier
from tests.service.model.base import ModelBase, chains, counts, depths, devices, masks, numbers, requests, tiers
from tests.service.model.records import Waiting, Writing, key_of
from tests.service.model.world import LIFE_S, place_of


class Writers(ModelBase):
    """What writers do."""

    @rule(number=numbers, chain=chains, first=depths, count=counts, tier=tiers, request=requests)
    def write(self, number: int, chain: int, first: int, count: int, tier: Tier | None, request: int | None) -> None:
        """A chain from its head, or a piece of one whose parent may be absent; sealed at once."""
        self.reserve(number, chain, first if number % 3 == 0 else 0, count, tier, None, request, True)

    @rule(
        number=numbers, chain=chains, first=depths, count=counts, tier=tiers, device=devices, request=requests,
        seal=st.booleans(),
    )  # fmt: skip
    def reserve(
        self,
        number: int,
        chain: int,
        first: int,
        count: int,
        tier: Tier | None,
        device: int | None,
        request: int | None,
        seal: bool,
    ) -> None:
        worker = self._worker(number)
        if worker is None:
            return
        keys = self._run(worker.space, chain, first, count)
        parent = key_of(worker.space, chain, first - 1) if first else None
        ticket = self.world.host.reserve(
            worker.session,
            Keys.of(keys),
            parent=parent,
            tier=tier,
            device=device if tier is Tier.GPU else None,
            request=request,
        )
        waiting = Waiting(worker, ticket, keys, self.world.clock.now() + LIFE_S)
        self.world.settle()
        if ticket.done or not self.world.gates.any_held:
            assert ticket.done
            self._granted(waiting, seal)
        else:
            self.world.waiting.append(waiting)

    @rule(number=numbers, chain=chains, other=chains, tier=tiers, again=st.booleans())
    def come_back_too_late(self, number: int, chain: int, other: int, tier: Tier | None, again: bool) -> None:
        """A reservation lapses, others need its room, perhaps its very key; then its owner wants to seal."""
        before = len(self.world.writings)
        self.reserve(number, chain, 0, 6, tier, None, None, False)
        self.world.clock.advance(LIFE_S + 1)
        self.world.tick()
        self.write(number, chain if again else other, 0, 10, tier, None)
        self.world.verify()
        for writing in self.world.writings[before : before + 1]:
            if not writing.worker.lapsed:
                self._seal(writing, sorted(writing.open | writing.haunted)[:4], True)

    @rule(call=st.sampled_from(["seal", "seal", "abort", "late", "take"]), number=numbers, mask=masks)
    def go_on_writing(self, call: str, number: int, mask: int) -> None:
        if call == "take":
            self.take_what_there_is(number, mask % 2 == 0)
        elif (writing := self._writing(number)) is not None:
            chosen = [p for p in sorted(writing.open | writing.haunted) if mask & (1 << p)]
            if call == "seal":
                self._seal(writing, chosen, mask % 3 > 0)
            elif call == "abort":
                self._abort(writing, chosen)
            else:
                self._late_call(writing)

    def take_what_there_is(self, number: int, seal: bool) -> None:
        """The caller of a waiting reservation waits no longer."""
        if self.world.waiting:
            self._granted(self.world.waiting.pop(number % len(self.world.waiting)), seal)

    def _granted(self, waiting: Waiting, seal: bool) -> None:
        try:
            reply = waiting.ticket.reply()
        except ResourceExhaustedError:
            return
        self._check_granted(waiting, reply)
        new = np.flatnonzero(reply.outcomes == ReserveOutcome.NEW).tolist()
        if not new:
            assert reply.reservation == 0
            return
        places = {position: place_of(reply.slots[position]) for position in new}
        writing = Writing(waiting.worker, reply.reservation, waiting.keys, places, waiting.expires_at, open=set(new))
        for position, place in places.items():
            self.world.write(waiting.worker.space, waiting.keys[position], place)
        self.world.writings.append(writing)
        if seal:
            self._seal(writing, sorted(writing.open), True)

    def _check_granted(self, waiting: Waiting, reply: ReserveReply) -> None:
        space = waiting.worker.space
        for key, outcome in zip(waiting.keys, reply.outcomes.tolist(), strict=True):
            if outcome == ReserveOutcome.PRESENT:
                assert (space, key) in self.world.sealed
            if outcome == ReserveOutcome.BEING_WRITTEN:
                others: list[Writing | Waiting] = [*self.world.writings, *self.world.waiting]
                assert any(key in other.keys for other in others)
            if outcome == ReserveOutcome.NEW:
                assert not any(
                    key in self._owned(other) for other in self.world.writings if other.worker.space == space
                )

    def _owned(self, writing: Writing) -> set[bytes]:
        return {writing.keys[position] for position in writing.open}

    def _seal(self, writing: Writing, positions: list[int], checksums: bool) -> None:
        if not positions:
            return
        world, space = self.world, writing.worker.space
        sums = [world.write(space, writing.keys[p], writing.places[p]) for p in positions if not writing.lapsed]
        keys = Keys.of([writing.keys[p] for p in positions])
        found = world.host.lookup(writing.worker.session, keys).states == Outcome.HIT
        outcomes = world.host.seal(
            writing.worker.session,
            writing.reservation,
            np.array(positions),
            np.array(sums, np.uint64) if checksums and not writing.lapsed else None,
        )
        if writing.lapsed:
            late = np.where(found, SealOutcome.ALREADY_SEALED, SealOutcome.EXPIRED)
            assert outcomes.tolist() == late.tolist()
            writing.haunted -= set(positions)
        else:
            assert (outcomes == SealOutcome.SEALED).all()
            assert not found.any()
            world.sealed |= {(space, writing.keys[p]) for p in positions}
            writing.open -= set(positions)
        self._forget_if_over(writing)
        world.settle()

    def _abort(self, writing: Writing, chosen: list[int]) -> None:
        if chosen:
            self.world.host.abort(writing.worker.session, writing.reservation, np.array(chosen))
            writing.open -= set(chosen)
            writing.haunted -= set(chosen)
            self._forget_if_over(writing)
            self.world.settle()

    def _late_call(self, writing: Writing) -> None:
        """A reservation that lapsed without a mapping: its owner is told, and that is all."""
        if writing.lapsed and not writing.haunted:
            outcomes = self.world.host.seal(writing.worker.session, writing.reservation, None, None)
            assert not (outcomes == SealOutcome.SEALED).any()
            self.world.writings.remove(writing)

    def _forget_if_over(self, writing: Writing) -> None:
        if not writing.open and not writing.haunted:
            self.world.writings.remove(writing)
            with pytest.raises(NotFoundError):
                self.world.host.seal(writing.worker.session, writing.reservation, None, None)
