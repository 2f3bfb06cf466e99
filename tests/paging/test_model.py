"""Sequences on a real host against plain dictionaries: whatever workers do, whatever is held back, no byte is wrong.

`HYBRIDKV_TEST_MODEL_EXAMPLES` and `HYBRIDKV_TEST_MODEL_STEPS` make it look further than the suite has time for, and
then with new random choices on each run.
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from hybridkv.paging.replies import Want
from hybridkv.paging.states import PageState, PublishOutcome
from hybridkv.paging.windows import Window
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import ReserveOutcome, Tier
from tests.paging.model.records import (
    CHAINS,
    DEPTH,
    TOKENS,
    Held,
    Pending,
    Space,
    Worker,
    content_of,
    key_of,
    stamp_of,
)
from tests.paging.model.world import LIFE_S, NAMESPACE, PID, World

pytestmark = pytest.mark.timeout(1800 if os.environ.get("HYBRIDKV_TEST_MODEL_EXAMPLES") else 300)  # a busy machine

_EXAMPLES = int(os.environ.get("HYBRIDKV_TEST_MODEL_EXAMPLES", "0"))
_STEPS = int(os.environ.get("HYBRIDKV_TEST_MODEL_STEPS", "40"))

# Choices never depend on what the host did: lanes are threads, and an example must be the same when it is run again.
numbers = st.integers(0, 63)
firsts = st.integers(0, DEPTH - 1)
counts = st.integers(1, 6)
moments = st.sampled_from(list(HoldAt))
sizes = st.sampled_from([1, 1, 2, 4])


class PagingModel(RuleBasedStateMachine):
    """Rules that find nothing to act on do nothing."""

    world: World

    @initialize(roomy=st.booleans(), disk=st.booleans())
    def start(self, roomy: bool, disk: bool) -> None:
        self.world = World(roomy, disk)
        for chain in (0, 1):
            self.attach()
            self.open(chain, chain, DEPTH, 1)
            self.write(chain, 0, 6, True, False)
            self.publish(chain, 0, 4)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.collect()
            self.world.verify()

    # ------------------------------------------------------------------------------------------------ workers

    def attach(self) -> None:
        host = self.world.host
        attached = host.attach(NAMESPACE)
        host.on_mapped(attached.session, PID)
        self.world.workers.append(Worker(attached.session))

    @rule(change=st.sampled_from(["attach", "break", "detach", "die"]), number=numbers)
    def change_workers(self, change: str, number: int) -> None:
        workers = self.world.workers
        if change == "attach" or not workers:
            if len(workers) < 3:
                self.attach()
            return
        worker = workers[number % len(workers)]
        if change == "break" and worker.broken_at is None:
            self._note_haunted(worker)
            self.world.host.stream_broken(worker.session)
            worker.broken_at = self.world.clock.now()
        elif change == "die" or (change == "detach" and worker.broken_at is None):
            self.world.host.on_gone(worker.session) if change == "die" else self.world.host.detach(worker.session)
            self.world.forget(worker)
            self.world.settle()

    def _note_haunted(self, worker: Worker) -> None:
        """Where it writes now, it goes on writing when it has lapsed."""
        for space in [space for space in self.world.spaces if space.worker is worker and space.blocks]:
            states, slots = self.world.look(space, list(range(space.blocks)))
            for state, slot in zip(states, slots, strict=True):
                if state == PageState.WRITABLE:
                    worker.haunted.append((int(slot["pool"]), int(slot["offset"])))
        self.world.spaces = [space for space in self.world.spaces if space.worker is not worker]

    def _worker(self, number: int) -> Worker | None:
        live = [worker for worker in self.world.workers if worker.broken_at is None]
        return live[number % len(live)] if live else None

    def _space(self, number: int) -> Space | None:
        return self.world.spaces[number % len(self.world.spaces)] if self.world.spaces else None

    # ------------------------------------------------------------------------------------------------ life

    @rule(number=numbers, chain=st.integers(0, CHAINS - 1), blocks=st.integers(0, DEPTH), size=sizes)
    def open(self, number: int, chain: int, blocks: int, size: int) -> None:
        worker = self._worker(number)
        if worker is None or len(self.world.spaces) >= 8:
            return
        keys = [key_of(chain, depth) for depth in range(blocks)]
        reply = self.world.host.sequences.open(
            worker.session, Keys.of(keys, 16), tokens=blocks * TOKENS, page_blocks=size
        )
        stamps = {depth: stamp_of(chain, depth) for depth in range(reply.cached_blocks)}
        self.world.spaces.append(Space(reply.sequence, worker, chain, blocks * TOKENS, stamps))

    @rule(number=numbers, tokens=st.integers(1, 3 * TOKENS))
    def extend(self, number: int, tokens: int) -> None:
        space = self._space(number)
        if space is not None and space.tokens + tokens <= DEPTH * TOKENS:
            more = [(space.number, tokens)]
            space.tokens += tokens
            assert self.world.host.sequences.extend(space.worker.session, more) == [space.tokens]

    @rule(number=numbers)
    def close(self, number: int) -> None:
        if (space := self._space(number)) is not None:
            self.world.host.sequences.close(space.worker.session, [space.number])
            self.world.drop(space)
            self.world.settle()

    @rule(number=numbers, count=st.integers(1, 2))
    def fork(self, number: int, count: int) -> None:
        space = self._space(number)
        if space is None or len(self.world.spaces) + count > 8:
            return
        self.world.collect()
        children = self.world.host.sequences.fork(space.worker.session, space.number, count).reply()
        for child in children:
            self.world.spaces.append(Space(child, space.worker, space.chain, space.tokens, dict(space.stamps)))

    # ------------------------------------------------------------------------------------------------ pages

    @rule(number=numbers, first=firsts, count=counts, chained=st.booleans(), patient=st.booleans())
    def write(self, number: int, first: int, count: int, chained: bool, patient: bool) -> None:
        space = self._space(number)
        blocks = [] if space is None else list(range(first, min(space.blocks, first + count)))
        if space is None or not blocks:
            return
        stamps = [stamp_of(space.chain, b) if chained else self.world.fresh_stamp() for b in blocks]
        self._fault(space, blocks, stamps, patient, hold=False)

    @rule(number=numbers, first=firsts, count=counts, patient=st.booleans(), hold=st.booleans())
    def read(self, number: int, first: int, count: int, patient: bool, hold: bool) -> None:
        space = self._space(number)
        blocks = [] if space is None else list(range(first, min(space.blocks, first + count)))
        if space is not None and blocks:
            self._fault(space, blocks, None, patient, hold)

    def _fault(self, space: Space, blocks: list[int], stamps: list[int] | None, patient: bool, hold: bool) -> None:
        before, host = dict(space.stamps), self.world.host
        want = Want(space.number, np.array(blocks, np.int64), stamps is not None)
        try:
            ticket = host.sequences.fault(space.worker.session, [want], hold=hold)
        except ResourceExhaustedError:
            self.world.verify()
            return
        pending = Pending(space, ticket, blocks, stamps)
        self.world.settle()
        if not ticket.done and patient:
            self.world.pending.append(pending)
            return
        try:
            reply = ticket.reply()
        except DeadlineExceededError:
            assert self.world.standing
            return
        except HybridKVError:
            return
        self._check_reply(space, blocks, reply.states.tolist(), before, stamps is not None)
        self.world.fill(pending)
        if reply.leases[0]:
            self._note_held(space, blocks, reply.states.tolist(), reply.slots, reply.leases[0])

    def _check_reply(
        self, space: Space, blocks: list[int], states: list[int], before: dict[int, int], write: bool
    ) -> None:
        for block, state in zip(blocks, states, strict=True):
            if write:
                assert state in (PageState.WRITABLE, PageState.FRESH), PageState(state)
                if state == PageState.FRESH:
                    space.stamps.pop(block, None)
            else:
                assert state != PageState.FRESH
                assert state != PageState.UNMAPPED or block not in before

    def _note_held(
        self, space: Space, blocks: list[int], states: list[int], slots: NDArray[np.void], lease: int
    ) -> None:
        places = [
            ((int(slot["pool"]), int(slot["offset"])), space.stamps[block])
            for block, state, slot in zip(blocks, states, slots, strict=True)
            if state == PageState.READABLE and block in space.stamps
        ]
        self.world.held.append(Held(space, lease, places, self.world.clock.now() + LIFE_S))

    @rule(number=numbers)
    def release(self, number: int) -> None:
        if self.world.held:
            held = self.world.held.pop(number % len(self.world.held))
            self.world.host.release(held.space.worker.session, held.lease)
            self.world.settle()

    @rule(number=numbers, first=firsts, count=counts)
    def publish(self, number: int, first: int, count: int) -> None:
        space = self._space(number)
        if space is None:
            return
        self.world.collect()
        last = min(space.tokens // TOKENS, first + count)
        right = all(space.stamps.get(b) == stamp_of(space.chain, b) for b in range(first, last))
        if first >= last or not right:
            return
        keys = Keys.of([key_of(space.chain, depth) for depth in range(first, last)])
        parent = key_of(space.chain, first - 1) if first else b""
        ticket = self.world.host.sequences.publish(space.worker.session, space.number, first, keys, parent=parent)
        outcomes = ticket.reply().tolist()
        # Of what is sealed already, some may have been lost since the model looked last.
        ours = [outcome for block, outcome in zip(range(first, last), outcomes, strict=True) if block in space.writable]
        assert PublishOutcome.NOT_WRITABLE not in ours

    # ------------------------------------------------------------------------------------------------ moving

    @rule(number=numbers, again=st.booleans())
    def suspend(self, number: int, again: bool) -> None:
        space = self._space(number)
        if space is None:
            return
        self.world.held = [held for held in self.world.held if held.space is not space]
        self.world.host.sequences.suspend(space.worker.session, [space.number])
        self.world.settle()
        if again:
            self.world.verify()
            self.resume(number)

    @rule(number=numbers)
    def resume(self, number: int) -> None:
        if (space := self._space(number)) is None:
            return
        try:
            ticket = self.world.host.sequences.resume(space.worker.session, [space.number])
            self.world.settle()
            ticket.reply()
        except HybridKVError:
            return

    @rule(number=numbers, size=sizes, whole=st.booleans())
    def resize(self, number: int, size: int, whole: bool) -> None:
        space, calls = self._space(number), self.world.host.sequences
        if whole:
            calls.adjust_page_size(size)
        elif space is not None:
            calls.adjust_page_size(size, session=space.worker.session, sequence=space.number)
        self.world.settle()

    @rule(number=numbers, first=firsts, count=counts, sticky=st.booleans())
    def stick(self, number: int, first: int, count: int, sticky: bool) -> None:
        space = self._space(number)
        if space is None or first + count > space.blocks:
            return
        try:
            self.world.host.sequences.set_sticky(space.worker.session, space.number, first, count, sticky)
        except HybridKVError:
            return

    @rule(number=numbers, position=st.integers(0, DEPTH * TOKENS), tokens=st.sampled_from([0, 20, 40]))
    def advance(self, number: int, position: int, tokens: int) -> None:
        space = self._space(number)
        if space is not None:
            window = Window(tokens, sink_tokens=8, ahead_tokens=32) if tokens else None
            at = min(position, space.tokens)
            self.world.host.sequences.advance(space.worker.session, space.number, at, window)
            self.world.settle()

    @rule(number=numbers, count=st.integers(1, 16), tier=st.sampled_from([Tier.GPU, Tier.CPU]))
    def press(self, number: int, count: int, tier: Tier) -> None:
        """Other blocks need room."""
        worker, host = self._worker(number), self.world.host
        if worker is None:
            return
        stamps = [self.world.fresh_stamp() for _ in range(count)]
        keys = Keys.of([content_of(stamp)[:16].tobytes() for stamp in stamps])
        ticket = host.reserve(worker.session, keys, tier=tier)
        self.world.settle()
        try:
            reply = ticket.reply()
        except ResourceExhaustedError:
            return
        new = np.flatnonzero(reply.outcomes == ReserveOutcome.NEW)
        for i in new.tolist():
            slot = reply.slots[i]
            self.world.bytes_at((int(slot["pool"]), int(slot["offset"])))[:] = content_of(stamps[i])
        if len(new):
            host.seal(worker.session, reply.reservation, new, None)
        self.world.settle()

    @rule(number=numbers)
    def remove(self, number: int) -> None:
        """Somebody removes published blocks while sequences map them."""
        worker = self._worker(number)
        if worker is not None and number % 4 == 0:
            keys = Keys.of([key_of(number % CHAINS, depth) for depth in range(number % DEPTH + 1)])
            self.world.host.remove(worker.session, keys)
            self.world.settle()

    @rule(seconds=st.sampled_from([0.5, 6.0, 21.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.tick()
        self.world.settle()

    @rule(what=st.sampled_from(["lane", "lane", "copies", "release", "release"]), number=numbers, at=moments)
    def hold_back(self, what: str, number: int, at: HoldAt) -> None:
        if what == "lane":
            self.world.gates.hold(number, at)
        elif what == "copies":
            self.world.hold_copies(at)
        else:
            self.world.release_all()
            self.world.settle()
            assert not self.world.pending


TestPagingModel = PagingModel.TestCase
TestPagingModel.settings = settings(
    max_examples=_EXAMPLES or 25,
    stateful_step_count=_STEPS,
    derandomize=not _EXAMPLES,
    # A failure is shown as it was found: a call that waits for ever is not to be provoked hundreds of times.
    phases=(Phase.explicit, Phase.generate),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
