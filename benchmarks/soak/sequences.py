"""What a soak worker does with sequences: opened, written, extended, forked, suspended, published, beside a model of each."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridkv.benchmarks.content import Bytes, Content
from hybridkv.benchmarks.soak.tally import Tally, WrongBytesError
from hybridkv.benchmarks.soak.universe import BLOCK_TOKENS, CHAIN_BLOCKS, CHAINS, tokens_of
from hybridkv.paging.states import PageState
from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence
from hybridkv.tiers.errors import ExpiredError, InvalidArgumentError

OPEN_COUNT = 4
_READABLE = (PageState.READABLE, PageState.WRITABLE, PageState.FRESH)


@dataclass(slots=True)
class Modelled:
    """A sequence and what each of its blocks must hold: the seed of its content; None where a write did not end."""

    sequence: Sequence
    seeds: dict[int, bytes | None]

    def written(self) -> int:
        """Blocks from the start that hold what their keys say."""
        keys = self.sequence.keys
        return next((i for i in range(len(keys)) if self.seeds.get(i) != keys[i]), len(keys))


class SequenceOperations:
    """Random calls on up to OPEN_COUNT sequences of one mapped handle; raises WrongBytesError, and what the client raises."""

    def __init__(self, kv: KV, space: int, rng: random.Random, tally: Tally) -> None:
        self.kv, self.space, self.rng, self.tally = kv, space, rng, tally
        self._content = Content(kv.space.layout.block_bytes)
        self._open: list[Modelled] = []
        self.verbs: dict[Callable[[], None], int] = {
            self.sequence_open: 4,
            self.sequence_write: 5,
            self.sequence_read: 6,
            self.sequence_extend: 2,
            self.sequence_scribble: 2,
            self.sequence_fork: 2,
            self.sequence_publish: 3,
            self.sequence_suspend: 1,
            self.sequence_resume: 1,
            self.sequence_resize: 1,
            self.sequence_stick: 1,
            self.sequence_advance: 1,
            self.sequence_close: 2,
        }

    def sequence_open(self) -> None:
        if len(self._open) >= OPEN_COUNT:
            self.sequence_close()
        tokens = tokens_of(self.rng.randrange(CHAINS[self.space]), self.rng.randint(1, CHAIN_BLOCKS))
        cut = self.rng.randrange(BLOCK_TOKENS)
        made = self.kv.open_sequence(tokens[: len(tokens) - cut], page_blocks=self.rng.choice((1, 1, 2, 4)))
        self._open.append(Modelled(made, {i: made.keys[i] for i in range(made.cached_blocks)}))

    def sequence_write(self) -> None:
        """What a step of an engine computes: the next blocks that do not hold what their keys say, and the tail."""
        self._on(self._write)

    def sequence_scribble(self) -> None:
        """Any block is written anew, shared or not: others keep theirs."""
        self._on(lambda one: self._store(one, [self.rng.randrange(one.sequence.blocks)], own=True))

    def sequence_read(self) -> None:
        self._on(self._read)

    def sequence_extend(self) -> None:
        more = self.rng.randint(1, 3 * BLOCK_TOKENS)
        start = self.rng.randrange(1 << 30)
        self._on(lambda one: one.sequence.extend(range(start, start + more)) if one.sequence.blocks < 64 else None)

    def sequence_fork(self) -> None:
        self._on(self._fork)

    def sequence_publish(self) -> None:
        self._on(lambda one: one.sequence.publish(one.written() * BLOCK_TOKENS))

    def sequence_suspend(self) -> None:
        self._on(lambda one: one.sequence.suspend())

    def sequence_resume(self) -> None:
        self._on(lambda one: one.sequence.resume())

    def sequence_resize(self) -> None:
        self._on(lambda one: one.sequence.adjust_page_size(self.rng.choice((1, 2, 4))))

    def sequence_stick(self) -> None:
        """Refused where the block was never written, or has been lost."""
        with contextlib.suppress(InvalidArgumentError):
            self._on(lambda one: one.sequence.set_sticky(0, 1, self.rng.random() < 0.5))

    def sequence_advance(self) -> None:
        self._on(lambda one: one.sequence.advance(self.rng.randrange(len(one.sequence))))

    def sequence_close(self) -> None:
        if self._open:
            self._open.pop(self.rng.randrange(len(self._open))).sequence.close()

    # ------------------------------------------------------------------------------------------------ inside

    def _on(self, call: Callable[[Modelled], object]) -> None:
        """On one of those that are open; one whose session ended is no more."""
        if not self._open:
            return self.sequence_open()
        one = self.rng.choice(self._open)
        try:
            call(one)
        except ExpiredError:
            self._open.remove(one)
            raise

    def _write(self, one: Modelled) -> None:
        keys, blocks = one.sequence.keys, one.sequence.blocks
        stale = [i for i in range(blocks) if i not in one.seeds or (i < len(keys) and one.seeds[i] != keys[i])]
        if stale:
            self._store(one, stale[: self.rng.randint(1, 6)])

    def _store(self, one: Modelled, blocks: list[int], *, own: bool = False) -> None:
        keys = one.sequence.keys
        data = np.empty((len(blocks), self.kv.space.layout.block_bytes), np.uint8)
        seeds = [self.rng.randbytes(16) if own or i >= len(keys) else keys[i] for i in blocks]
        for seed, row in zip(seeds, data, strict=True):
            self._content.fill(seed, row)
        one.seeds.update(dict.fromkeys(blocks))
        one.sequence.write_blocks(blocks, data, timeout_s=0.5)
        one.seeds.update(zip(blocks, seeds, strict=True))

    def _read(self, one: Modelled) -> None:
        first = self.rng.randrange(one.sequence.blocks)
        blocks = list(range(first, min(one.sequence.blocks, first + 8)))
        out = np.empty((len(blocks), self.kv.space.layout.block_bytes), np.uint8)
        states = one.sequence.read_blocks(blocks, out, timeout_s=0.5)
        for block, state, row in zip(blocks, states.tolist(), out, strict=True):
            self._judge(one, block, PageState(state), row)

    def _judge(self, one: Modelled, block: int, state: PageState, row: Bytes) -> None:
        if state is PageState.LOST:
            one.seeds.pop(block, None)
        seed = one.seeds.get(block)
        if seed is None or state is PageState.ELSEWHERE:
            return
        if state not in _READABLE or not self._content.verify(seed, row):
            raise WrongBytesError(
                f"block {block} of {one.sequence} is {state.name} and not what was written: {seed.hex()}"
            )
        self.tally.verified(1, len(row))

    def _fork(self, one: Modelled) -> None:
        if len(self._open) >= OPEN_COUNT:
            return
        (twin,) = one.sequence.fork()
        self._open.append(Modelled(twin, dict(one.seeds)))
