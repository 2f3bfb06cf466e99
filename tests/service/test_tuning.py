"""Which keys are live, and what an update comes to: pure, on configs alone."""

import pytest

from hybridkv.service.config import Config, default_rows, load_config, tenant_rows
from hybridkv.service.tuning import CAPACITIES, LIVE, RESTART, TENANT_LIVE, Change, reload, revise
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.states import Tier


def config(**overrides: object) -> Config:
    return load_config(overrides={key.replace("__", "."): value for key, value in overrides.items()}, env={})


START = config(cpu__capacity_bytes="1GiB", disk__path="/d")


def test_every_key_is_live_or_needs_a_restart() -> None:
    keys = [row.key for row in default_rows()]
    assert sorted(keys) == sorted([*LIVE, *CAPACITIES, *RESTART])


def test_of_a_tenant_the_quotas_are_live() -> None:
    names = {row.key.rpartition(".")[2] for row in tenant_rows()}
    assert names > TENANT_LIVE
    start = config(tenants__a__uid=1, tenants__b__uid=2)
    revision = revise(start, start, {"tenants.a.cpu_bytes": "1GiB", "tenants.b.leases_count": 7})
    assert revision.changed == (
        Change("tenants.a.cpu_bytes", None, 1 << 30),
        Change("tenants.b.leases_count", None, 7),
    )
    for changes in ({"tenants.a.uid": 3}, {"tenants.a.role": "operator"}, {"tenants.c.uid": 3}):
        with pytest.raises(FailedPreconditionError, match="needs a restart"):
            revise(start, start, changes)


def test_a_reload_names_tenants_that_came_and_went() -> None:
    start = config(tenants__a__uid=1, tenants__b__uid=2)
    loaded = config(tenants__a__uid=1, tenants__a__cpu_bytes=4096, tenants__c__uid=3)
    revision = reload(start, start, loaded)
    assert [change.key for change in revision.changed] == ["tenants.a.cpu_bytes"]
    assert revision.needs_restart == {"tenants.b": "needs a restart", "tenants.c": "needs a restart"}
    assert set(revision.config.tenants) == {"a", "b"}


def test_an_update_tells_before_and_after() -> None:
    revision = revise(START, START, {"cpu.high_watermark": "0.8", "cpu.low_watermark": 0.7})
    assert revision.changed == (
        Change("cpu.high_watermark", 0.95, 0.8),
        Change("cpu.low_watermark", 0.9, 0.7),
    )
    assert revision.config.cpu.high_watermark == 0.8
    assert str(revision.changed[0]) == "cpu.high_watermark = 0.8 (was 0.95)"


def test_every_bad_key_is_named_with_its_limit() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        revise(START, START, {"cpu.high_watermark": 0.8, "gpu.idle_timeout_s": -1, "cpu.polcy": "lru"})
    for part in (
        "cpu.low_watermark: must be below high_watermark (0.8)",
        "gpu.idle_timeout_s: must be greater than or equal to 0",
        "cpu.polcy: unknown key, did you mean cpu.policy?",
    ):
        assert part in str(caught.value)


def test_keys_that_need_a_restart_refuse_the_whole() -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        revise(START, START, {"cpu.high_watermark": 0.99, "cpu.shm_dir": "/x", "cpu.capacity_bytes": "2GiB"})
    said = str(caught.value)
    assert "nothing was changed" in said
    assert "cpu.shm_dir: needs a restart" in said
    assert 'cpu.capacity_bytes: needs a restart above "1GiB", which the daemon started with' in said
    assert "high_watermark" not in said


def test_a_restart_key_set_to_what_it_is_changes_nothing() -> None:
    assert revise(START, START, {"cpu.shm_dir": "/dev/shm", "cpu.policy": START.cpu.policy}).changed == ()


def test_no_change_at_all_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="changes"):
        revise(START, START, {})


def test_a_capacity_may_shrink_and_grow_to_the_first() -> None:
    smaller = revise(START, START, {"cpu.capacity_bytes": "512MiB"})
    assert smaller.resized() == {Tier.CPU: 512 << 20}
    again = revise(smaller.config, START, {"cpu.capacity_bytes": "1GiB"})
    assert again.resized() == {Tier.CPU: 1 << 30}


def test_a_floor_that_nobody_gave_follows_the_capacity() -> None:
    smaller = revise(START, START, {"cpu.capacity_bytes": "1MiB"}).config
    assert smaller.cpu.min_bytes == 1 << 20
    assert revise(smaller, START, {"cpu.capacity_bytes": "1GiB"}).config.cpu.min_bytes == 64 << 20
    given = config(cpu__capacity_bytes="1GiB", cpu__min_bytes="8MiB")
    with pytest.raises(InvalidArgumentError, match=r"cpu.min_bytes: must be at most capacity_bytes"):
        revise(given, given, {"cpu.capacity_bytes": "1MiB"})


def test_new_policies_are_needed_where_the_name_or_what_it_counts_by_changed() -> None:
    assert revise(START, START, {"disk.policy": "arc", "gpu.policy": "rhq"}).reordered() == [Tier.GPU, Tier.DISK]
    counting = config(cpu__policy="lfu", gpu__policy="lru", disk__policy="lru")
    assert revise(counting, counting, {"migration.decay_half_life_s": 60}).reordered() == [Tier.CPU]


def test_a_reload_takes_what_is_live_and_names_the_rest() -> None:
    loaded = config(cpu__capacity_bytes="2GiB", disk__path="/other", cpu__idle_timeout_s=5)
    revision = reload(START, START, loaded)
    assert [change.key for change in revision.changed] == ["cpu.idle_timeout_s"]
    assert set(revision.needs_restart) == {"cpu.capacity_bytes", "disk.path"}
    assert revision.config.disk.path == "/d"
    assert revision.config.cpu.capacity_bytes == 1 << 30


def test_a_reload_takes_back_what_was_set_by_hand() -> None:
    by_hand = revise(START, START, {"cpu.idle_timeout_s": 5}).config
    assert reload(by_hand, START, START).config == START
