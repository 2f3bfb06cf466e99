"""A host per test, closed and checked after it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.migration.conftest import make_host
from tests.paging.rig import Pages

__all__ = ["make_host"]


@pytest.fixture
def make_pages(make_host: Callable[..., Any]) -> Callable[..., Pages]:
    """A host with one worker, and its sequences."""
    return lambda **how: Pages(make_host(**how))
