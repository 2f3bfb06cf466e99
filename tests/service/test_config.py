"""Config: the order of its sources, its limits, and messages that name every bad key."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hybridkv.service.config import (
    Config,
    config_values,
    default_rows,
    load_config,
    load_config_with_sources,
    value_text,
)
from hybridkv.service.config.values import format_bytes, parse_bytes
from hybridkv.tiers.errors import InvalidArgumentError

MIB = 1 << 20


def with_flags(**flags: Any) -> Config:
    return load_config(None, {key.replace("__", "."): value for key, value in flags.items()}, {})


def refusal(flags: dict[str, Any], env: dict[str, str] | None = None, path: Path | None = None) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        load_config(path, flags, env or {})
    return caught.value


def test_defaults() -> None:
    config = load_config(None, None, {})
    assert config == Config()
    assert config.cpu.capacity_bytes == 1 << 30
    assert config.gpu.devices == ()
    assert config.cpu.numa_node is None
    assert config.migration.background_bytes_per_s == 10**9


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hybridkv.toml"
    path.write_text(
        '[cpu]\ncapacity_bytes = "1MiB"\nmin_bytes = 1\npage_lock = "on"\n[disk]\nverify_at_start = false\n'
    )
    env = {"HYBRIDKV_CPU__CAPACITY_BYTES": "2MiB", "HYBRIDKV_CPU__MIN_BYTES": "2", "OTHER": "x"}
    loaded = load_config_with_sources(path, {"cpu.capacity_bytes": "3MiB", "cpu.numa_node": None}, env)
    cpu = loaded.config.cpu
    assert (cpu.capacity_bytes, cpu.min_bytes, cpu.page_lock) == (3 * MIB, 2, "on")
    assert loaded.config.disk.verify_at_start is False
    assert loaded.sources["cpu.capacity_bytes"] == "flag"
    assert loaded.sources["cpu.min_bytes"] == "environment HYBRIDKV_CPU__MIN_BYTES"
    assert loaded.sources["cpu.page_lock"] == f"file {path}"
    assert loaded.sources["cpu.numa_node"] == "default"
    assert set(loaded.sources) == {row.key for row in default_rows()}


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.toml"
    path.write_text("[daemon]\nlease_s = 7\n")
    assert load_config(None, None, {"HYBRIDKV_CONFIG": str(path)}).daemon.lease_s == 7.0
    monkeypatch.setenv("HYBRIDKV_CONFIG", str(path))
    assert load_config().daemon.lease_s == 7.0


def test_variables_that_are_not_keys_are_left_alone() -> None:
    env = {
        "HYBRIDKV_CRASH_AT": "move.copied",
        "HYBRIDKV_CONFIG": "",
        "HYBRIDKV_SERVICE_HOST": "10.0.0.1",
        "HYBRIDKV_SERVICE_PORT_GRPC": "50051",
        "HYBRIDKV_PORT": "tcp://10.0.0.1:50051",
        "HYBRIDKV_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert load_config(None, None, env) == Config()


def test_lists_and_unset_values_in_the_environment() -> None:
    config = load_config(None, None, {"HYBRIDKV_GPU__DEVICES": "host:0, cuda:1", "HYBRIDKV_CPU__NUMA_NODE": ""})
    assert config.gpu.devices == ("host:0", "cuda:1")
    assert config.cpu.numa_node is None
    assert load_config(None, None, {"HYBRIDKV_CPU__NUMA_NODE": "1"}).cpu.numa_node == 1


def test_all_bad_keys_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hybridkv.toml"
    path.write_text("cpu = 3\n[gpu]\nhigh_watermark = 1.5\n[nothing]\nhere = 1\n")
    error = refusal({"cpu.capacity_bytes": "10x", "disk.capacityy_bytes": 1}, {"HYBRIDKV_DAEMON__LEASE_S": "-1"}, path)
    message = str(error)
    assert error.field == "config"
    for part in (
        f"cpu: is a section and must be a table (file {path})",
        "cpu.capacity_bytes: must be a number of bytes",
        "daemon.lease_s: must be greater than or equal to 0.001, got '-1' (environment HYBRIDKV_DAEMON__LEASE_S)",
        "disk.capacityy_bytes: unknown key, did you mean disk.capacity_bytes? (flag)",
        "gpu.high_watermark: must be less than or equal to 1, got 1.5",
        "nothing.here: unknown key",
    ):
        assert part in message, message


def test_one_underscore_instead_of_two_is_refused() -> None:
    error = refusal({}, {"HYBRIDKV_CPU_CAPACITY_BYTES": "1"})
    assert "did you mean cpu.capacity_bytes? (environment HYBRIDKV_CPU_CAPACITY_BYTES)" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("cpu.capacity_bytes", 65_535, "65536"),
        ("cpu.capacity_bytes", 2**50 + 1, str(2**50)),
        ("cpu.capacity_bytes", True, "number of bytes"),
        ("cpu.capacity_bytes", -5, "65536"),
        ("disk.capacity_bytes", "1023KiB", "1048576"),
        ("disk.capacity_bytes", 2**50 + 1, str(2**50)),
        ("disk.admit_min_accesses", -1, "0"),
        ("disk.admit_min_accesses", 1_000_001, "1000000"),
        ("cpu.min_bytes", "2GiB", "at most capacity_bytes (1073741824)"),
        ("cpu.min_bytes", -1, "0"),
        ("gpu.low_watermark", 0.95, "below high_watermark (0.95)"),
        ("gpu.low_watermark", 0, "greater than 0"),
        ("gpu.high_watermark", "nan", "finite"),
        ("disk.low_watermark", 1.0, "below high_watermark (0.98)"),
        ("gpu.policy", "mru", "'lru', 'lfu'"),
        ("gpu.devices", ["cuda:0", "cuda:0"], "twice"),
        ("gpu.devices", ["gpu:0"], "cuda:N"),
        ("gpu.devices", [f"host:{n}" for n in range(17)], "at most 16"),
        ("gpu.devices", 3, "tuple"),
        ("cpu.page_lock", "maybe", "'auto', 'on' or 'off'"),
        ("cpu.shm_dir", "shm", "absolute"),
        ("cpu.shm_dir", "", "absolute"),
        ("cpu.numa_node", -1, "0"),
        ("disk.path", "~/kv", "absolute"),
        ("daemon.socket", "/run/x.sock", "unix://"),
        ("daemon.socket", "unix://x.sock", "absolute"),
        ("daemon.socket", "unix:///" + "x" * 107, "102"),
        ("daemon.tcp_address", "0.0.0.0:1", "tcp_insecure"),
        ("daemon.tcp_address", "localhost", "host:port"),
        ("daemon.tcp_address", "::1:80", "brackets"),
        ("daemon.tcp_address", "h:70000", "65535"),
        ("daemon.tls_key_path", "/k.pem", "together"),
        ("daemon.metrics_port", 65_536, "65535"),
        ("daemon.metrics_address", "", "1 character"),
        ("daemon.grace_s", "inf", "finite"),
        ("daemon.reservation_s", 0, "0.001"),
        ("daemon.log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("limits.sessions_count", 0, "1"),
        ("limits.sessions_count", 1025, "1024"),
        ("limits.namespaces_count", 0, "1"),
        ("limits.namespaces_count", 65_537, "65536"),
        ("limits.holds_per_session_count", 0, "1"),
        ("limits.holds_per_session_count", 1_000_001, "1000000"),
        ("limits.keys_per_call_count", 0, "1"),
        ("limits.keys_per_call_count", 40_000, "at most 32736"),
        ("limits.message_bytes", 1024, "65536"),
        ("limits.part_bytes", "4MiB", "at most 4190208"),
        ("migration.batch_bytes", "512MiB", "at most inflight_bytes (268435456)"),
        ("migration.interval_s", 0, "0.001"),
        ("migration.background_bytes_per_s", -1, "0"),
        ("migration.lane_slots_count", 0, "1"),
        ("migration.lane_slots_count", 1.5, "integer"),
    ],
    ids=str,
)
def test_a_bad_value_names_its_key_and_limit(key: str, value: Any, limit: str) -> None:
    error = refusal({key: value})
    assert error.field == key
    assert limit in str(error)


def test_a_watermark_is_held_to_the_default_of_the_other() -> None:
    error = refusal({"cpu.high_watermark": 0.5})
    assert error.field == "cpu.low_watermark"
    assert "below high_watermark (0.5), or both 1.0 to turn them off, got 0.9 (default)" in str(error)


def test_both_watermarks_at_one_are_off() -> None:
    gpu = with_flags(gpu__high_watermark=1.0, gpu__low_watermark=1.0).gpu
    assert (gpu.high_watermark, gpu.low_watermark) == (1.0, 1.0)


def test_the_default_floor_follows_a_small_capacity() -> None:
    assert with_flags(cpu__capacity_bytes="1MiB").cpu.min_bytes == MIB
    assert with_flags(cpu__capacity_bytes="1GiB").cpu.min_bytes == 64 * MIB
    assert refusal({"cpu.capacity_bytes": "1MiB", "cpu.min_bytes": "64MiB"}).field == "cpu.min_bytes"


@pytest.mark.parametrize(
    "flags",
    [
        {"daemon.tcp_insecure": True},
        {"daemon.tls_cert_path": "/c.pem", "daemon.tls_key_path": "/k.pem"},
    ],
    ids=str,
)
def test_tcp_is_allowed_with_tls_or_on_demand(flags: dict[str, object]) -> None:
    config = load_config(None, {**flags, "daemon.tcp_address": "[::1]:50051"}, {})
    assert config.daemon.tcp_address == "[::1]:50051"


@pytest.mark.parametrize("content", [b"[cpu\n", b"\xff\xfe", b"[cpu]\na = 1\na = 2\n"], ids=repr)
def test_a_file_that_is_no_toml_is_refused_by_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    error = refusal({}, path=path)
    assert error.field == "config file"
    assert str(path) in str(error)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in str(refusal({}, path=tmp_path / "none.toml"))
    assert "Is a directory" in str(refusal({}, path=tmp_path))


def test_a_nested_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hybridkv.toml"
    path.write_text("[cpu.capacity_bytes]\nvalue = 1\n")
    assert refusal({}, path=path).field == "cpu.capacity_bytes"


def test_the_default_socket_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert Config().daemon.socket == "unix:///tmp/hybridkv-4000000001/hybridkv.sock"
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert Config().daemon.socket == "unix:///run/user/4000000001/hybridkv.sock"


def test_a_config_is_frozen() -> None:
    config = Config()
    with pytest.raises(ValidationError):
        config.cpu.capacity_bytes = 1
    with pytest.raises(ValidationError):
        config.cpu = config.cpu


def test_values_cover_every_key() -> None:
    values = config_values(Config())
    assert list(values) == [row.key for row in default_rows()]
    assert values["disk.capacity_bytes"] == 8 << 30
    assert value_text("disk.capacity_bytes", values["disk.capacity_bytes"]) == '"8GiB"'
    assert value_text("cpu.numa_node", None) == "unset"


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 << 30), ("64KB", 64_000), ("1.5 MiB", 3 << 19), ("1e9", 10**9), ("7", 7), ("7B", 7), (1e9, 10**9)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1.5", "-1", "8gib", "8 G", "1e999", "1 2", 0.5, float("nan"), None, []])
def test_wrong_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@given(st.integers(0, 2**60))
def test_a_shown_size_is_read_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size
