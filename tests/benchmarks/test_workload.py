"""Traces: both spellings of blocks, plain and gzipped, and what a cache without limits serves."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from hybridkv.benchmarks.workload import TAU_BENCH, Request, infinite_hits, load_trace, unique_count
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import chain
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

LINES = """\
{"timestamp": 0, "session": 7, "input_length": 64, "output_length": 1, "hash_runs": [[0, 3], [9, 1]]}
{"timestamp": 5, "input_length": 64, "output_length": 1, "hash_ids": [0, 1, 4]}
{"timestamp": 9, "session": 7, "input_length": 80, "output_length": 1, "hash_runs": [[0, 3], [9, 2]]}
"""


def written(folder: Path, text: str, zipped: bool = False) -> Path:
    path = folder / ("trace.jsonl.gz" if zipped else "trace.jsonl")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_runs_and_lists_of_ids_are_the_same_blocks(tmp_path: Path, zipped: bool) -> None:
    requests = load_trace(written(tmp_path, LINES, zipped))
    assert [request.blocks.tolist() for request in requests] == [[0, 1, 2, 9], [0, 1, 4], [0, 1, 2, 9, 10]]
    assert [request.session for request in requests] == [7, None, 7]
    assert [request.index for request in requests] == [0, 1, 2]


def test_a_limit_takes_the_first(tmp_path: Path) -> None:
    assert len(load_trace(written(tmp_path, LINES), 2)) == 2


@pytest.mark.parametrize("line", ["no json", '{"session": 1}', '{"hash_runs": [[1]]}', "[]", '{"hash_ids": ["a"]}'])
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidArgumentError, match="line 4 is no request"):
        load_trace(written(tmp_path, LINES + line + "\n"))


def test_a_hit_behind_a_missing_block_does_not_count(tmp_path: Path) -> None:
    requests = load_trace(written(tmp_path, LINES))
    assert infinite_hits(requests) == 0 + 2 + 4
    assert unique_count(requests) == 6
    behind = Request(3, None, np.array([99, 0, 1]))
    assert infinite_hits([*requests, behind]) == infinite_hits(requests)


def test_equal_prefixes_have_equal_keys_and_others_have_not() -> None:
    space = Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "test"))
    one, two = (Request(0, None, np.array(ids)) for ids in ([0, 1, 2], [0, 1, 5]))
    a, b = (chain(space, request.tokens(16)) for request in (one, two))
    assert len(a) == len(b) == 3
    assert a[:2] == b[:2]
    assert a[2] != b[2]


def test_an_id_beyond_the_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="too large"):
        Request(0, None, np.array([1 << 28])).tokens(16)


def test_the_sample_is_what_its_readme_says() -> None:
    requests = load_trace(TAU_BENCH)
    assert len(requests) == 500
    assert sum(len(request.blocks) for request in requests) == 80_954
    assert unique_count(requests) == 6_144
    assert infinite_hits(requests) == 74_810
    assert len({request.session for request in requests}) == 53
