"""Changing the page size of a sequence in use: what it takes where blocks are adjacent already, and where they are not."""

from statistics import median

import numpy as np

from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import lap
from hybridkv.benchmarks.paging_rig import WAIT_S, allocate, here, numbered, space_of
from hybridkv.benchmarks.report import Better, Row
from hybridkv.paging.replies import ResizeReply
from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence

BLOCK_BYTES, BLOCK_TOKENS = 16 << 10, 16
BLOCKS, APART_BLOCKS = 1024, 256
PAGE_BLOCKS = 8
ROUNDS = 3


def resizes(setting: Setting) -> list[Row]:
    """1 → 8 blocks a page and back, of a sequence that is written; the floor of the copying is a plain copy of its bytes."""
    space = space_of(BLOCK_BYTES, BLOCK_TOKENS)
    with here(setting.folder / "resize", space, gpu_blocks=4 * BLOCKS, cpu_blocks=64) as kv:
        adjacent = [_joined(_adjacent(kv)) for _ in range(ROUNDS)]
        apart = [_joined(_interleaved(kv, number)) for number in range(ROUNDS)]
        back = [taken for _, _, taken in adjacent]
    copied_s = median(_plain_copy() for _ in range(ROUNDS + 2))
    name = f"page size 1 → {PAGE_BLOCKS} of {BLOCKS:,} blocks, adjacent"
    apart_name = f"page size 1 → {PAGE_BLOCKS} of {APART_BLOCKS:,} blocks, every other slot"
    return [
        Row(name, median(s for s, _, _ in adjacent) * 1e3, "ms", better=Better.LOWER),
        Row(f"{name}: copied", median(r.copied_bytes for _, r, _ in adjacent), "bytes", None, 0, Better.LOWER),
        Row(f"{name}: entries", median(r.entries_after for _, r, _ in adjacent), "entries",
            median(r.entries_before for _, r, _ in adjacent), better=Better.LOWER),
        Row(f"page size {PAGE_BLOCKS} → 1 of {BLOCKS:,} blocks", median(back) * 1e3, "ms", better=Better.LOWER),
        Row(apart_name, median(s for s, _, _ in apart) * 1e3, "ms", copied_s * 1e3, better=Better.LOWER),
        Row(f"{apart_name}: copied", median(r.copied_bytes for _, r, _ in apart) / 1e6, "MB",
            APART_BLOCKS * BLOCK_BYTES / 1e6, 1.0, Better.LOWER),
        Row(f"{apart_name}: entries", median(r.entries_after for _, r, _ in apart), "entries",
            median(r.entries_before for _, r, _ in apart), better=Better.LOWER),
        Row(f"{apart_name}: pages left split", median(r.split_pages for _, r, _ in apart), "pages", None, 0, Better.LOWER),
    ]  # fmt: skip


def _joined(sequence: Sequence) -> tuple[float, ResizeReply, float]:
    """Seconds to join and what that came to, and seconds to split again; the sequence is closed."""
    with lap() as up:
        reply = sequence.adjust_page_size(PAGE_BLOCKS, timeout_s=WAIT_S)
    with lap() as down:
        sequence.adjust_page_size(1, timeout_s=WAIT_S)
    sequence.close()
    return up.wall_s, reply, down.wall_s


def _adjacent(kv: KV) -> Sequence:
    sequence = kv.open_sequence(numbered(BLOCKS * BLOCK_TOKENS))
    allocate(sequence, BLOCKS)
    return sequence


def _interleaved(kv: KV, chain: int) -> Sequence:
    """Sealed blocks in every other slot: another sequence grew beside it, and is gone. What is still written does not move."""
    sequence = kv.open_sequence(numbered(APART_BLOCKS * BLOCK_TOKENS, (2 * chain + 1) << 24))
    other = kv.open_sequence(numbered(APART_BLOCKS * BLOCK_TOKENS))
    for block in range(APART_BLOCKS):
        sequence.fault([block], write=True, timeout_s=WAIT_S)
        other.fault([block], write=True, timeout_s=WAIT_S)
    other.close()
    sequence.publish(timeout_s=WAIT_S)
    return sequence


def _plain_copy() -> float:
    source = np.ones((APART_BLOCKS, BLOCK_BYTES), np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(0).permutation(APART_BLOCKS)
    with lap() as taken:
        for to, at in enumerate(order.tolist()):
            target[to] = source[at]
    return taken.wall_s
