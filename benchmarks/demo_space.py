"""Whose blocks the demo's are. Light to import: the workers need no tier."""

from hybridkv.benchmarks.workload import TAU_BENCH_BLOCK_TOKENS
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

BLOCK_BYTES = 64 << 10


def demo_space() -> Namespace:
    """The namespace of all of the demo's processes."""
    layout = BlockLayout.opaque(BLOCK_BYTES, TAU_BENCH_BLOCK_TOKENS, "demo")
    return Namespace(model="demo", revision="tau-bench airline", layout=layout)
