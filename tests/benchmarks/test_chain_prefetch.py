"""The measurement of chain prefetch on a small workload."""

import numpy as np

from hybridkv.benchmarks.chain_prefetch import replay
from hybridkv.benchmarks.workload import Request


def test_a_chain_that_is_asked_for_in_pieces_is_served_ahead() -> None:
    """A long chain, others that push it off the device, and the same chain once more."""
    long = np.arange(300)
    chains = [long, np.arange(1000, 1300), np.arange(2000, 2300), long]
    requests = [Request(number, 0, chain) for number, chain in enumerate(chains)]
    off, on = (replay(requests, most, 8).split() for most in (0, 16))
    assert off[3] == on[3] == "0.2500", "found anywhere: the fourth request's blocks"
    assert float(on[2]) > float(off[2])
    assert int(on[5]) > int(on[6]), "most guesses were used"
