"""Whose blocks they are: a namespace from a model, so that no two models that compute other KV ever share one."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from hybridkv.connectors.transformers.shapes import BLOCK_TOKENS, CacheShape, learned_shape
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.namespace import Namespace

SAMPLES = 16
"""Values of every parameter that stand for its weights: training or merging an adapter changes nearly all of them."""

_DIGEST_BYTES = 16
_NOT_KV = frozenset({"_name_or_path", "transformers_version", "architectures", "use_cache", "output_attentions"})
"""Keys of a config that say nothing about KV."""
_MOVING_ROPE = frozenset({"dynamic", "longrope"})


def namespace_of(
    model: Any,
    *,
    shape: CacheShape | None = None,
    block_tokens: int = BLOCK_TOKENS,
    adapter: str = "",
    revision: str = "",
    salt: str = "",
) -> Namespace:
    """The namespace of what `model` computes, from its config (RoPE included), weights, dtype and attention.

    The weights are told apart by a sample of each parameter, so a model that was trained on under its old name shares
    nothing with what it was. `adapter` names a PEFT adapter that is active. Raises InvalidArgumentError.
    """
    check_positions(model.config)
    if getattr(model, "peft_config", None) and not adapter:
        raise InvalidArgumentError(
            "adapter", f"must name the active adapter: the model has {sorted(model.peft_config)}"
        )
    name = PurePath(getattr(model.config, "_name_or_path", "") or type(model).__name__).name
    return Namespace(
        model=name,
        revision=revision or getattr(model.config, "_commit_hash", None) or "",
        config_digest=f"{config_digest(model.config)}/{weights_digest(model)}",
        adapter=adapter,
        layout=(shape or learned_shape(model, block_tokens)).layout,
        salt=salt,
    )


def check_positions(config: Any) -> None:
    """Raises InvalidArgumentError where the KV of a token depends on how long the whole sequence is."""
    for kind in _rope_types(config.to_dict()):
        if kind in _MOVING_ROPE:
            reason = "its rotations change with the length of the sequence, so the KV of a prefix is not its own"
            raise InvalidArgumentError("model.config.rope_type", f"{kind!r} is not served: {reason}")


def config_digest(config: Any) -> str:
    """Of everything in the config that may change KV, attention's implementation included: it changes last bits."""
    kept = {key: value for key, value in config.to_dict().items() if key not in _NOT_KV}
    kept["attention"] = getattr(config, "_attn_implementation", None)
    text = json.dumps(kept, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def weights_digest(model: Any) -> str:
    """Of `SAMPLES` values of every parameter and buffer, spread evenly, and of their names and shapes."""
    import torch

    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, tensor in sorted((*model.named_parameters(), *model.named_buffers())):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES].contiguous().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"")
    return digest.hexdigest()


def _rope_types(value: Any) -> Iterator[str]:
    """Every `rope_type` (or its older name) anywhere in the config: some have one for each kind of layer."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "rope_type" or (key == "type" and "factor" in value):
                yield str(inner)
            yield from _rope_types(inner)
