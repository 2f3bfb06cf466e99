"""docs/faults.md names tests that there are, and no kind of fault without one that was seen to fail."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "faults.md"
HEADER = ["what went wrong elsewhere", "what makes it impossible here", "provoked by", "seen to fail when"]
KINDS = {
    "Identity: whose bytes are these?": 6,
    "Publish and commit": 7,
    "Leases and owners": 6,
    "Room": 10,
    "Concurrency and time": 9,
    "After a crash": 4,
    "Operation": 9,
}
"""Kinds there are, by group: a row that is lost is noticed."""


def rows() -> list[tuple[str, list[str]]]:
    """(group, cells) of every row of every table."""
    found, group = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if cells != HEADER:
                found.append((group, cells))
    return found


@lru_cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the file's tests; those of a class as "Class::test"."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))
    return frozenset(name for name in names if name.split("::")[-1].startswith("test_"))


def test_every_kind_is_there() -> None:
    counts: dict[str, int] = {}
    for group, _ in rows():
        counts[group] = counts.get(group, 0) + 1
    assert counts == KINDS


@pytest.mark.parametrize(
    ("group", "cells"), rows(), ids=lambda value: value if isinstance(value, str) else value[0][:40]
)
def test_a_kind_has_a_mechanism_tests_that_exist_and_a_failure_that_was_seen(group: str, cells: list[str]) -> None:
    assert len(cells) == len(HEADER)
    assert all(cells), f"{group}: an empty cell"
    named = re.findall(r"`([^`]+)`", cells[2])
    assert named, "no test"
    assert ", ".join(f"`{name}`" for name in named) == cells[2]
    for name in named:
        path, _, test = name.partition("::")
        assert (TESTS / path).is_file(), path
        assert test in names_in(TESTS / path), name
