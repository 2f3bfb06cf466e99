"""Workloads: which blocks each request of a real trace asks for, and what a cache without limits would serve of them."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import InvalidArgumentError

TAU_BENCH = Path(__file__).parent / "data" / "taubench_airline_gpt4o_first500.jsonl.gz"
"""The sample that comes with the package; see data/README.md."""

TAU_BENCH_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `blocks`: the ids of its blocks in prefix order; equal ids mean equal whole prefixes.

    `session` is the run that it belongs to, None where the trace does not say.
    """

    index: int
    session: int | None
    blocks: npt.NDArray[np.int64]

    def tokens(self, block_tokens: int) -> npt.NDArray[np.uint32]:
        """A prompt with exactly these blocks: token j of block i is i · block_tokens + j, so equal prefixes stay equal.

        Raises InvalidArgumentError for ids that leave no token within 32 bits.
        """
        if len(self.blocks) and int(self.blocks.max()) >= (1 << 32) // block_tokens:
            raise InvalidArgumentError("blocks", f"id {int(self.blocks.max())} is too large to make tokens from")
        tokens = self.blocks[:, None] * block_tokens + np.arange(block_tokens)
        return tokens.ravel().astype(np.uint32)


def load_trace(path: Path, limit: int | None = None) -> list[Request]:
    """The first `limit` requests (None: all) of a trace in JSON lines, gzipped or plain, in the order of the file.

    Raises InvalidArgumentError naming the line that is no request.
    """
    requests = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines):
            if limit is not None and number >= limit:
                break
            requests.append(_request(number, line))
    return requests


def _request(number: int, line: str) -> Request:
    try:
        fields = json.loads(line)
        return Request(number, fields.get("session"), np.fromiter(_ids(fields), np.int64))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError("trace", f"line {number + 1} is no request: {error!r}") from error


def _ids(fields: Mapping[str, Any]) -> Iterator[int]:
    if "hash_ids" in fields:
        yield from fields["hash_ids"]
        return
    for first, count in fields["hash_runs"]:
        yield from range(first, first + count)


def unique_count(requests: Iterable[Request]) -> int:
    """How many different blocks the requests ask for."""
    return len(np.unique(np.concatenate([request.blocks for request in requests])))


def infinite_hits(requests: Sequence[Request]) -> int:
    """Blocks that a cache which never forgets serves, the requests coming one after another: longest known prefixes."""
    seen: set[int] = set()
    hits = 0
    for request in requests:
        ids = request.blocks.tolist()
        hits += next((at for at, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    return hits
