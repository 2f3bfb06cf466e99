"""Lengths of requests of a real service: the samples under `data/`, whose README names origin and licence."""

import gzip
from importlib.resources import files

import numpy as np
import numpy.typing as npt

TRACES = ("conv", "code")


def lengths(trace: str, count: int | None = None) -> npt.NDArray[np.int64]:
    """Tokens of each request with its reply, in order of arrival: the first `count` (None: all 2,000)."""
    packed = files("hybridkv.benchmarks").joinpath(f"data/azure_llm_2023_{trace}_first2000.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()[1:]
    pairs = np.array([line.split(",") for line in lines], np.int64)
    return np.asarray(pairs.sum(axis=1)[:count])
