"""Rules of readers: acquire with and without waiting, ask again, renew, release in time or too late."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hybridkv.migration.acquires import AcquireReply
from hybridkv.tiers.errors import ExpiredError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier
from tests.service.model.base import ModelBase, chains, counts, depths, devices, numbers, requests, tiers
from tests.service.model.records import Reading, Writing
from tests.service.model.world import LIFE_S, place_of


class Readers(ModelBase):
    """What readers do."""

    @rule(number=numbers, chain=chains, count=counts, tier=tiers)
    def read_and_release(self, number: int, chain: int, count: int, tier: Tier | None) -> None:
        self.acquire(number, chain, 0, count, tier, None, True, False, None, False)

    @rule(number=numbers, chain=chains, count=counts, tier=tiers, request=requests)
    def read_and_keep(self, number: int, chain: int, count: int, tier: Tier | None, request: int | None) -> None:
        self.acquire(number, chain, 0, count, tier, None, number % 3 > 0, False, request, True)

    @rule(
        number=numbers, chain=chains, first=depths, count=counts, tier=tiers, device=devices, views=st.booleans(),
        independent=st.booleans(), request=requests, keep=st.booleans(),
    )  # fmt: skip
    def acquire(
        self,
        number: int,
        chain: int,
        first: int,
        count: int,
        tier: Tier | None,
        device: int | None,
        views: bool,
        independent: bool,
        request: int | None,
        keep: bool,
    ) -> None:
        worker = self._worker(number)
        if worker is None:
            return
        keys = self._run(worker.space, chain, first, count)
        ticket = self.world.host.acquire(
            worker.session,
            Keys.of(keys),
            tier=tier,
            device=device if tier is Tier.GPU else None,
            views=views,
            independent=independent,
            request=request,
        )
        self.world.settle()
        assert ticket.done or self.world.gates.any_held
        try:
            reply = ticket.reply()
        except ResourceExhaustedError:
            return
        reading = Reading(worker, reply.lease, keys, views, self.world.clock.now() + LIFE_S)
        self._note_landed(reading, reply, tier)
        self.world.readings.append(reading)
        if not keep:
            self._release(reading)

    def _note_landed(self, reading: Reading, reply: AcquireReply, tier: Tier | None = None) -> None:
        """What is HIT was sealed, lies where it lay before, and its bytes are the key's."""
        if not self.world.gates.any_held:
            assert not (reply.states == Outcome.PENDING).any()
        for position in np.flatnonzero(reply.states == Outcome.HIT).tolist():
            place = place_of(reply.slots[position])
            assert reading.places.setdefault(position, place) == place, "law 4: a leased copy moved"
            assert self.world.holds_bytes(reading.worker.space, reading.keys[position], place)
            if tier is not None:
                assert (place[0] == self.world.gpus) == (tier is Tier.CPU)
                assert (reading.worker.space, reading.keys[position]) in self.world.sealed

    @rule(call=st.sampled_from(["release", "again", "renew"]), number=numbers)
    def go_on_reading(self, call: str, number: int) -> None:
        if call == "renew":
            self._renew_all(number)
        elif (reading := self._reading(number)) is not None:
            self._release(reading) if call == "release" else self._ask_again(reading)

    def _ask_again(self, reading: Reading) -> None:
        ticket = self.world.host.acquire(reading.worker.session, Keys.of([], 16), lease=reading.lease)
        try:
            reply = ticket.reply()
        except ResourceExhaustedError:
            self.world.readings.remove(reading)
            return
        if reading.lapsed:
            assert (reply.states == Outcome.MISS).all()
        else:
            self._note_landed(reading, reply)

    def _release(self, reading: Reading) -> None:
        if reading.lapsed:
            with pytest.raises(ExpiredError):
                self.world.host.release(reading.worker.session, reading.lease)
        else:
            self.world.host.release(reading.worker.session, reading.lease)
        self.world.readings.remove(reading)
        self.world.settle()

    def _renew_all(self, number: int) -> None:
        """One session renews everything it holds."""
        worker = self._worker(number)
        if worker is None:
            return
        readings = [r for r in self.world.readings if r.worker is worker]
        writings = [w for w in self.world.writings if w.worker is worker]
        holds: list[Reading | Writing] = [*readings, *writings]
        numbers = [r.lease for r in readings] + [w.reservation for w in writings]
        alive = self.world.host.renew(worker.session, numbers, [1, 2])
        assert alive[: len(holds)] == [not hold.lapsed for hold in holds]
        for hold in holds:
            hold.expires_at = self.world.clock.now() + LIFE_S
        # A lapsed lease is over once its owner heard of it.
        self.world.readings = [r for r in self.world.readings if r.worker is not worker or not r.lapsed]
