"""Decode with a sliding window over pages that lie in host memory: how many faults and how much waiting prefetch saves."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.paging_rig import WAIT_S, here, numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.paging.windows import Window
from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence

BLOCK_BYTES, BLOCK_TOKENS = 64 << 10, 16
BLOCKS, POOL_BLOCKS = 640, 160
WINDOW_BLOCKS, AHEAD_BLOCKS = 32, 16
WARM_STEPS = 32
STEP_S = 0.003
"""What a step of the model takes: the time in which a page has to come."""
MOST_FAULTS_LEFT = 0.05


@dataclass(frozen=True, slots=True)
class _Run:
    """A decode: major faults and waiting, steps counted once the window was warm."""

    steps: int
    faults: int
    waited_s: float


def decodes(setting: Setting) -> list[Row]:
    """A page a step; each step reads the page that the window newly reaches."""
    space = space_of(BLOCK_BYTES, BLOCK_TOKENS)
    with here(setting.folder / "decode", space, gpu_blocks=POOL_BLOCKS, cpu_blocks=BLOCKS + 64) as kv:
        with _below(kv) as sequence:
            without = _decode(kv, sequence, Window(WINDOW_BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS))
        with _below(kv) as sequence:
            ahead = _decode(
                kv, sequence, Window(WINDOW_BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS, AHEAD_BLOCKS * BLOCK_TOKENS)
            )
    per_step, least = (run.waited_s / run.steps * 1e3 for run in (ahead, without))
    return [
        Row("windowed decode: major faults a step, no prefetch", without.faults / without.steps, "faults", better=Better.LOWER),
        Row("windowed decode: major faults a step, prefetch", ahead.faults / ahead.steps, "faults",
            without.faults / without.steps, MOST_FAULTS_LEFT, Better.LOWER),
        Row("windowed decode: waiting a step, prefetch", per_step, "ms", least, better=Better.LOWER),
    ]  # fmt: skip


def _below(kv: KV) -> Sequence:
    """A cached sequence, longer than the pool, all of whose blocks lie in host memory."""
    keys = kv.keys(numbered(BLOCKS * BLOCK_TOKENS))
    with kv.reserve(keys, tier="cpu", timeout_s=WAIT_S) as slots:
        for i in slots.new:
            slots.array(i)[:] = i % 251
        slots.seal()
    sequence = kv.open_sequence(numbered(BLOCKS * BLOCK_TOKENS))
    sequence.suspend(timeout_s=WAIT_S)  # what the run before brought up
    return sequence


def _decode(kv: KV, sequence: Sequence, window: Window) -> _Run:
    steps = faults = 0
    waited_s = 0.0
    out = np.empty((1, BLOCK_BYTES), np.uint8)
    majors = _majors(kv)
    seen = 0
    for block in range(WINDOW_BLOCKS, BLOCKS - AHEAD_BLOCKS):
        sequence.advance(block * BLOCK_TOKENS, window)
        if block == WINDOW_BLOCKS + WARM_STEPS:
            seen = majors()
            waited_s, steps = 0.0, 0
        began = time.perf_counter()
        sequence.read_blocks([block], out, timeout_s=WAIT_S)
        waited_s += time.perf_counter() - began
        steps += 1
        time.sleep(STEP_S)
    faults = majors() - seen
    return _Run(steps, faults, waited_s)


def _majors(kv: KV) -> Callable[[], int]:
    return lambda: int(kv.stats()["paging"]["major_faults"])
