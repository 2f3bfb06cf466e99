"""Reads that made no call, as they are reported: counted exactly, in order, and refused when they are no report."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.facade import Host
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.directory.accesses import TOLD_TIMES
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Outcome
from tests.service.client.conftest import make_config, make_space

KEYS = Keys.of([bytes([n]) * 16 for n in range(1, 5)])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with_lfu = make_config(tmp_path, cpu__policy="lfu")
    opened = Host(with_lfu, clock=ManualClock())
    yield opened
    assert opened.check() == []
    opened.close()


@pytest.fixture
def session(host: Host) -> int:
    """A session with blocks of `KEYS`."""
    number = host.attach(make_space()).session
    reply = host.reserve(number, KEYS).reply()
    host.seal(number, reply.reservation, None, np.zeros(len(KEYS), np.uint64))
    return number


def accesses(host: Host) -> list[float]:
    rows = host.directory.sealed(0, KEYS.as_list())
    return [round(float(count), 3) for count in host.directory.blocks.accesses[rows]]


def test_every_read_is_counted_for_rules_and_hit_rates(host: Host, session: int) -> None:
    before = np.array(accesses(host))
    assert host.touch(session, KEYS, np.array([1, 2, 300, 1])) == 4
    assert (np.array(accesses(host)) - before).tolist() == [1, 2, 300, 1]
    rows = host.directory.sealed(0, KEYS.as_list())
    assert host.directory.blocks.window_count[rows].tolist()[2] >= 300
    assert host.migrator.demand.acquires.outcomes[Outcome.HIT] == 304


def test_blocks_that_are_gone_by_then_do_not_count(host: Host, session: int) -> None:
    host.remove(session, KEYS[:1])
    assert host.touch(session, KEYS, np.array([5, 1, 1, 1])) == 3
    assert host.migrator.demand.acquires.outcomes[Outcome.HIT] == 3


def test_a_policy_is_told_of_each_read_up_to_a_limit(host: Host, session: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[int]] = []
    policy = host.directory.state.mapped(host.memory.cpu_index).policy
    honest = policy.touched

    def touched(rows: Rows, now: float) -> None:
        told.append(rows.tolist())
        honest(rows, now)

    monkeypatch.setattr(policy, "touched", touched)
    host.touch(session, KEYS[:2], np.array([3, 1]))
    first, second = host.directory.sealed(0, KEYS.as_list())[:2].tolist()
    assert told == [[first], [first], [second, first]]  # the first key was read last
    told.clear()
    host.touch(session, KEYS[:1], np.array([1_000_000]))
    assert len(told) == TOLD_TIMES


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 1, 1, 0]])
def test_what_is_no_report_is_refused(host: Host, session: int, counts: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="counts"):
        host.touch(session, KEYS, np.array(counts))
