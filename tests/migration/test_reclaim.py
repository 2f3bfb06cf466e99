"""Room on demand: what goes, in which order, and what is never waited for."""

from collections.abc import Callable

import pytest

from hybridkv.tiers.errors import ResourceExhaustedError, UnavailableError
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BEING_WRITTEN, BLOCK, HIT, NEW, NO_ROOM, PRESENT, Rig, checksums, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


# ---------------------------------------------------------------------------------------------------- room by demotion


def test_a_reservation_in_a_full_tier_demotes_then_answers(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put(range(16), Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.reserve([100, 101], tier=Tier.GPU)
    assert stream.wait_held()
    assert not ticket.done
    stream.release_held()
    assert ticket.wait(PATIENCE_S)
    assert ticket.reply().outcomes.tolist() == [NEW, NEW]
    rig.settle()
    assert rig.where(0) == rig.where(1) == {"cpu"}  # the two coldest, and no more
    assert len(rig.inside("gpu0")) == 14
    rig.host.abort(rig.worker.session, ticket.reply().reservation, None)


def test_a_reservation_answers_within_its_deadline_with_what_it_has(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put(range(15), Tier.GPU)
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    ticket = rig.worker.reserve([100, 101], tier=Tier.GPU)
    assert stream.wait_held()
    reply = ticket.reply()  # the caller's deadline is over
    assert reply.outcomes.tolist() == [NEW, NO_ROOM]
    stream.release_held()
    rig.settle()
    assert ticket.reply() is reply
    rig.host.abort(rig.worker.session, reply.reservation, None)
    rig.settle()


def test_the_longest_prefix_that_fits_is_granted(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.hold(range(30))
    assert rig.worker.write(range(100, 104)) == [NEW, NEW, NO_ROOM, NO_ROOM]


def test_a_reservation_that_finds_everything_leased_is_refused_at_once(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.hold(range(32))
    ticket = rig.worker.reserve([100])
    assert ticket.done
    with pytest.raises(ResourceExhaustedError, match=r"cpu: no room for 1 blocks of 16384 bytes"):
        ticket.reply()
    assert not rig.directory.state.ledger.reservations
    assert rig.counter("reserves_without_room") == 1


def test_a_failing_lane_does_not_make_a_reservation_wait_for_ever(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put(range(16), Tier.GPU)
    for _ in range(20):
        rig.stream("gpu0-cpu.demand").fail_next(UnavailableError("the device said no"))
    ticket = rig.worker.reserve([100], tier=Tier.GPU)
    assert ticket.wait(PATIENCE_S)
    with pytest.raises(ResourceExhaustedError, match="gpu0"):
        ticket.reply()
    assert rig.worker.read(range(16), tier=Tier.GPU) == [HIT] * 16


def test_two_workers_do_not_each_make_room_for_the_same_prompt(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put(range(16), Tier.GPU)
    other = rig.attach()
    stream = rig.stream("gpu0-cpu.demand")
    stream.hold()
    first = rig.worker.reserve([100, 101, 102], tier=Tier.GPU)
    assert stream.wait_held()
    second = other.reserve([100, 101, 102], tier=Tier.GPU)
    assert second.done
    assert second.reply().outcomes.tolist() == [BEING_WRITTEN] * 3
    assert second.reply().reservation == 0
    stream.release_held()
    assert first.wait(PATIENCE_S)
    rig.settle()
    assert rig.moves(source="gpu0", target="cpu") == {"done": 3}
    reply = first.reply()
    for at in range(3):
        rig.worker.fill(100 + at, reply.slots[at])
    rig.host.seal(rig.worker.session, reply.reservation, None, checksums([100, 101, 102]))
    assert other.write([100, 101, 102], tier=Tier.GPU) == [PRESENT] * 3


def test_slots_of_an_aborted_reservation_go_to_whoever_waits(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(31))
    rig.worker.hold(range(31))
    held = rig.worker.reserve([50])
    other = rig.attach()
    with pytest.raises(ResourceExhaustedError):
        other.reserved([60])  # it waits for transfers, never for other callers
    rig.host.abort(rig.worker.session, held.reply().reservation, None)
    assert other.write([60]) == [NEW]


# ---------------------------------------------------------------------------------------------------- what goes first


def test_a_clean_lower_copy_makes_a_demotion_free(make_host: MakeHost) -> None:
    rig = make_host()
    rig.worker.put(range(16), Tier.GPU)
    assert rig.worker.read([0, 1], tier=Tier.CPU) == [HIT, HIT]
    rig.worker.touch(range(2, 16))
    before = rig.moves(source="gpu0", target="cpu")
    assert rig.worker.write([100, 101], tier=Tier.GPU) == [NEW, NEW]
    assert rig.where(0) == rig.where(1) == {"cpu"}
    assert rig.moves(source="gpu0", target="none", reason="reclaim") == {"free": 2}
    assert rig.moves(source="gpu0", target="cpu") == before  # no bytes moved


def test_cpu_copies_of_gpu_resident_blocks_are_the_first_cpu_victims(make_host: MakeHost) -> None:
    rig = make_host(cpu_blocks=32)
    rig.worker.put([200], Tier.GPU)
    rig.worker.put(range(31))
    assert rig.worker.read([200], tier=Tier.CPU) == [HIT]  # the most recent copy in the CPU tier
    assert rig.where(200) == {"gpu0", "cpu"}
    assert rig.worker.write([100], tier=Tier.CPU) == [NEW]
    assert rig.where(200) == {"gpu0"}
    assert rig.inside("cpu") >= set(range(31))
    assert rig.moves(source="cpu", target="none") == {"free": 1}


def test_orphans_go_before_colder_blocks(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(30))
    assert rig.worker.write([100, 101]) == [NEW, NEW]
    rig.host.remove(rig.worker.session, keys([100]))
    assert rig.worker.write([300, 301]) == [NEW, NEW]
    assert rig.where(101) == set()  # its parent is gone: nothing can hit it
    assert rig.where(0) == {"cpu"}


def test_a_chain_goes_tail_first(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    assert rig.worker.write(range(32)) == [NEW] * 32
    assert rig.worker.write([100, 101]) == [NEW, NEW]
    assert rig.inside("cpu") == set(range(30)) | {100, 101}


def test_a_leased_block_protects_its_ancestors(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    assert rig.worker.write(range(32)) == [NEW] * 32
    lease = rig.worker.hold([31]).lease
    with pytest.raises(ResourceExhaustedError):
        rig.worker.reserved([100])
    rig.worker.release(lease)
    assert rig.worker.write([100]) == [NEW]


def test_blocks_of_an_open_request_stay(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.read(range(30), request=7)  # released, but the request goes on
    assert rig.worker.write(range(100, 104)) == [NEW, NEW, NO_ROOM, NO_ROOM]
    rig.host.end_request(rig.worker.session, 7)
    assert rig.worker.write(range(102, 104)) == [NEW, NEW]


# ---------------------------------------------------------------------------------------------------- the last resort


def test_a_demotion_without_room_below_becomes_an_eviction(make_host: MakeHost) -> None:
    rig = make_host(gpu_blocks=16, cpu_blocks=32)
    rig.worker.put(range(16), Tier.GPU)
    rig.worker.put(range(50, 82))
    rig.worker.hold(range(50, 82))  # nothing below may go, and there is no disk
    assert rig.worker.write([100], tier=Tier.GPU) == [NEW]
    assert rig.where(0) == set()
    assert rig.moves(source="gpu0", target="none", reason="reclaim") == {"evicted": 1}


def test_without_a_disk_the_coldest_cpu_block_is_evicted(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    rig.worker.touch([0])
    assert rig.worker.write([100]) == [NEW]
    assert rig.where(0) == {"cpu"}
    assert rig.where(1) == set()
    assert rig.moves(source="cpu", target="none") == {"evicted": 1}


def test_a_gpu_demotion_goes_past_a_leased_cpu_tier_to_the_disk(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.worker.put(range(16), Tier.GPU)
    cpu = list(range(50, 80))
    rig.worker.put(cpu)
    rig.worker.hold(cpu)  # 30 leased blocks and two lane slots: the tier is full
    assert rig.worker.write([100, 101, 102], tier=Tier.GPU) == [NEW] * 3
    rig.settle()
    assert rig.where(0) == rig.where(1) == rig.where(2) == {"disk"}
    assert rig.moves(source="gpu0", target="disk") == {"done": 3}
    assert len(rig.inside("cpu")) == 30


def test_a_block_comes_from_disk_to_the_gpu_past_a_leased_cpu_tier(make_host: MakeHost) -> None:
    rig = make_host(disk_bytes=DISK)
    rig.put_on_disk(range(5))
    cpu = list(range(50, 80))
    rig.worker.put(cpu)
    rig.worker.hold(cpu)
    assert rig.worker.read(range(5), tier=Tier.GPU) == [HIT] * 5
    assert rig.where(0) == {"gpu0", "disk"}
    lanes = rig.directory.state.mapped(rig.pool("cpu"))
    assert len(lanes.lane_slots[BLOCK]) == lanes.lane_slots_owned[BLOCK] == 2


def test_admission_drops_instead_of_writing(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK, disk__admit_min_accesses=2)
    rig.worker.put(range(32))
    for number in range(1, 32):
        rig.worker.touch([number])
    assert rig.worker.write([100, 101]) == [NEW, NEW]
    rig.settle()
    assert rig.where(0) == set()
    assert rig.where(1) == {"disk"}


def test_two_accesses_are_two_however_far_apart(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=DISK, disk__admit_min_accesses=2)
    rig.worker.put(range(2))
    rig.clock.advance(1800)  # three half-lives: the first access counts an eighth by now
    rig.worker.touch([1])
    rig.worker.put(range(2, 32))
    for number in range(2, 32):
        rig.worker.touch([number])
    assert rig.worker.write([100, 101]) == [NEW, NEW]
    rig.settle()
    assert rig.where(0) == set()
    assert rig.where(1) == {"disk"}


def test_a_full_disk_tier_evicts_its_coldest(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32, disk_bytes=2 << 20)
    room = rig.directory.books[-1].capacity_slots(BLOCK)
    assert 32 < room < 88
    chains = [list(range(first, first + 8)) for first in range(0, 128, 8)]
    for chain in chains:
        assert rig.worker.write(chain) == [NEW] * 8
    rig.settle()
    there = rig.inside("disk")
    assert 32 <= len(there) <= room
    assert rig.where(7) == set()  # the tail of the first chain
    assert rig.used("disk") <= 2 << 20
    store = rig.host.memory.store
    assert store is not None
    assert store.usage().physical_bytes <= 2 << 20
    newest = sorted(there - rig.inside("cpu"))[-8:]
    assert rig.worker.read(newest, tier=Tier.CPU) == [HIT] * 8


# ---------------------------------------------------------------------------------------------------- devices


def test_a_block_sealed_on_one_device_is_acquired_on_another(make_host: MakeHost) -> None:
    rig = make_host(gpus=2)
    rig.worker.put([1, 2], Tier.GPU, device=0)
    assert rig.where(1) == {"gpu0"}
    assert rig.worker.read([1, 2], tier=Tier.GPU, device=1) == [HIT, HIT]
    assert rig.where(1) == {"gpu0", "gpu1"}
    assert rig.moves(source="gpu0", target="gpu1") == {"done": 2}
    assert rig.used("cpu") == 0  # through a lane's slot, which is no copy


def test_a_block_is_written_to_the_least_used_device(make_host: MakeHost) -> None:
    rig = make_host(gpus=2)
    rig.worker.put(range(6), Tier.GPU)
    assert len(rig.inside("gpu0")) == len(rig.inside("gpu1")) == 3
    rig.worker.put(range(10, 14), Tier.GPU, device=1)
    rig.worker.put(range(20, 24), Tier.GPU)
    assert len(rig.inside("gpu0")) == len(rig.inside("gpu1")) == 7


def test_a_block_on_two_devices_leaves_one_for_free(make_host: MakeHost) -> None:
    rig = make_host(gpus=2)
    rig.worker.put([1], Tier.GPU, device=0)
    rig.worker.read([1], tier=Tier.GPU, device=1)
    assert rig.lower("gpu0", [1]) == (1, 0)
    assert rig.where(1) == {"gpu1"}
    assert rig.worker.read([1], tier=Tier.GPU) == [HIT]
