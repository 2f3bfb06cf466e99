"""Explain on a real host: where a block is, what holds it, which rule comes next, and what it tells of blocks gone."""

from collections.abc import Callable
from typing import Any

import pytest

from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, Rig, key, keys

MakeHost = Callable[..., Rig]
DISK = 16 << 20


def explain(rig: Rig, number: int) -> dict[str, Any]:
    (account,) = rig.host.explain(key(number))
    return account


def keeps(rig: Rig, number: int, pool: str = "cpu") -> dict[str, dict[str, Any]]:
    """What keeps the copy in the pool, by rule."""
    copy = next(copy for copy in explain(rig, number)["copies"] if copy["pool"] == pool)
    assert copy["next"] is None
    return {verdict["rule"]: verdict for verdict in copy["kept_by"]}


def upcoming(rig: Rig, number: int, pool: str = "cpu") -> dict[str, Any]:
    copy = next(copy for copy in explain(rig, number)["copies"] if copy["pool"] == pool)
    assert copy["kept_by"] == []
    found: dict[str, Any] = copy["next"]
    return found


def test_an_unknown_block_has_no_account(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    assert rig.host.explain(key(1)) == []


def test_copies_and_use_are_told(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, disk_bytes=DISK)
    rig.put_on_disk([1])
    rig.clock.advance(5)
    rig.worker.read([1], tier=Tier.GPU)
    rig.clock.advance(2)
    account = explain(rig, 1)
    assert account["state"] == "sealed"
    assert account["block_bytes"] == BLOCK
    assert [copy["pool"] for copy in account["copies"]] == ["gpu0", "disk"]
    assert account["idle_s"] == 2
    assert account["age_s"] == 7
    assert account["accesses"] == pytest.approx(2, abs=0.1)
    assert account["copies"][0]["slot"] == rig.directory.blocks.slot[0][rig.row(1)]
    assert account["copies"][0]["here_s"] == 2
    assert account["moving"] is None
    assert [move["to"] for move in account["history"]][-1] == "gpu0"


def test_the_rule_that_comes_next_is_the_one_that_then_moves_it(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__idle_timeout_s=10)
    rig.worker.put([1])
    assert keeps(rig, 1)["idle"]["figures"] == {"idle_s": 0.0, "idle_timeout_s": 10.0}
    rig.clock.advance(11)
    told = upcoming(rig, 1)
    assert told == {"move": "demote", "reason": "idle", "figures": {"idle_s": 11.0, "idle_timeout_s": 10.0}}
    rig.host.tick()
    rig.settle()
    last = explain(rig, 1)["history"][-1]
    assert (last["reason"], last["figures"], last["outcome"]) == ("idle", told["figures"], "done")


def test_the_watermark_takes_the_coldest_and_tells_the_others_why_not(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__high_watermark=0.9, cpu__low_watermark=0.5)
    rig.worker.put(range(24))
    assert keeps(rig, 0)["watermark"]["why"] == "the tier's use is not above the mark"
    rig.worker.put(range(24, 32))
    assert upcoming(rig, 0)["reason"] == "watermark"
    assert upcoming(rig, 0)["figures"]["used_fraction"] == 1.0
    assert keeps(rig, 31)["watermark"]["why"] == "the tier drains, but others go before it"
    assert explain(rig, 3)["copies"][0]["order"] == 3
    assert explain(rig, 3)["copies"][0]["of"] == 32


def test_leases_requests_and_children_keep_a_block(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__idle_timeout_s=1)
    rig.worker.write([1, 2])
    lease = rig.worker.hold([2]).lease
    rig.clock.advance(5)
    assert keeps(rig, 2)["leased"]["figures"] == {"leases": 1}
    assert explain(rig, 2)["copies"][0]["leased_by"] == [rig.worker.session]
    assert keeps(rig, 1)["children_above"]["figures"] == {"children": 1}
    assert "kept by the above" in keeps(rig, 1)["idle"]["why"]
    rig.worker.release(lease)
    rig.worker.read([1], request=7)
    rig.clock.advance(5)
    assert keeps(rig, 1)["in_request"]["figures"] == {"holders": 1}
    rig.host.end_request(rig.worker.session, 7)
    rig.clock.advance(5)
    assert upcoming(rig, 1)["reason"] == "idle"  # its child goes with it


def test_a_cooldown_keeps_a_block(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__idle_timeout_s=1, migration__cooldown_s=30)
    rig.put_on_disk([1])
    rig.worker.read([1], tier=Tier.CPU)
    rig.clock.advance(5)
    assert keeps(rig, 1)["cooldown"]["figures"] == {"rested_s": 5.0, "cooldown_s": 30.0}


def test_a_move_under_way_is_told(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK)
    rig.worker.put([1])
    with rig.gate("move.before_copy", "cpu-disk") as gate:
        rig.lower("cpu", [1])
        gate.wait_held()
        rig.clock.advance(4)
        moving = explain(rig, 1)["moving"]
        assert moving == {"from": "cpu", "to": "disk", "reason": "reclaim", "priority": "background",
                          "stage": "running", "for_s": 4.0}  # fmt: skip
        assert "moving" in keeps(rig, 1)
    rig.settle()


def test_a_promotion_is_told_before_it_happens(make_host: MakeHost) -> None:
    rig = make_host(gpus=1, migration__promote_at_accesses=2)
    rig.worker.put([1], Tier.CPU)
    assert keeps(rig, 1)["promote_at_accesses"]["why"] == "too few"
    rig.worker.touch([1])
    rig.worker.touch([1])
    assert upcoming(rig, 1)["move"] == "promote"


def test_the_last_copy_in_the_lowest_tier_waits_for_want_of_room(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, cpu__idle_timeout_s=1)
    rig.worker.put([1])
    rig.clock.advance(5)
    assert "last_copy" in keeps(rig, 1)


def test_a_block_that_is_gone_still_has_its_history(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.put([1])
    rig.host.remove(rig.worker.session, keys([1]))
    account = explain(rig, 1)
    assert (account["state"], account["copies"]) == ("gone", [])
    assert [move["reason"] for move in account["history"]] == ["remove"]


def test_a_reserved_block_is_told_as_such(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    rig.worker.write([1], seal=False)
    assert explain(rig, 1)["state"] == "reserved"


def test_namespaces_are_told_apart_by_the_beginning_of_their_fingerprint(make_host: MakeHost) -> None:
    rig = make_host(gpus=0)
    other = rig.attach(model="other")
    rig.worker.put([1])
    other.put([1])
    both = rig.host.explain(key(1))
    assert {account["fingerprint"] for account in both} == {
        rig.worker.attached.fingerprint.hex(),
        other.attached.fingerprint.hex(),
    }
    (mine,) = rig.host.explain(key(1), rig.worker.attached.fingerprint[:4])
    assert mine["fingerprint"] == rig.worker.attached.fingerprint.hex()
    assert rig.host.explain(key(1), bytes(32)) == []


def test_explaining_changes_nothing(make_host: MakeHost) -> None:
    rig = make_host(gpus=0, disk_bytes=DISK, cpu__high_watermark=0.5, cpu__low_watermark=0.25)
    rig.worker.put(range(32))
    before = [window.tolist() for window in rig.directory.books[0].policy.scan()]
    explain(rig, 0)
    assert [window.tolist() for window in rig.directory.books[0].policy.scan()] == before
    assert rig.host.check() == []
