"""What the host tells about itself when something is slower, or less, than it looks."""

from pathlib import Path

import pytest

from hybridkv.tiers.device.base import HostRegistration, Registration
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.states import Tier
from tests.migration.hosts import HIT, Rig


def test_failed_page_locking_shows_in_stats_health_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies work all the same, by the slow path."""
    refused = HostRegistration(Registration.FAILED, "RLIMIT_MEMLOCK is 64 KiB")
    monkeypatch.setattr(HostDevice, "register_host", lambda *_: refused)
    rig = Rig(tmp_path)
    try:
        rig.worker.put([1], Tier.CPU)
        assert rig.worker.read([1], tier=Tier.GPU) == [HIT]
        assert rig.host.stats()["page_lock_failures"] == [refused.reason]
        assert rig.host.health()["page_lock"] == (False, refused.reason)
        assert "copies take the slow path: RLIMIT_MEMLOCK" in caplog.text
    finally:
        rig.close()


def test_memory_of_the_wrong_node_shows_in_health(tmp_path: Path) -> None:
    rig = Rig(tmp_path, cpu__numa_node=63)
    try:
        ok, reason = rig.host.health()["numa"]
        assert not ok
        assert reason
    finally:
        rig.close()
