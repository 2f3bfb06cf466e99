"""Transfers that take longer than leases live: who asked may be gone, nobody else gets the slots before the copy has ended."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.service.client.aio import connect_async
from hybridkv.service.client.lease import Lease
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.device.gate import HoldAt
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.errors import ExpiredError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, Tier
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, content, make_config, make_space

BLOCKS = 16
PATIENCE_S = 20.0


class Scene:
    """A daemon with a device whose copies can be held back, and a client of it."""

    def __init__(self, daemon: DaemonThread, clock: ManualClock) -> None:
        self.host = daemon.host
        self.address = daemon.address
        self.clock = clock
        self.kv = connect(daemon.address, make_space(), timeout_s=PATIENCE_S)
        self.other = connect(daemon.address, make_space(), timeout_s=PATIENCE_S)

    def stream(self, lane: str) -> HostStream:
        streams = self.host.memory.devices[0].streams  # type: ignore[attr-defined]
        return next(stream for stream in streams if stream.name.endswith(f"/{lane}"))  # type: ignore[no-any-return]

    def put(self, kv: KV, keys: Keys, tier: str) -> int:
        """Write and publish as many of the keys as find room: how many."""
        try:
            with kv.reserve(keys, tier=tier, timeout_s=0.2) as slots:
                for i in slots.new:
                    slots.array(i)[:] = content(keys[i])
                slots.seal()
                return len(slots.new)
        except ResourceExhaustedError:
            return 0

    def let_leases_lapse(self) -> None:
        self.clock.advance(self.host.config.daemon.lease_s + 1)
        self.host.tick()

    def check(self, keys: Keys) -> int:
        """Whatever of the keys is served is what was written: how many."""
        out = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
        found = np.flatnonzero(self.other.read(keys, out) == Outcome.HIT)
        check_content(keys.at(found), out[found])
        assert self.host.check() == []
        return len(found)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    clock = ManualClock()
    config = make_config(
        tmp_path,
        cpu__capacity_bytes=BLOCKS * BLOCK_BYTES,
        gpu__devices=("host:0",),
        gpu__capacity_bytes=BLOCKS * BLOCK_BYTES,
        migration__chain_prefetch_max_blocks=0,
    )
    with DaemonThread(config, make_host=lambda given: Host(given, clock=clock, start_loop=False)) as daemon:
        made = Scene(daemon, clock)
        try:
            yield made
            assert made.host.migrator.quiesce(PATIENCE_S)
            assert made.host.check() == []
        finally:
            for stream in made.host.memory.devices[0].streams:  # type: ignore[attr-defined]
                stream.release_held()
            made.kv.close()
            made.other.close()


@pytest.mark.parametrize("at", list(HoldAt))
def test_lease_outlives_slow_transfer(scene: Scene, at: HoldAt) -> None:
    """A copy on demand takes longer than the lease that asked for it. Its destination is nobody's meanwhile: others fill the
    tier around it, and it lands where it was to land, or nowhere."""
    keys = chain_of(scene.kv, 2)
    assert scene.put(scene.kv, keys, "gpu") == 2
    stream = scene.stream("gpu0-cpu.demand")
    stream.hold(at)
    taken: list[Lease] = []
    asking = threading.Thread(target=lambda: taken.append(scene.kv.acquire(keys, tier="cpu", timeout_s=PATIENCE_S)))
    asking.start()
    assert stream.wait_held(PATIENCE_S)
    scene.let_leases_lapse()
    asking.join(PATIENCE_S)
    assert taken[0].states.tolist() == [Outcome.MISS] * 2, "the answer does not wait for a copy whose lease is over"
    under_way = len(scene.host.directory.state.transfers)  # what had not begun, nobody wants any more
    assert under_way in (1, 2)
    others = chain_of(scene.other, BLOCKS, first_token=9_000)
    assert scene.put(scene.other, others, "cpu") == BLOCKS - under_way
    stream.release_held()
    assert scene.host.migrator.quiesce(PATIENCE_S)
    assert scene.check(others) == BLOCKS - under_way
    assert scene.check(keys) == 2
    taken[0].release()


def test_a_lapsed_lease_on_the_source_of_a_copy_is_reported_and_its_slot_is_nobodys(scene: Scene) -> None:
    """A reader's view lapses while its block is being moved away. The slot it may still look at is not written again before
    the reader says that it looks no more; then it is told that what it read may be wrong."""
    keys = chain_of(scene.kv, 2)
    assert scene.put(scene.kv, keys, "cpu") == 2
    lease = scene.kv.acquire(keys, tier="cpu")
    views = [lease.array(i) for i in range(2)]
    scene.let_leases_lapse()
    others = chain_of(scene.other, BLOCKS, first_token=9_000)
    put = scene.put(scene.other, others, "cpu")
    assert put == BLOCKS - 2
    check_content(keys, np.stack(views))
    with pytest.raises(ExpiredError):
        scene.host.release(scene.kv.session, lease.hold_id)
    assert scene.put(scene.other, chain_of(scene.other, 2, first_token=20_000), "cpu") == 2
    assert scene.check(others) >= put - 2
    assert scene.kv.lookup(keys).tiers.tolist() != [Tier.CPU] * 2


def test_who_stops_waiting_for_the_rest_of_a_lease_keeps_what_it_has(scene: Scene) -> None:
    """A block is there and leased, the next one is on its way for longer than the caller waits: the call is cancelled, and
    the lease that the first answer told of stays."""
    keys = chain_of(scene.kv, 2)
    assert scene.put(scene.kv, keys, "gpu") == 2
    with scene.other.acquire(keys[:1], tier="cpu", timeout_s=PATIENCE_S) as first:
        assert first.prefix == 1
    stream = scene.stream("gpu0-cpu.demand")
    stream.hold()

    async def scenario() -> None:
        async with connect_async(scene.address, make_space(), timeout_s=PATIENCE_S) as kv:
            async with kv.acquire(keys, tier="cpu") as lease:
                assert lease.states.tolist() == [Outcome.HIT, Outcome.PENDING]
                view = lease.array(0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(lease.wait(PATIENCE_S), 0.05)
                scene.other.remove(keys[:1])
                await asyncio.to_thread(scene.put, scene.other, chain_of(scene.other, BLOCKS, first_token=9_000), "cpu")
                check_content(keys[:1], view[None])
                stream.release_held()
                assert (await lease.wait(PATIENCE_S)).tolist() == [Outcome.HIT] * 2
                check_content(keys, np.stack([lease.array(i) for i in range(2)]))

    asyncio.run(asyncio.wait_for(scenario(), 3 * PATIENCE_S))
