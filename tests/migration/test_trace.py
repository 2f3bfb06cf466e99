"""Reading traces: both ways to list blocks, gzip or plain; what is wrong is named by its line and field."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from hybridkv.migration.trace import Trace, block_tokens_of, read_trace
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, NotFoundError

GOOD = {"timestamp": 1500, "input_length": 40, "hash_ids": [7, 900000000000, 3], "session": "a"}


def written(folder: Path, *lines: object, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def chains(trace: Trace) -> list[list[int]]:
    return [request.chain.tolist() for request in trace.requests]


def test_blocks_are_numbered_in_the_order_in_which_they_first_occur(tmp_path: Path) -> None:
    runs = {"timestamp": 2000, "input_length": 64, "hash_runs": [[7, 1], [100, 3]], "session": 5}
    trace = read_trace(written(tmp_path, GOOD, runs))
    assert chains(trace) == [[0, 1, 2], [0, 3, 4, 5]]
    assert (trace.unique_blocks, trace.block_accesses, trace.input_tokens) == (6, 7, 104)
    assert [request.at_s for request in trace.requests] == [1.5, 2.0]
    assert trace.sessions == ("a", 5)


def test_gzip_and_plain_are_told_apart_by_content(tmp_path: Path) -> None:
    plain = written(tmp_path, GOOD)
    packed = tmp_path / "no-suffix"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert chains(read_trace(packed)) == chains(read_trace(plain))


def test_time_never_goes_back_and_a_limit_cuts(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, {**GOOD, "timestamp": 1000}, {**GOOD, "timestamp": 1600})
    assert [request.at_s for request in read_trace(path).requests] == [1.5, 1.5, 1.6]
    assert len(read_trace(path, 2).requests) == 2


def test_the_last_request_of_a_session_is_known(tmp_path: Path) -> None:
    lines = [{**GOOD, "session": name} for name in ("a", "b", None, "a")]
    assert read_trace(written(tmp_path, *lines)).last_of_session() == [False, True, False, True]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is no JSON"),
        ("", "line 2 is no JSON"),
        ("[" * 100_000, "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object but list"),
        ({**GOOD, "hash_ids": []}, "line 2 has no blocks"),
        ({**GOOD, "hash_ids": [1, 1]}, "line 2 names a block twice"),
        ({**GOOD, "hash_ids": [1, -1]}, "line 2 hash_ids: must be a list of whole numbers in 0"),
        ({**GOOD, "hash_ids": [1.5]}, "line 2 hash_ids"),
        ({**GOOD, "hash_ids": 5}, "line 2 hash_ids"),
        ({"timestamp": 1, "input_length": 1}, "line 2 has neither hash_ids nor hash_runs"),
        (
            {"timestamp": 1, "input_length": 1, "hash_runs": [[1]]},
            r"line 2 hash_runs: must be a list of \[first, count\]",
        ),
        ({"timestamp": 1, "input_length": 1, "hash_runs": [[1, 0]]}, "line 2 hash_runs: a count is not in 1"),
        ({"timestamp": 1, "input_length": 1, "hash_runs": [[1, 1 << 40]]}, "line 2 hash_runs: a count is not in 1"),
        (
            {"timestamp": 1, "input_length": 1, "hash_runs": [[1 << 62, 5], [(1 << 63) - 1, 2]]},
            "line 2 hash_runs: an id",
        ),
        ({**GOOD, "timestamp": None}, "line 2 timestamp: must be a number"),
        ({**GOOD, "timestamp": -1}, "line 2 timestamp"),
        ({**GOOD, "input_length": True}, "line 2 input_length: must be a number"),
        ({**GOOD, "session": [1]}, "line 2 session: must be text or a number"),
    ],
)
def test_what_is_wrong_is_named_by_its_line_and_field(tmp_path: Path, line: object, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        read_trace(written(tmp_path, GOOD, line, GOOD))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 100)[:60])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "empty").write_bytes(b"")
    for name, kind in (("missing", NotFoundError), ("cut.gz", NotFoundError), ("binary", InvalidArgumentError),
                       ("empty", InvalidArgumentError), ("", NotFoundError)):  # fmt: skip
        with pytest.raises(HybridKVError, match="trace: ") as caught:
            read_trace(tmp_path / name)
        assert type(caught.value) is kind
    with pytest.raises(InvalidArgumentError, match="limit: 0: at least 1"):
        read_trace(written(tmp_path, GOOD), 0)


@pytest.mark.parametrize(
    ("name", "tokens"), [("taubench_first150", 16), ("mooncake_first200", 512), ("weka_first250", 64)]
)
def test_the_tokens_of_a_block_follow_from_the_lengths(name: str, tokens: int) -> None:
    trace = read_trace(Path(__file__).parent / "data" / f"{name}.jsonl")
    assert block_tokens_of(trace.requests) == tokens
    assert np.unique(np.concatenate([request.chain for request in trace.requests])).size == trace.unique_blocks


def test_lengths_that_tell_nothing_are_said_so(tmp_path: Path) -> None:
    assert block_tokens_of(read_trace(written(tmp_path, {**GOOD, "input_length": 0})).requests) is None
