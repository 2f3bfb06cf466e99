"""What a soak rests on: its troubles, its judgement of memory, and that a wrong byte is found."""

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hybridkv.benchmarks.soak.operations import Operations
from hybridkv.benchmarks.soak.tally import Tally, WrongBytesError, added_up
from hybridkv.benchmarks.soak.trouble import LAST_DAEMON_SHARE, Kind, troubles
from hybridkv.benchmarks.soak.universe import BLOCK_BYTES, CHAIN_BLOCKS, SIBLINGS, keys_of, space_of
from hybridkv.benchmarks.soak.watch import Samples, growth
from hybridkv.service.client import KV
from hybridkv.tiers.states import Outcome


def test_troubles_are_of_the_seed_and_every_kind_comes_early() -> None:
    assert troubles(3, 1800.0) == troubles(3, 1800.0) != troubles(4, 1800.0)
    for total_s in (6.0, 60.0, 1800.0):
        found = troubles(3, total_s)
        assert {one.kind for one in found if one.at_s < total_s / 2} == set(Kind)
        late = {one.kind for one in found if one.at_s >= total_s * LAST_DAEMON_SHARE}
        assert not {Kind.KILL_DAEMON, Kind.RESTART_DAEMON} & late
        assert found == sorted(found, key=lambda one: one.at_s)


def test_half_an_hour_has_more_than_fifty_kills() -> None:
    kills = [one for one in troubles(1, 1800.0) if one.kind in (Kind.KILL_WORKER, Kind.KILL_DAEMON)]
    assert len(kills) > 50


def test_memory_is_compared_within_one_process() -> None:
    steady = [(float(at), 100 + at // 50, 2) for at in range(100)]
    grown = growth(Samples(memory=[(at, nbytes, 1 if at < 50 else 2) for at, nbytes, _ in steady]))
    assert grown is not None
    assert (grown.begin_bytes, grown.end_bytes) == (101.0, 101.0)
    leaking = growth(Samples(memory=[(float(at), at, 2) for at in range(100)]))
    assert leaking is not None
    assert leaking.end_bytes > 1.5 * leaking.begin_bytes
    assert growth(Samples(memory=[(float(at), 100, 1 if at < 80 else 2) for at in range(100)])) is None


def test_siblings_share_their_first_half_and_no_more() -> None:
    first, second = keys_of(0, 0), keys_of(0, SIBLINGS - 1)
    half = CHAIN_BLOCKS // 2
    assert list(first[:half]) == list(second[:half])
    assert not set(first[half:]) & set(second[half:])
    assert not set(keys_of(0, 0)) & set(keys_of(1, 0))


def test_tallies_of_a_killed_worker_count_as_far_as_they_were_told(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "0-1.tally")
    tally.note("op.read", 2)
    tally.tell(now=True)
    with (tmp_path / "0-1.tally").open("a") as file:
        file.write('{"op.read": ')
    assert added_up(tmp_path) == {"op.read": 2}


class _OneByteOff:
    """A handle that serves every block with its last byte changed."""

    space = space_of(0)
    translations = None

    def read(self, keys: Any, out: Any, timeout_s: float) -> Any:
        for key, row in zip(keys, out, strict=True):
            self.operations.content.fill(key, row)
            row[-1] ^= 1
        return np.full(len(keys), Outcome.HIT, np.uint8)

    operations: Operations


def test_one_wrong_byte_is_found(tmp_path: Path) -> None:
    handle = _OneByteOff()
    handle.operations = Operations(cast(KV, handle), 0, random.Random(1), Tally(tmp_path / "1-1.tally"))
    with pytest.raises(WrongBytesError, match=f"differs in 1 of {BLOCK_BYTES[0]} bytes"):
        handle.operations.read()
