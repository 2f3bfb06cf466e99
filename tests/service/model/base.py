"""What all rules of the model share: the choices they are given, and how a number becomes a worker or a hold."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.states import Tier
from tests.service.model.records import CHAINS, DEPTH, Reading, Worker, Writing, key_of
from tests.service.model.world import World

# Choices never depend on what the host did: lanes are threads, and an example must be the same when it is run again.
numbers = st.integers(0, 63)
chains = st.integers(0, CHAINS - 1)
depths = st.integers(0, DEPTH - 1)
counts = st.integers(1, 10)
tiers = st.sampled_from([None, Tier.GPU, Tier.CPU])
devices = st.sampled_from([None, 0])
requests = st.sampled_from([None, None, 1, 2])
masks = st.integers(0, 1023)
moments = st.sampled_from(list(HoldAt))


class ModelBase(RuleBasedStateMachine):
    """Rules that find nothing to act on do nothing."""

    world: World

    def _worker(self, number: int) -> Worker | None:
        live = [w for w in self.world.workers if not w.lapsed]
        return live[number % len(live)] if live else None

    def _writing(self, number: int) -> Writing | None:
        mine = [w for w in self.world.writings if not w.worker.lapsed]
        return mine[number % len(mine)] if mine else None

    def _reading(self, number: int) -> Reading | None:
        mine = [r for r in self.world.readings if not r.worker.lapsed]
        return mine[number % len(mine)] if mine else None

    def _run(self, space: int, chain: int, first: int, count: int) -> list[bytes]:
        return [key_of(space, chain, depth) for depth in range(first, min(DEPTH, first + count))]
