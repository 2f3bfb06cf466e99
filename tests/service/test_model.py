"""The host, whole and real, against a plain dictionary: whatever workers do, whatever is held back, the laws hold.

`HYBRIDKV_TEST_MODEL_EXAMPLES` and `HYBRIDKV_TEST_MODEL_STEPS` make it look further than the suite has time for, and
then with new random choices on each run.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier
from tests.service.model.base import chains, counts, depths, moments, numbers, tiers
from tests.service.model.readers import Readers
from tests.service.model.records import Worker
from tests.service.model.world import PID, SPACES, World
from tests.service.model.writers import Writers

pytestmark = pytest.mark.timeout(1800 if os.environ.get("HYBRIDKV_TEST_MODEL_EXAMPLES") else 400)  # a busy machine

_EXAMPLES = int(os.environ.get("HYBRIDKV_TEST_MODEL_EXAMPLES", "0"))
_STEPS = int(os.environ.get("HYBRIDKV_TEST_MODEL_STEPS", "40"))


class HostModel(Writers, Readers):
    """Sessions, hints, time, and lanes that stand still; writers and readers have files of their own."""

    @initialize(gpus=st.sampled_from([1, 2]), filled=st.sampled_from([4, 5, 2, 0]))
    def start(self, gpus: int, filled: int) -> None:
        self.world = World(gpus)
        self.attach(0, True)
        self.attach(1, True)
        for chain in range(filled):
            for space in range(len(SPACES)):
                self.reserve(space, chain, 0, 10, None, None, None, True)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.verify()

    # ------------------------------------------------------------------------------------------------ sessions

    @rule(change=st.sampled_from(["attach", "break", "detach", "die"]), number=numbers, maps=st.booleans())
    def change_sessions(self, change: str, number: int, maps: bool) -> None:
        if change == "attach":
            self.attach(number % len(SPACES), maps)
        elif change == "die" and self.world.workers:
            # A process is proved gone, whatever state its session is in.
            self._end(self.world.workers[number % len(self.world.workers)])
        elif (worker := self._worker(number)) is not None:
            self._end(worker) if change == "detach" else self._break(worker)

    def attach(self, space: int, maps: bool) -> None:
        if sum(not worker.lapsed for worker in self.world.workers) < 6:
            attached = self.world.host.attach(SPACES[space])
            if maps:
                self.world.host.on_mapped(attached.session, PID)
            self.world.workers.append(Worker(attached.session, space, maps))

    def _end(self, worker: Worker) -> None:
        host = self.world.host
        host.on_gone(worker.session) if worker.lapsed else host.detach(worker.session)
        self.world.forget(worker)
        self.world.workers.remove(worker)
        self.world.settle()

    def _break(self, worker: Worker) -> None:
        if worker.broken_at is None:
            self.world.host.stream_broken(worker.session)
            worker.broken_at = self.world.clock.now()

    # ------------------------------------------------------------------------------------------------ moving

    @rule(
        hint=st.sampled_from(["prefetch", "touch", "end_request"]), number=numbers, chain=chains, count=counts,
        tier=tiers, twice=st.booleans(),
    )  # fmt: skip
    def hint(self, hint: str, number: int, chain: int, count: int, tier: Tier | None, twice: bool) -> None:
        worker, host = self._worker(number), self.world.host
        if worker is None:
            return
        keys = self._run(worker.space, chain, 0, count)
        found = host.lookup(worker.session, Keys.of(keys)).states == Outcome.HIT
        if hint == "prefetch":
            host.prefetch(worker.session, Keys.of(keys + keys[:1] if twice else keys), tier=tier)
        elif hint == "touch":
            assert host.touch(worker.session, Keys.of(keys)) == int(found.sum())
        else:
            host.end_request(worker.session, 1 + count % 2)
        self.world.settle()

    @rule(number=numbers, chain=chains, first=depths, count=counts)
    def remove(self, number: int, chain: int, first: int, count: int) -> None:
        if (worker := self._worker(number)) is None:
            return
        keys = self._run(worker.space, chain, first, count)
        found = self.world.host.lookup(worker.session, Keys.of(keys)).states == Outcome.HIT
        assert self.world.host.remove(worker.session, Keys.of(keys)) == int(found.sum())
        self.world.sealed -= {(worker.space, key) for key in keys}
        if number == 1:  # seldom: an emptied host finds little
            self.world.host.clear(SPACES[worker.space].fingerprint)
            self.world.sealed = {(space, key) for space, key in self.world.sealed if space != worker.space}
        self.world.settle()

    @rule(
        lane=st.sampled_from([0, 0, 2, 4, 4, -2, -3, -5]), at=moments, number=numbers, chain=chains, other=chains,
        count=counts, tier=tiers, meanwhile=st.sampled_from(["read", "read", "remove", "lapse", "die", "write"]),
    )  # fmt: skip
    def overtake(
        self, lane: int, at: HoldAt, number: int, chain: int, other: int, count: int, tier: Tier | None, meanwhile: str
    ) -> None:
        """Blocks are on their way, in a lane that stands, when something happens to them; then the lane goes on.

        Lanes: 0 down from the device, 2 up to it, 4 within it; from the end: up from the disk, down to it, within CPU.
        """
        self.world.gates.hold(lane, at)
        self.write(number, chain, 0, 10, tier, None)
        self.read_and_keep(number, chain, 10, tier, None) if lane in (2, -2) else None
        if meanwhile == "read":
            # Within a pool it is the other layout's blocks that move, to make room for this one's.
            self.read_and_keep(number + (lane in (4, -5)), other, max(count, 8), tier, None)
        elif meanwhile == "remove":
            self.remove(number, other, 0, count)
        elif meanwhile == "write":
            self.write(number + 1, other, 0, count, tier, None)
        elif meanwhile == "lapse":
            self.time_passes(31.0)
        else:
            self.change_sessions("die", number, True)
            self.attach(number % len(SPACES), True)
        self.world.verify()
        self.world.gates.release(lane)
        self.world.settle()

    @rule(number=numbers, chain=chains, other=chains, tier=tiers, lapse=st.booleans())
    def want_the_room_of_what_is_read(
        self, number: int, chain: int, other: int, tier: Tier | None, lapse: bool
    ) -> None:
        """Blocks are removed under their readers, who hold them, or held them until just now; others need the room."""
        self.read_and_keep(number, chain, 10, tier, None)
        if lapse:
            self.time_passes(31.0)
        self.remove(number, chain, 0, 10)
        self.write(number, other, 0, 10, tier, None)

    @rule(seconds=st.sampled_from([0.5, 6.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.tick()
        self.world.settle()

    @rule(call=st.sampled_from(["hold", "hold", "release", "release_all", "fail"]), number=numbers, at=moments)
    def hold_back(self, call: str, number: int, at: HoldAt) -> None:
        gates = self.world.gates
        if call == "hold":
            gates.hold(number, at)
        elif call == "fail":
            gates.fail_next(number)
        else:
            gates.release_all() if call == "release_all" else gates.release(number)
            self.world.settle()


TestHostModel = HostModel.TestCase
TestHostModel.settings = settings(
    max_examples=_EXAMPLES or 30,
    stateful_step_count=_STEPS,
    derandomize=not _EXAMPLES,
    # A failure is shown as it was found: a call that waits for ever is not to be provoked hundreds of times.
    phases=(Phase.explicit, Phase.generate),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
