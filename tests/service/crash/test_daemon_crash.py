"""SIGKILL of the daemon at every named point: the next one serves what was durable, nothing made up, and its books add up."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client import KV
from hybridkv.tiers.disk.folder import bytes_on_disk
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import DAEMON_POINTS
from hybridkv.tiers.states import Outcome
from tests.service.crash.processes import Zygote, zygote
from tests.service.crash.scenarios import AT_START, SCENARIOS, Play, leave_much_behind, spoil_a_manifest, stop
from tests.service.crash.stage import BLOCK_BYTES, CALL_S, Stage, staged, start

KILLED = -9
PARTS = 4
"""The points are shared out to so many tests, each a line of daemons of its own, so that they can run side by side."""

DEATHS: list[tuple[Play, str]] = [(play, name) for play, names in SCENARIOS.items() for name in names]


def test_every_point_of_the_daemon_has_its_death() -> None:
    named = {name.partition(":")[0] for _, name in DEATHS} | set(AT_START)
    assert named == set(DAEMON_POINTS)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("logs")) as made:
        yield made


@pytest.mark.parametrize("part", range(PARTS))
def test_a_daemon_killed_at_any_point_loses_nothing_durable_and_makes_nothing_up(
    tmp_path: Path, nursery: Zygote, part: int
) -> None:
    left: Stage | None = None
    for number, (play, name) in enumerate(DEATHS[part::PARTS]):
        left = _one_life(tmp_path, nursery, number, play, name, left)
    _one_life(tmp_path, nursery, len(DEATHS), stop, "", left)
    left_over = {path.name for path in tmp_path.rglob("*") if path.is_file() or path.is_socket()}
    assert not {name for name in left_over if name.startswith(("kv.sock", "gpu"))}
    assert len(list(tmp_path.glob("hybridkv-*"))) <= 1, "regions of a daemon that was killed"


def test_a_daemon_killed_at_any_point_of_its_start_serves_at_the_next(tmp_path: Path, nursery: Zygote) -> None:
    left = _one_life(tmp_path, nursery, 0, leave_much_behind, "", None)
    for name in AT_START[:-1]:
        daemon = start(nursery, tmp_path, name, verify=True)
        assert not daemon.serves(), f"{name} was never passed"
        assert daemon.code() == KILLED, daemon.said()
    left = _one_life(tmp_path, nursery, 1, leave_much_behind, "", left)
    spoil_a_manifest(tmp_path / "disk")
    daemon = start(nursery, tmp_path, AT_START[-1], verify=True)
    assert not daemon.serves()
    assert daemon.code() == KILLED
    left.durable.clear()
    left.spoiled = True
    _one_life(tmp_path, nursery, 2, None, "", left)


def _one_life(
    folder: Path, nursery: Zygote, number: int, play: Play | None, crash_at: str, left: Stage | None
) -> Stage:
    """One daemon: looks at what is `left`, then works until it dies at `crash_at`; what it leaves itself."""
    daemon = start(nursery, folder, crash_at)
    assert daemon.serves(), f"{crash_at} during the start: {daemon.said()}"
    with staged(daemon, folder, number) as stage:
        if left is not None:
            _look(stage, left)
            stage.admin.clear()
        assert stage.admin.check() == []
        if play is not None:
            play(stage)
    stage.died_at = crash_at
    if crash_at:
        assert daemon.has_ended(CALL_S), f"{crash_at} was never passed"
        assert daemon.code() == KILLED, f"{crash_at}: {daemon.said()}"
    else:
        assert daemon.kill() in (0, KILLED)
    return stage


def _look(stage: Stage, left: Stage) -> None:
    """What the daemon before left: every block it promised is there, every block that is there is right, and nothing that it
    had half made or half removed is left on disk."""
    half = [path.name for path in (stage.folder / "disk").iterdir() if path.name.startswith(("old-", "new-"))]
    assert half == [], f"after {left.died_at}"
    store = stage.admin.stats()["disk_store"]
    assert bytes_on_disk(stage.folder / "disk") <= store["physical_bytes"], f"after {left.died_at}"
    assert bool(store["aside_bytes"]) == left.spoiled, f"after {left.died_at}"
    kv = stage.connect()
    lost = left.durable - _readable(stage, kv, left.sealed)
    assert not lost, f"after {left.died_at}"
    assert not _found(kv, left.never), f"after {left.died_at}"
    assert stage.admin.check() == [], f"after {left.died_at}"


def _readable(stage: Stage, kv: KV, keys: set[bytes]) -> set[bytes]:
    """Those that can be read; they are what was sealed, and every one that a lookup finds is among them."""
    found = _found(kv, keys)
    if found:
        wanted = Keys.of(found, kv.space.key_bytes)
        out = np.zeros((len(wanted), BLOCK_BYTES), np.uint8)
        states = kv.read(wanted, out, timeout_s=CALL_S)
        assert (states == Outcome.HIT).all(), f"found, and not readable: {states.tolist()}"
        assert np.array_equal(out, stage.blocks(wanted))
    return set(found)


def _found(kv: KV, keys: set[bytes]) -> list[bytes]:
    if not keys:
        return []
    wanted = sorted(keys)
    states = kv.lookup(Keys.of(wanted, kv.space.key_bytes)).states
    return [key for key, state in zip(wanted, states.tolist(), strict=True) if state == Outcome.HIT]
