"""Named points: every name in the code is enumerated, and every name that is enumerated is in the code."""

import ast
import re
from pathlib import Path

import pytest

from hybridkv.tiers.points import (
    DAEMON_POINTS,
    MOVES,
    POINTS,
    WORKER_POINTS,
    crash_as_told,
    crash_handler,
    listening,
    point,
)
from hybridkv.tiers.states import Tier

ROOT = Path(__file__).parents[2]
FOLDERS = ("tiers", "migration", "paging", "service", "connectors", "benchmarks")


def _passed() -> set[str]:
    """Literals that are given to `point` anywhere, whether alone or as branches of a choice."""
    found: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "point":
                    literals = {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
                    found |= {name for name in literals if isinstance(name, str)}
    return found


def _plain(name: str) -> str:
    return re.sub(r"^(move\.\w+)\.\w+$", r"\1", name)


def test_every_point_in_the_code_is_enumerated_and_the_other_way_round() -> None:
    assert _passed() == {_plain(name) for name in POINTS}


def test_no_name_stands_twice() -> None:
    assert len(set(POINTS)) == len(POINTS) == len(DAEMON_POINTS) + len(MOVES) + len(WORKER_POINTS)


def test_a_step_of_a_move_is_heard_under_both_its_names() -> None:
    heard: list[str] = []
    with listening(heard.append):
        point("move.copied", Tier.GPU, Tier.CPU)
        point("seal.published")
    assert heard == ["move.copied", "move.copied.gpu_to_cpu", "seal.published"]


def test_an_unknown_point_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"HYBRIDKV_CRASH_AT: 'move\.copied\.cpu_to_moon' is no point"):
        crash_handler("move.copied.cpu_to_moon")
    crash_as_told({})  # says nothing, does nothing
