"""The configs that come as examples are valid, and can be replayed."""

from pathlib import Path

import pytest

from hybridkv.migration.trace import read_trace
from hybridkv.service.config import load_config
from hybridkv.service.replay.runs import Replay

FOLDER = Path(__file__).parents[3] / "examples" / "configs"
DATA = Path(__file__).parents[2] / "migration" / "data"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_can_be_replayed(name: str) -> None:
    replay = Replay.of(read_trace(DATA / "mooncake_first200.jsonl", 12), None)
    replay.run_config(load_config(FOLDER / name, env={}), name, 65536, lambda: None)
    (run,) = replay.figures()["runs"]
    assert run["config"] == name
    assert run["block_accesses"] > run["hit_blocks"] > 0


def test_each_is_told_of() -> None:
    told = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in told for name in EXAMPLES)
    assert len(EXAMPLES) == 7
