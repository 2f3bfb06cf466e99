"""`hybridkv replay`: its figures, what it refuses, its picture."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hybridkv.service.cli import app

runner = CliRunner()

DATA = Path(__file__).parents[2] / "migration" / "data"
TAU, MOONCAKE = DATA / "taubench_first150.jsonl", DATA / "mooncake_first200.jsonl"

RUN_KEYS = {
    "config", "policy", "requests", "block_accesses", "hit_blocks", "block_hit_rate", "token_hit_rate", "tiers",
    "moves_per_hit", "disk_writes_per_new_block", "share_of_optimum",
}  # fmt: skip

CONFIG = """
[gpu]
devices = ["host:0"]
capacity_bytes = "16MiB"
policy = "rhq"
[cpu]
capacity_bytes = "16MiB"
[disk]
path = "/nowhere/hybridkv"
capacity_bytes = "160MiB"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "a.toml"
    path.write_text(CONFIG)
    return path


def replayed(*arguments: object) -> dict[str, Any]:
    result = runner.invoke(app, ["replay", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def refused(*arguments: object) -> str:
    """The one line it fails with."""
    result = runner.invoke(app, ["replay", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


# ---------------------------------------------------------------------------------------------------- figures


def test_one_tier_by_policy_equals_the_independent_simulator() -> None:
    found = replayed(TAU, "--policy", "lru", "--policy", "rhq", "--capacity-blocks", 433)
    assert [run["policy"] for run in found["runs"]] == ["lru", "rhq"]
    lru = found["runs"][0]
    assert lru.keys() >= RUN_KEYS
    assert (lru["requests"], lru["block_accesses"], lru["hit_blocks"]) == (150, 19476, 14630)
    assert (lru["optimum_hit_blocks"], lru["hit_tokens"]) == (16398, 234080)
    assert lru["share_of_optimum"] == pytest.approx(14630 / 16398)
    assert lru["tiers"]["tier"] == {
        "policy": "lru", "capacity_blocks": 433, "hit_blocks": 14630, "block_hit_rate": 14630 / 19476,
    }  # fmt: skip
    assert (lru["config"], lru["moves_per_hit"], lru["disk_writes_per_new_block"]) == (None, None, None)


def test_chain_order_off_is_the_textbook_fifo() -> None:
    run = replayed(TAU, "--policy", "fifo", "--capacity-blocks", 433, "--chain-order", "off")["runs"][0]
    assert (run["hit_blocks"], run["chain_order"]) == (13556, False)


@pytest.mark.parametrize(
    ("model", "hits", "moves", "new"),
    [
        ("exclusive", [199, 0, 41], {"cpu_to_gpu": 0, "disk_to_gpu": 41, "gpu_to_cpu": 5234, "cpu_to_disk": 4713,
                                     "disk_dropped": 2065}, 5297),
        ("inclusive", [199, 0, 4], {"cpu_to_gpu": 4, "disk_to_cpu": 4, "gpu_to_cpu": 5334, "cpu_to_disk": 5334,
                                    "disk_dropped": 0}, 5334),
    ],
)  # fmt: skip
def test_models_equal_the_independent_simulator(model: str, hits: list[int], moves: dict[str, int], new: int) -> None:
    run = replayed(MOONCAKE, "--model", model, "--capacity-blocks", "104,521,2607")["runs"][0]
    assert [tier["hit_blocks"] for tier in run["tiers"].values()] == hits
    assert list(run["tiers"]) == ["gpu", "cpu", "disk"]
    assert (run["moves"], run["new_blocks"], run["policy"]) == (moves, new, "lru")
    assert run["disk_writes_per_new_block"] == pytest.approx(moves["cpu_to_disk"] / new)


def test_a_model_takes_a_policy_for_each_tier_and_the_sizes_of_a_config(config: Path) -> None:
    by_hand = replayed(TAU, "--model", "exclusive", "--policy", "rhq,lru,lru", "--capacity-blocks", "256,240,2146")
    by_config = replayed(TAU, "--model", "exclusive", "--config", config)
    assert by_hand["runs"][0]["policy"] == by_config["runs"][0]["policy"] == "rhq/lru/lru"
    assert by_config["runs"][0]["tiers"] == by_hand["runs"][0]["tiers"]


def test_configs_are_compared_side_by_side(config: Path, tmp_path: Path) -> None:
    small = tmp_path / "b.toml"
    small.write_text('[cpu]\ncapacity_bytes = "12MiB"\n')
    found = replayed(TAU, "--limit", 90, "--config", config, "--config", small)
    large, little = found["runs"]
    assert [run["config"] for run in found["runs"]] == [str(config), str(small)]
    assert list(large["tiers"]) == ["gpu", "cpu", "disk"]
    assert list(little["tiers"]) == ["cpu"]
    assert large["tiers"]["gpu"]["capacity_blocks"] == 256
    assert large["policy"] == "rhq/lru/lru"
    assert large["hit_blocks"] == sum(tier["hit_blocks"] for tier in large["tiers"].values()) > little["hit_blocks"] > 0
    assert large["moves_per_hit"] > 0
    assert little["disk_writes_per_new_block"] is None
    assert 0 < large["disk_writes_per_new_block"] <= 1
    assert 0 < little["share_of_optimum"] < large["share_of_optimum"] <= 1


def test_tables_for_people(config: Path) -> None:
    result = runner.invoke(app, ["replay", str(TAU), "--limit", "20", "--config", str(config)])
    assert result.exit_code == 0
    for words in (
        "20 requests",
        "16 tokens",
        "a.toml",
        "rhq/lru/lru",
        "moves per hit",
        "blocks of 64 KiB (--block-bytes)",
    ):
        assert words in result.stdout
    assert result.stderr == "", "no bar where there is no terminal"


def test_long_paths_cut_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / (letter * 60) / "deep" for letter in "xy"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "same.toml").write_text(CONFIG)
        (folder / f"{folder.parent.name[0]}.toml").write_text(CONFIG)
    trace = folders[0] / "trace.jsonl"
    trace.write_bytes(TAU.read_bytes())
    files = [folders[0] / "x.toml", folders[0] / "same.toml", folders[1] / "same.toml"]
    result = runner.invoke(app, ["replay", str(trace), "--limit", "3", *(f"--config={path}" for path in files)])
    assert result.exit_code == 0
    title, *rows = result.stdout.splitlines()
    assert title.startswith(f"{trace}: 3 requests")
    assert title.endswith("16 tokens")
    assert any(row.split()[:1] == ["x.toml"] for row in rows), "a name that is the only one stands alone"
    first_column = "".join(row[1:].split(" ")[0] for row in rows)
    for path in files[1:]:
        assert str(path) in first_column, "others are folded, not cut"


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    picture = tmp_path / "compared.png"
    replayed(TAU, "--limit", 20, "--policy", "lru", "--policy", "fifo", "--capacity-blocks", 200, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--config: give at least one, or --policy NAME with --capacity-blocks N"),
        (["--policy", "best", "--capacity-blocks", 5], "--policy: 'best': must be one of lru,"),
        (["--policy", "lru"], "--capacity-blocks: is needed: N, in blocks"),
        (["--policy", "lru", "--capacity-blocks", 0], "--capacity-blocks: 0: a tier holds at least 1 block"),
        (["--policy", "lru", "--capacity-blocks", "many"], "--capacity-blocks: 'many': must be N"),
        (["--policy", "lru", "--capacity-blocks", 5, "--block-bytes", 4096], "--block-bytes: only with --config"),
        (["--model", "both", "--capacity-blocks", "1,2,3"], "--model: 'both': must be one of exclusive, inclusive"),
        (["--model", "exclusive", "--capacity-blocks", "1,2"], "--capacity-blocks: '1,2': must be GPU,CPU,DISK"),
        (["--model", "exclusive", "--capacity-blocks", "1,2,0"], "a tier holds at least 1 block"),
        (
            ["--model", "exclusive", "--capacity-blocks", "1,2,3", "--policy", "lru,lru"],
            "with --model one name, or three",
        ),
        (["--model", "exclusive", "--capacity-blocks", "1,2,3", "--chain-order", "off"], "--chain-order: only with"),
        (["--policy", "lru", "--capacity-blocks", 5, "--block-tokens", 0], "--block-tokens: 0: at least 1"),
        (["--policy", "lru", "--capacity-blocks", 5, "--limit", 0], "limit: 0: at least 1 request"),
        (["--policy", "lru", "--capacity-blocks", 5, "--plot", "/nowhere/a.png"], "plot: /nowhere is no folder"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments: list[object], says: str) -> None:
    assert says in refused(TAU, *arguments)


def test_a_config_has_policies_of_its_own(config: Path) -> None:
    assert "no --policy with it" in refused(TAU, "--config", config, "--policy", "lru")
    assert "no --policy with it" in refused(TAU, "--config", config, "--capacity-blocks", 9)
    assert "--chain-order: only with" in refused(TAU, "--config", config, "--chain-order", "on")


def test_a_bad_config_is_named(config: Path, tmp_path: Path) -> None:
    config.write_text("[cpu]\npolicy = 'best'\n")
    assert "cpu.policy" in refused(TAU, "--config", config)
    assert "missing.toml" in refused(TAU, "--config", tmp_path / "missing.toml")
    config.write_text(CONFIG)
    for size, says in (
        (4095, "layout.block_bytes"),
        (4 << 20, "block_bytes: 4194304: over 1048576, an extent of"),
    ):
        line = refused(TAU, "--config", config, "--block-bytes", size)
        assert str(config) in line
        assert says in line
    config.write_text("[cpu]\ncapacity_bytes = '32MiB'\n")
    assert "model: needs three tiers; the config has cpu" in refused(TAU, "--model", "exclusive", "--config", config)


def test_a_bad_trace_is_named_by_line(tmp_path: Path) -> None:
    trace = tmp_path / "bad.jsonl"
    trace.write_text(TAU.read_text().splitlines()[0] + "\n{}\n")
    assert "line 2 has neither hash_ids nor hash_runs" in refused(trace, "--policy", "lru", "--capacity-blocks", 9)
    assert "missing" in refused(tmp_path / "missing", "--policy", "lru", "--capacity-blocks", 9)


def test_without_matplotlib_only_the_picture_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = [TAU, "--limit", 5, "--policy", "lru", "--capacity-blocks", 9]
    assert "plot: needs matplotlib" in refused(*asked, "--plot", tmp_path / "a.png")
    assert replayed(*asked)["runs"]
