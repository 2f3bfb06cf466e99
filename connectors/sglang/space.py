"""Whose pages they are, and their keys, from what SGLang says."""

from collections.abc import Sequence
from typing import Any

from hybridkv.connectors.sglang.options import Options
from hybridkv.connectors.sglang.pool import HostPool
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

KEY_BYTES = 32
"""SGLang's keys are SHA-256 in hex, over the parent's digest and the page's tokens."""


def namespace_of(storage_config: Any, pool: HostPool, options: Options) -> Namespace:
    """The namespace of this rank's pages.

    Ranks of tensor, pipeline and context parallelism have different KV; with MLA all tensor-parallel ranks have the same,
    written by the first. Attention data-parallel ranks share. Raises InvalidArgumentError.
    """
    tp_rank, tp_size = _rank(storage_config, "tp")
    if getattr(storage_config, "is_mla_model", False):
        tp_rank, tp_size = 0, 1
    pp_rank, pp_size = _rank(storage_config, "pp")
    cp_rank, cp_size = _rank(storage_config, "attn_cp")
    model = options.model or getattr(storage_config, "model_name", None) or ""
    if not model:
        raise InvalidArgumentError("extra_config.hybridkv.model", "is needed: SGLang named no model")
    return Namespace(
        model=model,
        revision=options.revision,
        config_digest=f"{options.config_digest}/tp{tp_size}/pp{pp_size}/cp{cp_size}",
        layout=BlockLayout.opaque(pool.page_bytes, pool.page_tokens, pool.tag),
        salt=options.salt,
        rank=(pp_rank * cp_size + cp_rank) * tp_size + tp_rank,
        world=tp_size * pp_size * cp_size,
        key_bytes=KEY_BYTES,
    )


def keys_of(keys: Sequence[str]) -> Keys:
    """SGLang's page keys as ours. Raises InvalidArgumentError for one that is not 64 hex digits."""
    if any(len(key) != 2 * KEY_BYTES for key in keys):
        raise InvalidArgumentError("keys", f"must all be {2 * KEY_BYTES} hex digits (SHA-256)")
    try:
        return Keys(bytes.fromhex("".join(keys)), KEY_BYTES)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("keys", f"must be hex digits: {error}") from error


def parent_of(extra_info: Any) -> bytes | None:
    """The key before the batch, where SGLang tells what came before it."""
    before = getattr(extra_info, "prefix_keys", None)
    return keys_of(before[-1:])[0] if before else None


def _rank(storage_config: Any, kind: str) -> tuple[int, int]:
    """(rank, size) of a kind of parallelism; older SGLang does not know all of them."""
    return getattr(storage_config, f"{kind}_rank", 0), getattr(storage_config, f"{kind}_size", 1)
