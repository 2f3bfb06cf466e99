"""The KV-cache groups of a model as this connector sees them, and what it does not serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridkv.tiers.errors import FailedPreconditionError

_FULL = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_SLIDING = frozenset({"SlidingWindowSpec"})
_UNIFORM = "UniformTypeKVCacheSpecs"
_WHY_NOT = {
    "MambaSpec": "the state of a Mamba layer is not made of blocks of tokens",
    "CrossAttentionSpec": "its KV belongs to the encoder's input, not to the tokens that keys are made of",
    "EncoderOnlyAttentionSpec": "it keeps no KV",
}


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group: layers with one block table.

    `window` is the tokens that a sliding window looks back, None for full attention; `hashes` how many of vLLM's hash
    blocks make one block of this group.
    """

    index: int
    layers: tuple[str, ...]
    block_tokens: int
    window: int | None
    hashes: int


def groups_of(kv_cache_config: Any, hash_tokens: int) -> tuple[Group, ...]:
    """The groups of vLLM's KVCacheConfig, hashed in blocks of `hash_tokens`. FailedPreconditionError says what is refused."""
    groups = tuple(_group(i, spec, hash_tokens) for i, spec in enumerate(kv_cache_config.kv_cache_groups))
    if not groups:
        raise FailedPreconditionError("hybridkv cannot serve this model: it has no KV cache")
    return groups


def uncached(tokens: int, groups: Sequence[Group]) -> dict[str, int]:
    """What of a request of so many tokens is in no full block, as counters: only full blocks have keys."""
    block_tokens = min(group.block_tokens for group in groups)
    return {"short_requests": int(tokens < block_tokens), "tail_tokens": tokens % block_tokens}


def _group(index: int, group: Any, hash_tokens: int) -> Group:
    layers, spec = tuple(group.layer_names), group.kv_cache_spec
    if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
        raise _refused(layers, type(spec).__name__, "vLLM excludes this group from KV transfer")
    inner = list(spec.kv_cache_specs.values()) if type(spec).__name__ == _UNIFORM else [spec]
    windows = {_window(layers, one) for one in inner}
    if len(windows) > 1:
        raise _refused(layers, _UNIFORM, "its layers look back over windows of different lengths")
    if spec.block_size % hash_tokens:
        why = f"its blocks of {spec.block_size} tokens are no multiple of the {hash_tokens} that are hashed together"
        raise _refused(layers, type(spec).__name__, why)
    return Group(index, layers, spec.block_size, windows.pop(), spec.block_size // hash_tokens)


def _window(layers: tuple[str, ...], spec: Any) -> int | None:
    kind = type(spec).__name__
    if kind in _FULL:
        return None
    if kind in _SLIDING:
        return int(spec.sliding_window)
    known = next((why for base in type(spec).__mro__ if (why := _WHY_NOT.get(base.__name__))), None)
    raise _refused(layers, kind, known or "this kind of cache is not known here")


def _refused(layers: tuple[str, ...], kind: str, why: str) -> FailedPreconditionError:
    shown = ", ".join(layers[:2]) + (f" and {len(layers) - 2} more" if len(layers) > 2 else "")
    return FailedPreconditionError(f"hybridkv cannot serve this model: {kind} of {shown}: {why}")


def check_parallel(parallel_config: Any) -> None:
    """Raises FailedPreconditionError for what splits a token's KV over ranks by position."""
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel_config, name, 1)
        if size > 1:
            raise FailedPreconditionError(
                f"hybridkv cannot serve {name}={size}: blocks would hold every n-th token only"
            )


def check_backend(vllm_config: Any) -> None:
    """Raises FailedPreconditionError where vLLM's backend cannot go on behind a prefix that was loaded."""
    latent = getattr(vllm_config.model_config, "use_mla", False)
    if latent and not vllm_config.scheduler_config.enable_chunked_prefill:
        raise FailedPreconditionError(
            "hybridkv cannot serve this model here: vLLM's MLA backend on this machine computes whole prompts only (it turns "
            "chunked prefill and prefix caching off), and a hit starts in the middle of one"
        )
