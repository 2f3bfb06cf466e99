"""The replay with the end-of-session hint: without hints it is the plain one, and with them the dead go first."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridkv.benchmarks.session_ends import hinted, load
from hybridkv.benchmarks.workload import TAU_BENCH
from hybridkv.migration.policies import make_policy
from hybridkv.migration.simulate import PlainFacts, Request, replay_one_tier


def requests(*chains: list[int]) -> list[Request]:
    return [Request(float(number), np.array(chain, np.int64)) for number, chain in enumerate(chains)]


def hits(chains: Sequence[Request], ends: list[bool], capacity: int) -> int:
    return hinted(chains, ends, make_policy("lru", PlainFacts(capacity)), capacity)


def test_without_a_hint_it_is_the_plain_replay() -> None:
    chains, _ = load(TAU_BENCH)
    chains = chains[:120]
    plain = sum(replay_one_tier(chains, make_policy("lru", PlainFacts(400)), 400))
    assert hits(chains, [False] * len(chains), 400) == plain > 0


def test_the_blocks_of_a_session_that_ended_make_room() -> None:
    chains = requests([0, 1], [10, 11], [20, 21], [0, 1])
    assert hits(chains, [False, True, True, False], 4) == 2
    assert hits(chains, [False] * 4, 4) == 0


def test_what_sessions_share_stays() -> None:
    chains = requests([0, 1], [0, 2], [9], [0, 1])
    assert hits(chains, [False, True, True, True], 3) == 1 + 2


def test_the_last_request_of_a_session_is_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = [{"timestamp": 1000, "input_length": 5, "session": s, "hash_runs": [[4, 2], [9, 1]]} for s in (1, 2, 1)]
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    found, ends = load(path)
    assert ends == [False, True, True]
    assert found[0].chain.tolist() == [0, 1, 2]
    assert found[0].at_s == 1.0
