"""`bench compare`: the work is verified, absent peers are skipped with their reason, and ours meets what is there."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridkv.benchmarks import compare_bench, compare_peers
from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.compare_peers import Peer
from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.copying import Copying
from hybridkv.benchmarks.peers.work import KEY_BYTES, Round, Work
from hybridkv.tiers.errors import InternalError

SIZE = 65536
SMALL = Round(block_bytes=SIZE, count=5, batch=2, number=1)


class Forgetful(Copying):
    """Gives back nothing for every other call."""

    calls = 0

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        self.calls += 1
        if self.calls % 2:
            super().get(keys, out)


class Swapping(Copying):
    """Gives back the blocks of other keys."""

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        super().get(list(keys)[::-1], out)


def test_every_round_has_keys_of_its_own() -> None:
    rounds = [Round(SIZE, 5, batch, number) for batch in (1, 2) for number in (1, 2)]
    keys = [key for round_ in rounds for key in round_.key_list()]
    assert len(set(keys)) == len(keys) == 20
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_a_round_that_comes_back_whole_has_nothing_wrong() -> None:
    done = Work(Copying()).run(SMALL)
    assert done.wrong == 0
    assert done.put_s > 0
    assert done.get_s > 0


def test_blocks_that_are_lost_or_of_other_keys_are_counted_wrong() -> None:
    assert Work(Forgetful()).run(SMALL).wrong == 2
    assert Work(Swapping()).run(SMALL).wrong == 4


def test_memory_of_an_earlier_round_proves_nothing_in_the_next() -> None:
    work = Work(Forgetful())
    work.run(SMALL)
    assert work.run(SMALL).wrong > 0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compare_bench.COUNTS, (SIZE, 2), 4)
    monkeypatch.setattr(compare_peers, "CAPACITY_BYTES", 64 << 20)


@pytest.mark.usefixtures("few")
def test_ours_is_measured_beside_the_copy_and_an_absent_peer_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Peer("absent", lambda: "it is not installed", compare_peers.FLOOR.start)
    broken = Peer("broken", lambda: None, lambda stack, folder: ["/nonexistent/python"])
    monkeypatch.setattr(compare_bench, "OTHERS", (absent, broken))
    rows = {row.name: row for row in compare_bench.compared(Setting(tmp_path, 1), SIZE, 2)}
    for verb in ("put", "get"):
        ours = rows[f"hybridkv, {verb} 64 KiB, 2 a call"]
        assert ours.ratio is not None
        assert 0 < ours.ratio < 2
        assert rows[f"absent, {verb} 64 KiB, 2 a call"].skipped == "absent: it is not installed"
        assert "cannot be started" in str(rows[f"broken, {verb} 64 KiB, 2 a call"].skipped)
        best = rows[f"hybridkv beside the best peer, {verb} 64 KiB, 2 a call"]
        assert best.skipped
        assert best.met is False


@pytest.mark.usefixtures("few")
def test_a_peer_that_is_there_is_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Peer("twin", lambda: None, compare_peers.FLOOR.start)
    monkeypatch.setattr(compare_bench, "OTHERS", (twin,))
    rows = {row.name: row for row in compare_bench.compared(Setting(tmp_path, 1), SIZE, 2)}
    best = rows["hybridkv beside the best peer, put 64 KiB, 2 a call (twin)"]
    assert best.target == 1.0
    assert best.floor == rows["twin, put 64 KiB, 2 a call"].value
    assert best.value == rows["hybridkv, put 64 KiB, 2 a call"].value


@pytest.mark.usefixtures("few")
def test_without_our_own_daemon_there_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_bench, "OURS", Peer("hybridkv", lambda: "gone", compare_peers.OURS.start))
    with pytest.raises(InternalError, match="hybridkv: gone"):
        compare_bench.compared(Setting(tmp_path, 1), SIZE, 2)
