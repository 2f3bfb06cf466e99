"""The directory's lock is held for decisions only: no byte is copied, read, written or committed under it (law 10)."""

from collections.abc import Callable

from hybridkv.tiers import points
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import HIT, Rig, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20
OUTSIDE = {
    "move.before_copy",
    "move.copied",
    "extent.before_carve",
    "extent.carved",
    "disk.put.before_commit",
    "disk.put.committed",
    "disk.delete.before_commit",
    "disk.delete.committed",
    "disk.read.before_pread",
    "disk.segment.created",
}
"""Points between which bytes move."""


def test_nothing_is_copied_read_or_written_under_the_lock(make_host: MakeHost) -> None:
    rig = make_host(cpu_blocks=64, disk_bytes=DISK)
    passed: set[str] = set()
    under_the_lock: set[str] = set()

    def look(name: str) -> None:
        passed.add(name)
        if name in OUTSIDE and rig.directory.lock._is_owned():  # type: ignore[attr-defined]
            under_the_lock.add(name)

    with points.listening(look):
        rig.worker.put(range(12), Tier.GPU)
        rig.worker.put(range(20, 32))
        assert rig.host.drain(PATIENCE_S).left == 0
        rig.settle()
        rig.lower("cpu", list(range(20, 32)))
        rig.settle()
        assert rig.worker.read(range(20, 32), tier=Tier.GPU) == [HIT] * 12
        rig.host.remove(rig.worker.session, keys(range(20, 26)))
        assert rig.host.removals().wait(PATIENCE_S)
        rig.host.clear()
        rig.settle()
    assert under_the_lock == set()
    assert passed >= OUTSIDE
