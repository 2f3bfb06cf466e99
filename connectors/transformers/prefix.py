"""Prefixes of a model: restored before `generate`, stored after it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridkv.connectors.guarded import Guarded
from hybridkv.connectors.transformers import blocks
from hybridkv.connectors.transformers.arguments import check_generate, one_sequence
from hybridkv.connectors.transformers.identity import namespace_of
from hybridkv.connectors.transformers.shapes import (
    BLOCK_TOKENS,
    CacheShape,
    cache_keyword,
    check_layers,
    empty_cache,
    learned_shape,
)
from hybridkv.service.client import KV, connect
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace

STAGE_BYTES = 32 << 20
"""Host memory that blocks pass through on their way; a longer prefix passes in several goes."""

CALL_KEYS = 1024
"""Blocks leased or reserved by one call."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A cache that holds the KV of the first `tokens` tokens of a prompt; empty when nothing was found."""

    cache: Any
    tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    """What `model.generate` returned, and what the cache did for it."""

    output: Any
    prompt_tokens: int
    cached_tokens: int
    stored_tokens: int


class PrefixCache:
    """The prefixes of one model in the tiers of a daemon, or of a host in this process. One thread at a time.

    No failure of the cache reaches the caller: what cannot be had is computed, what cannot be stored is not. A wrong
    argument, and a model whose cache cannot be cut into blocks, raise InvalidArgumentError.
    """

    def __init__(
        self,
        model: Any,
        where: KV | str,
        *,
        block_tokens: int = BLOCK_TOKENS,
        adapter: str = "",
        salt: str = "",
        load_timeout_s: float = 5.0,
    ) -> None:
        """`where`: a daemon's address, or a handle on the namespace of `namespace_of(model)`; a handle stays the caller's to
        close, and brings its own salt. `load_timeout_s`: longest wait for blocks that lie on disk."""
        self.model = model
        self.shape: CacheShape = learned_shape(model, block_tokens)
        ours = namespace_of(model, shape=self.shape, adapter=adapter, salt=salt)
        self.space: Namespace = ours if isinstance(where, str) else _checked_space(where.space, ours)
        self._given = None if isinstance(where, str) else where
        self._guarded = Guarded(lambda: where if isinstance(where, KV) else connect(where, self.space))
        self._load_timeout_s = load_timeout_s
        self._stage = np.empty(0, np.uint8)
        self._guarded.open()

    def restore(self, input_ids: Any) -> Restored:
        """The KV of the longest cached prefix of a prompt (token ids, [1, tokens] or [tokens]), but for its last token at
        least, which is left to compute: `generate` needs its logits."""
        tokens = one_sequence(input_ids)
        keys = self._keys(tokens[:-1])
        layers = blocks.empty_layers(self.shape, len(keys) * self.shape.block_tokens)
        found = self._guarded.call("restore a prefix", lambda kv: self._load(kv, keys, layers), 0)
        cache = empty_cache(self.model)
        if found:
            end = found * self.shape.block_tokens
            for layer, (key, value) in zip(cache.layers, layers, strict=True):
                layer.update(key[:, :, :0], value[:, :, :0])  # sets the layer up; the tensors need no copy then
                layer.keys, layer.values = key[:, :, :end], value[:, :, :end]
        return Restored(cache, found * self.shape.block_tokens)

    def save(self, cache: Any, tokens: Any, stored_tokens: int = 0) -> int:
        """Store the full blocks of `cache`, which holds the KV of the first of `tokens`; how many tokens were new.

        `stored_tokens`: how many are known to be stored already, from `restore`. Raises InvalidArgumentError for a cache of
        another kind, or one that holds more tokens than are given.
        """
        check_layers(cache.layers)
        known = one_sequence(tokens)
        held = int(cache.get_seq_length())
        if held > len(known):
            raise InvalidArgumentError("tokens", f"the cache holds {held} tokens, {len(known)} are given")
        keys = self._keys(known[:held])
        if not len(keys):
            return 0
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        first = stored_tokens // self.shape.block_tokens
        stored = self._guarded.call("store a prefix", lambda kv: self._store(kv, keys, first, layers), 0)
        return stored * self.shape.block_tokens

    def generate(self, input_ids: Any, **generate_kwargs: Any) -> Generated:
        """`model.generate` on a cached prefix; stores the blocks of prompt and answer afterwards.

        One sequence: raises InvalidArgumentError for batches, beams, a padded prompt, embeddings, a cache of the caller's.
        """
        keyword = cache_keyword(self.model)
        check_generate(generate_kwargs, keyword)
        tokens = one_sequence(input_ids)
        restored = self.restore(tokens)
        ids = tokens.unsqueeze(0).to(self.model.device)
        output = self.model.generate(ids, **{keyword: restored.cache}, **generate_kwargs)
        sequences = output if hasattr(output, "shape") else output.sequences
        stored = self.save(restored.cache, sequences, restored.tokens)
        return Generated(output, len(tokens), restored.tokens, stored)

    def close(self) -> None:
        """Detach, unless the handle is the caller's. May be repeated."""
        if self._given is None:
            self._guarded.close()

    def __enter__(self) -> "PrefixCache":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------ inside

    def _keys(self, tokens: Any) -> Keys:
        from hybridkv.tiers.keys import chain

        return chain(self.space, tokens.cpu().numpy())

    def _load(self, kv: KV, keys: Keys, layers: Any) -> int:
        """Copy the longest prefix that is there to `layers`; its blocks."""
        done = 0
        while done < len(keys):
            part = keys[done : done + CALL_KEYS]
            with kv.acquire(part, timeout_s=self._load_timeout_s) as lease:
                found = lease.prefix
                for start, rows in self._stages(found):
                    lease.read_into(rows, range(start, start + len(rows)))
                    blocks.from_rows(self.shape, rows, layers, done + start)
                if not lease.valid:  # the daemon went: what was read may be another's
                    return done
            done += found
            if found < len(part):
                break
        return done

    def _store(self, kv: KV, keys: Keys, first: int, layers: Any) -> int:
        """Store the blocks from `first` on that nobody has; how many."""
        stored = 0
        for start in range(first, len(keys), CALL_KEYS):
            part, parent = keys[start : start + CALL_KEYS], keys[start - 1] if start else None
            with kv.reserve(part, parent=parent, tier="cpu") as slots:
                for run in _runs(slots.new):
                    for at, rows in self._stages(len(run)):
                        blocks.to_rows(self.shape, layers, start + run[at], rows)
                        for row, i in zip(rows, run[at : at + len(rows)], strict=True):
                            slots.array(i)[:] = row
                stored += len(slots.seal())
        return stored

    def _stages(self, count: int) -> Iterator[tuple[int, Any]]:
        """(first block, rows for them) until `count` blocks have passed; the rows are the same memory each time."""
        block_bytes = self.space.layout.block_bytes
        most = max(1, STAGE_BYTES // block_bytes)
        if self._stage.nbytes < min(count, most) * block_bytes:
            self._stage = np.empty(min(count, most) * block_bytes, np.uint8)
        for start in range(0, count, most):
            rows = min(most, count - start)
            yield start, self._stage[: rows * block_bytes].reshape(rows, block_bytes)


def cached_generate(model: Any, where: KV | str, input_ids: Any, **generate_kwargs: Any) -> Any:
    """`model.generate(input_ids, **generate_kwargs)`, starting from the longest cached prefix; stores what it computed.

    `where`: a daemon's address, or a handle on `namespace_of(model)`. For more than one call keep a `PrefixCache`: it looks
    at the model and connects once.
    """
    with PrefixCache(model, where) as prefixes:
        return prefixes.generate(input_ids, **generate_kwargs).output


def _checked_space(given: Namespace, ours: Namespace) -> Namespace:
    """The handle's namespace, when it is the model's but for what only the caller knows. Raises InvalidArgumentError."""
    for name in ("layout", "config_digest", "adapter"):
        there, here = getattr(given, name), getattr(ours, name)
        if there != here:
            raise InvalidArgumentError("where", f"its namespace has {name} {there!r}, the model has {here!r}")
    return given


def _runs(indices: list[int]) -> list[list[int]]:
    """Ascending indices, cut where they are not neighbours."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs
