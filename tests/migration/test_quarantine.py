"""Slots whose owner lapsed but may still touch them."""

from collections.abc import Callable

import numpy as np
import pytest

from hybridkv.tiers.errors import ExpiredError, ResourceExhaustedError
from tests.migration.hosts import ALREADY_SEALED, BLOCK, EXPIRED, HIT, MISS, NEW, Rig, checksums, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def test_slots_of_a_lapsed_reservation_are_not_reused_before_its_owner_confirms(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    stalled = rig.worker
    reply = stalled.reserved([1, 2])
    rig.clock.advance(rig.host.config.daemon.reservation_s + 1)
    rig.host.tick()
    quick = rig.attach()
    assert quick.write([1], sums=True) == [NEW]  # the keys are free
    quick.put(range(100, 129))  # 30 slots are left, and all are used now
    with pytest.raises(ResourceExhaustedError):
        _ = quick.hold([1, *range(100, 129)]) and quick.reserved([200])
    for at, number in enumerate((1, 2)):
        stalled.fill(77 + number, reply.slots[at])  # written late: into slots that nobody reads
    assert quick.read([1, *range(100, 129)]) == [HIT] * 30
    assert quick.read([2]) == [MISS]
    outcomes = rig.host.seal(stalled.session, reply.reservation, None, checksums([78, 79]))
    assert outcomes.tolist() == [ALREADY_SEALED, EXPIRED]  # another sealed the first
    assert quick.read([2]) == [MISS]
    assert quick.write([200, 201]) == [NEW, NEW]
    assert quick.read([1]) == [HIT]


def test_quarantine_ends_when_the_process_is_proved_gone(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    lost = rig.attach()
    lost.reserved([1, 2])
    rig.host.stream_broken(lost.session)
    rig.clock.advance(rig.host.config.daemon.grace_s + 1)
    rig.host.tick()
    figures = rig.host.stats()["tiers"]["cpu"]  # type: ignore[index]
    assert figures["quarantined_bytes"] == 2 * BLOCK
    rig.host.on_gone(lost.session)
    assert rig.host.stats()["tiers"]["cpu"]["quarantined_bytes"] == 0  # type: ignore[index]
    assert rig.used("cpu") == 0


def test_a_lapsed_view_leaves_its_copy_findable_and_its_slot_unused(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    rig.worker.put(range(32))
    reader = rig.attach()
    seen = reader.hold([0])
    rig.clock.advance(rig.host.config.daemon.lease_s + 1)
    rig.host.tick()
    assert rig.worker.read([0]) == [HIT]
    rig.host.remove(rig.worker.session, keys([0]))
    with pytest.raises(ResourceExhaustedError):
        _ = rig.worker.hold(range(1, 32)) and rig.worker.reserved([100])
    slot = seen.slots[0]
    held = rig.host.pool_array(0)[int(slot["offset"]) : int(slot["offset"]) + BLOCK]
    reader.verify([0], seen)  # nobody wrote into what it may still look at
    assert len(held) == BLOCK
    # A renewal comes from a thread that knows nothing of the views; a release is the owner's word that it looks no more.
    assert rig.host.renew(reader.session, [seen.lease]) == [False]
    with pytest.raises(ResourceExhaustedError):
        rig.worker.reserved([100])
    with pytest.raises(ExpiredError):
        rig.host.release(reader.session, seen.lease)
    assert rig.worker.write([100]) == [NEW]


def test_a_session_without_mappings_quarantines_nothing(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu_blocks=32)
    remote = rig.attach(maps=False)
    reply = remote.reserved([1, 2])
    rig.clock.advance(rig.host.config.daemon.reservation_s + 1)
    rig.host.tick()
    assert rig.used("cpu") == 0
    assert rig.worker.write(range(100, 132)) == [NEW] * 32
    outcomes = rig.host.seal(remote.session, reply.reservation, np.array([0, 1]), checksums([1, 2]))
    assert outcomes.tolist() == [EXPIRED, EXPIRED]
