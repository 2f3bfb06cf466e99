"""The committed samples of real workloads, as requests."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from hybridkv.migration.simulate import Request

_DATA = Path(__file__).parent / "data"


@cache
def sample(name: str) -> tuple[Request, ...]:
    """The requests of `data/NAME.jsonl`, in order."""
    with (_DATA / f"{name}.jsonl").open() as lines:
        return tuple(_request(json.loads(line)) for line in lines)


def _request(line: dict[str, object]) -> Request:
    runs = line.get("hash_runs")
    if isinstance(runs, list):
        chain = np.concatenate([np.arange(first, first + count) for first, count in runs])
    else:
        chain = np.array(line["hash_ids"], np.int64)
    return Request(float(str(line["timestamp"])) / 1000, chain, int(str(line["input_length"])))
