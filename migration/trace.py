"""Traces: the requests of a recorded workload, read from JSON lines and numbered for replays.

One JSON object a line, in arrival order, gzip or plain: `timestamp` (ms), `input_length` (tokens), and the prompt's blocks in
prefix order as `hash_ids` [id, ...] or `hash_runs` [[first, count], ...]. Equal ids mean equal whole prefixes. `session`
is optional; other fields are ignored.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybridkv.migration.simulate import Request
from hybridkv.tiers.errors import InvalidArgumentError, NotFoundError
from hybridkv.tiers.replacement import Rows

MAX_ID = (1 << 63) - 1
MAX_CHAIN_BLOCKS = 1 << 24
_MAX_EXPONENT = 20


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests whose blocks are numbered from 0 without gaps, in the order in which they first occur. A request's time is
    never before that of the one ahead of it: the order of the file counts. `sessions`: None where a line has none."""

    requests: tuple[Request, ...]
    sessions: tuple[object, ...]
    unique_blocks: int

    @property
    def block_accesses(self) -> int:
        return sum(len(request.chain) for request in self.requests)

    @property
    def input_tokens(self) -> int:
        return sum(request.input_tokens for request in self.requests)

    def last_of_session(self) -> list[bool]:
        """Of each request, whether it is its session's last; False for one without a session."""
        last = {session: number for number, session in enumerate(self.sessions)}
        return [s is not None and last[s] == number for number, s in enumerate(self.sessions)]


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The first `limit` requests (None: all). Raises NotFoundError for a file that cannot be opened, InvalidArgumentError
    naming the line and the field that is wrong."""
    if limit is not None and limit < 1:
        raise InvalidArgumentError("limit", f"{limit}: at least 1 request")
    raw: list[Request] = []
    sessions: list[object] = []
    at_s = 0.0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if _is_gzip(path) else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if limit is not None and number > limit:
                    break
                request, session = _request(number, line)
                at_s = max(at_s, request.at_s)
                raw.append(Request(at_s, request.chain, request.input_tokens))
                sessions.append(session)
    except (OSError, EOFError, zlib.error) as error:
        raise NotFoundError(f"trace: {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("trace", f"{path}: line {len(raw) + 1} is no text: {error}") from error
    if not raw:
        raise InvalidArgumentError("trace", f"{path}: there is no request in it")
    return _numbered(raw, sessions)


def block_tokens_of(requests: Sequence[Request]) -> int | None:
    """The power of two that explains how many blocks the prompts have, whether their last, partly filled block is listed or
    not; None when there is none, or more than one."""
    counts = np.array([len(request.chain) for request in requests], np.int64)
    tokens = np.array([request.input_tokens for request in requests], np.int64)
    sizes = [1 << exponent for exponent in range(_MAX_EXPONENT + 1)]
    full = [size for size in sizes if (tokens // size == counts).all()]
    partial = [size for size in sizes if (-(-tokens // size) == counts).all()]
    found = full or partial
    return found[0] if len(found) == 1 else None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _request(number: int, line: str) -> tuple[Request, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(number, f"is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _wrong(number, f"is no JSON object but {type(fields).__name__}")
    ids = _ids(number, fields)
    if not len(ids):
        raise _wrong(number, "has no blocks")
    if len(np.unique(ids)) != len(ids):
        raise _wrong(number, "names a block twice; an id stands for a whole prefix")
    at_ms, tokens = _figure(number, fields, "timestamp"), _figure(number, fields, "input_length")
    session = fields.get("session")
    if not isinstance(session, str | int | None):
        raise _wrong(number, f"session: must be text or a number, got {type(session).__name__}")
    return Request(at_ms / 1000, ids, int(tokens)), session


def _ids(number: int, fields: Mapping[str, Any]) -> Rows:
    if "hash_ids" in fields:
        return _whole_numbers(number, "hash_ids", fields["hash_ids"])
    if "hash_runs" not in fields:
        raise _wrong(number, "has neither hash_ids nor hash_runs")
    runs = fields["hash_runs"]
    if not isinstance(runs, list) or not all(isinstance(run, list) and len(run) == 2 for run in runs):
        raise _wrong(number, "hash_runs: must be a list of [first, count]")
    flat = _whole_numbers(number, "hash_runs", [value for run in runs for value in run])
    firsts, counts = flat[::2], flat[1::2]
    if len(counts) and (counts.min() < 1 or int(counts.max()) > MAX_CHAIN_BLOCKS):
        raise _wrong(number, f"hash_runs: a count is not in 1..{MAX_CHAIN_BLOCKS}")
    if len(counts) and int(firsts.max()) > MAX_ID - MAX_CHAIN_BLOCKS:
        raise _wrong(number, f"hash_runs: an id is not in 0..{MAX_ID - MAX_CHAIN_BLOCKS}")
    if int(counts.sum()) > MAX_CHAIN_BLOCKS:
        raise _wrong(number, f"hash_runs: {int(counts.sum())} blocks, over the limit of {MAX_CHAIN_BLOCKS}")
    runs = zip(firsts.tolist(), counts.tolist(), strict=True)
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, first + count) for first, count in runs)])


def _whole_numbers(number: int, field: str, values: object) -> Rows:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= MAX_ID for value in values):
        raise _wrong(number, f"{field}: must be a list of whole numbers in 0..{MAX_ID}")
    return np.array(values, np.int64)


def _figure(number: int, fields: Mapping[str, Any], field: str) -> float:
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise _wrong(number, f"{field}: must be a number in 0..1e15, got {value!r}")
    return float(value)


def _numbered(raw: Sequence[Request], sessions: Sequence[object]) -> Trace:
    """Blocks numbered by first occurrence: replays keep a column entry for each number."""
    everything = np.concatenate([request.chain for request in raw])
    _, first, inverse = np.unique(everything, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    ends = np.cumsum([len(request.chain) for request in raw])
    chains = np.split(order[inverse.ravel()], ends[:-1])
    requests = (Request(request.at_s, chain, request.input_tokens) for request, chain in zip(raw, chains, strict=True))
    return Trace(tuple(requests), tuple(sessions), len(first))


def _wrong(number: int, what: str) -> InvalidArgumentError:
    return InvalidArgumentError("trace", f"line {number} {what}")
