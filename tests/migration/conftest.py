"""A host per test, closed and checked after it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import Rig


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Opens hosts on the test's directory. After the test, whatever it did, the laws hold on each still open."""
    made: list[Rig] = []

    def make(**how: Any) -> Rig:
        made.append(Rig(tmp_path, **how))
        return made[-1]

    yield make
    found: list[str] = []
    for rig in made:
        rig.free_everything()
        if not rig.closed:
            rig.migrator.quiesce(PATIENCE_S)
            found += rig.host.check()
            rig.close()
    assert found == []
