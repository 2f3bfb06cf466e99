"""Chain prefetch: what followed before comes up before it is asked for, and how far ahead is learned."""

from collections.abc import Callable

from hybridkv.tiers.directory.speculation import FIRST_REACH
from hybridkv.tiers.states import Reason, Tier
from tests.migration.hosts import BLOCK, HIT, MISS, Rig, key

MakeHost = Callable[..., Rig]


def ahead(make_host: MakeHost, *, most: int = 8, **how: object) -> Rig:
    """Chain 1…12 on the CPU; the device is empty and has slots."""
    rig = make_host(migration__chain_prefetch_max_blocks=most, **how)
    rig.worker.write(range(1, 13), tier=Tier.CPU)
    gpu = rig.directory.state.mapped(rig.pool("gpu0"))
    with rig.directory.lock:
        rig.migrator.reclaim.carve_for(gpu, BLOCK, gpu.capacity_slots(BLOCK))
    rig.migrator.carver.idle()
    return rig


def read_up(rig: Rig, *numbers: int) -> None:
    states = rig.worker.read(numbers, tier=Tier.GPU, independent=False)
    assert states == [HIT] * len(numbers)
    rig.settle()


def reach(rig: Rig) -> int:
    return rig.directory.state.speculation.reach(0)


def test_what_followed_before_is_fetched(make_host: MakeHost) -> None:
    rig = ahead(make_host)
    read_up(rig, 1, 2)
    assert rig.inside("gpu0") == {1, 2, 3, 4, 5, 6}
    assert rig.counter("chain_prefetched") == FIRST_REACH == 4
    assert rig.moves(reason="prefetch", target="gpu0") == {"done": 4}


def test_the_branch_that_was_used_last_is_followed(make_host: MakeHost) -> None:
    rig = ahead(make_host, most=1)
    rig.worker.write([21], tier=Tier.CPU, parent=key(2))
    read_up(rig, 2)
    assert rig.inside("gpu0") == {2, 21}, "the newest child"
    rig.worker.touch([3])
    rig.lower("gpu0", [21, 2])
    rig.settle()
    read_up(rig, 2)
    assert rig.inside("gpu0") == {2, 3}, "the child used last"


def test_a_chain_that_left_the_known_ones_is_not_followed(make_host: MakeHost) -> None:
    rig = ahead(make_host)
    assert rig.worker.read([1, 2, 77], tier=Tier.GPU, independent=False) == [HIT, HIT, MISS]
    assert rig.worker.read([1, 2], tier=Tier.GPU) == [HIT, HIT], "independent keys are no chain"
    rig.settle()
    assert rig.inside("gpu0") == {1, 2}


def test_off_means_off(make_host: MakeHost) -> None:
    rig = ahead(make_host, most=0)
    read_up(rig, 1)
    assert rig.inside("gpu0") == {1}
    assert rig.counter("chain_prefetched") == 0


def test_a_guess_that_is_used_reaches_further_and_one_that_is_not_less_far(make_host: MakeHost) -> None:
    rig = ahead(make_host)
    read_up(rig, 1)
    read_up(rig, 2, 3)
    assert rig.counter("chain_prefetch_used") == 2
    assert reach(rig) == 6
    wasted = sorted(rig.inside("gpu0") - {1, 2, 3}, reverse=True)
    rig.lower("gpu0", wasted)
    rig.settle()
    assert rig.counter("chain_prefetch_wasted") == len(wasted) == 6
    assert reach(rig) == 1, "never less than one, or nothing would be learned again"


def test_the_reach_keeps_to_the_limit(make_host: MakeHost) -> None:
    rig = ahead(make_host, most=5)
    for number in range(1, 9):
        read_up(rig, number)
    assert rig.counter("chain_prefetch_used") == 7
    assert reach(rig) == 5


def test_it_takes_free_room_and_that_of_clean_copies_only(make_host: MakeHost) -> None:
    rig = ahead(make_host, gpu_blocks=16)
    rig.worker.put(range(101, 114), Tier.GPU)  # only on the device: dirty
    read_up(rig, 12)
    assert len(rig.inside("gpu0")) == 14
    read_up(rig, 1)
    assert set(range(101, 114)) < rig.inside("gpu0"), "none of these was moved for a guess"
    assert rig.inside("gpu0") & set(range(1, 13)) == {1, 2, 12}, "one slot was free, the coldest are dirty"
    assert rig.moves(reason="reclaim") == {}


def test_clean_copies_make_room(make_host: MakeHost) -> None:
    rig = ahead(make_host, gpu_blocks=16, cpu_blocks=64)
    numbers = list(range(201, 217))
    rig.worker.put(numbers)
    assert rig.worker.read(numbers, tier=Tier.GPU) == [HIT] * 16
    read_up(rig, 1)
    assert {1, 2, 3, 4, 5} < rig.inside("gpu0")
    assert rig.moves(reason="prefetch", source="gpu0") == {"free": 4}
    assert rig.moves(reason=Reason.RECLAIM.value, source="gpu0") == {"free": 1}


def test_a_guess_whose_block_is_gone_is_forgotten(make_host: MakeHost) -> None:
    rig = ahead(make_host)
    stream = rig.stream("cpu-gpu0.background")
    stream.hold()
    assert rig.worker.read([1], tier=Tier.GPU, independent=False) == [HIT]
    assert len(rig.directory.state.speculation) == 4
    rig.host.clear()
    stream.release_held()
    rig.settle()
    assert len(rig.directory.state.speculation) == 0
    assert rig.counter("chain_prefetch_used") == 0
