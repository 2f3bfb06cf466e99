"""What is removed or cleared is gone from every tier, also while its bytes are on their way: the device holds them back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import HIT, MISS, NEW, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def take_away(rig: Rig, how: str, number: int) -> None:
    if how == "remove":
        assert rig.host.remove(rig.worker.session, keys([number])) == 1
    else:
        assert rig.host.clear(rig.worker.attached.fingerprint) >= 1


@pytest.mark.parametrize("how", ["remove", "clear"])
@pytest.mark.parametrize(
    ("lane", "tier", "begin"),
    [
        ("gpu0-cpu.background", Tier.GPU, "down"),
        ("gpu0-cpu.demand", Tier.GPU, "copy"),
        ("cpu-gpu0.demand", Tier.CPU, "up"),
    ],
)
def test_nothing_arrives_after_it(make_host: MakeHost, how: str, lane: str, tier: Tier, begin: str) -> None:
    rig = make_host()
    rig.worker.put([1], tier)
    stream = rig.stream(lane)
    stream.hold()
    if begin == "down":
        assert rig.lower("gpu0", [1]) == (0, 1)
    else:
        waiting = rig.worker.acquire([1], tier=Tier.CPU if begin == "copy" else Tier.GPU)
    assert stream.wait_held()

    take_away(rig, how, 1)
    assert rig.worker.read([1]) == [MISS]  # at once, for whoever asks
    # And may be written anew beside it: on the GPU tier it would wait for the very slot that is on its way out.
    anew = Tier.CPU if begin == "down" else tier
    assert rig.worker.write([1], tier=anew) == [NEW]
    stream.release_held()
    rig.settle()
    if begin != "down":
        assert waiting.wait(PATIENCE_S)
        assert waiting.reply().states.tolist() != [HIT]
        rig.worker.release(waiting.reply().lease)
        rig.settle()
    assert rig.where(1) == {"gpu0" if anew is Tier.GPU else "cpu"}
    assert rig.worker.read([1]) == [HIT]  # verifies the bytes
    for name, left in (("gpu0", anew is Tier.GPU), ("cpu", anew is Tier.CPU)):
        assert rig.inside(name) == ({1} if left else set())


@pytest.mark.parametrize("how", ["remove", "clear"])
@pytest.mark.parametrize("point", ["disk.put.before_commit", "disk.put.committed"])
def test_what_was_on_its_way_to_disk_does_not_come_back(tmp_path: Path, how: str, point: str) -> None:
    rig = Rig(tmp_path, disk_bytes=DISK)
    try:
        rig.worker.put([1])
        with rig.gate(point, "cpu-disk") as gate:
            assert rig.lower("cpu", [1]) == (0, 1)
            gate.wait_held()
            take_away(rig, how, 1)
            assert rig.worker.read([1]) == [MISS]
            gone = rig.host.removals()
        rig.settle()
        assert gone.wait(PATIENCE_S)
        assert rig.where(1) == set()
    finally:
        rig.close()
    again = Rig(tmp_path, disk_bytes=DISK)
    try:
        assert again.worker.read([1]) == [MISS]
    finally:
        again.close()
