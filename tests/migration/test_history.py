"""The ring of moves: what it tells, what it forgets, and that a row says nothing about another block."""

from collections.abc import Callable

import numpy as np

from hybridkv.migration.history import MoveHistory
from hybridkv.tiers.states import Reason, Tier
from tests.migration.hosts import Rig, key, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def told(rig: Rig, number: int) -> list[tuple[str, str | None, str, str]]:
    moves = rig.migrator.moves.history.of(0, key(number))
    return [(move.source, move.target, str(move.reason), move.outcome) for move in moves]


def test_a_move_is_told_with_its_rule_and_figures(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__idle_timeout_s=10)
    rig.worker.put([1])
    rig.clock.advance(20)
    rig.host.tick()
    rig.settle()
    (move,) = rig.migrator.moves.history.of(0, key(1))
    assert (move.source, move.target, move.reason, move.outcome) == ("cpu", "disk", Reason.IDLE, "done")
    assert move.figures == {"idle_s": 20.0, "idle_timeout_s": 10.0}
    assert move.as_dict(rig.clock.now() + 3)["ago_s"] == 3.0


def test_moves_on_demand_tell_the_use_of_the_pool(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.read([1], tier=Tier.CPU)
    move = rig.migrator.moves.history.of(0, key(1))[-1]
    assert (move.source, move.target, move.reason) == ("disk", "cpu", Reason.DEMAND)
    assert set(move.figures) == {"used_bytes", "capacity_bytes"}


def test_drops_and_removals_are_told(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.worker.read([1], tier=Tier.CPU)
    rig.host.remove(rig.worker.session, keys([1]))
    assert told(rig, 1)[-4:] == [
        ("cpu", None, "reclaim", "free"),
        ("disk", "cpu", "demand", "done"),
        ("cpu", None, "remove", "removed"),
        ("disk", None, "remove", "removed"),
    ]
    rig.worker.put([2])
    rig.host.clear()
    assert told(rig, 2) == [("cpu", None, "clear", "removed")]


def test_a_row_that_is_used_again_shows_no_other_blocks_history(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    row = rig.row(1)
    rig.host.remove(rig.worker.session, keys([1]))
    rig.worker.put([2])
    assert rig.row(2) == row
    assert told(rig, 2) == []
    assert len(told(rig, 1)) == 1


def test_a_key_of_another_namespace_has_its_own_history(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    other = rig.attach(model="other")
    other.put([1])
    rig.worker.put([1])
    rig.host.remove(other.session, keys([1]))
    history = rig.migrator.moves.history
    assert history.spaces_of(key(1)) == {1}
    assert history.of(0, key(1)) == []


def test_a_block_that_is_removed_while_it_moves_is_told_by_its_name(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1])
    with rig.gate("move.before_copy", "cpu-disk") as gate:
        rig.lower("cpu", [1])
        gate.wait_held()
        rig.host.remove(rig.worker.session, keys([1]))
    rig.settle()
    assert ("cpu", "disk", "reclaim", "cancelled") in told(rig, 1)


def test_the_oldest_give_way(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put(range(8))
    history = MoveHistory(rig.directory, 3)
    for number in range(8):
        history.dropped(0, np.array([rig.row(number)]), Reason.RECLAIM, "evicted")
    assert len(history) == 3
    assert [len(history.of(0, key(number))) for number in range(8)] == [0] * 5 + [1] * 3
    history.dropped(0, np.array([rig.row(7)]), Reason.IDLE, "free")
    assert [move.reason for move in history.of(0, key(7))] == [Reason.RECLAIM, Reason.IDLE]


def test_the_config_bounds_what_is_remembered(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, migration__explain_moves_count=5)
    for _ in range(4):
        rig.worker.put(range(4))
        rig.host.clear()
    assert rig.host.stats()["moves_remembered"] == 5
