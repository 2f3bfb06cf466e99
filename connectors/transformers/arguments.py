"""What of `generate`'s arguments can be served with a cached prefix, and what is refused."""

from collections.abc import Mapping
from typing import Any

from hybridkv.tiers.errors import InvalidArgumentError

_ONE = ("num_beams", "num_return_sequences")
_NOT_OURS = ("inputs", "inputs_embeds", "encoder_outputs", "cache_implementation")


def one_sequence(input_ids: Any) -> Any:
    """Token ids as a tensor [tokens] of int64. Raises InvalidArgumentError unless it is one sequence, not empty."""
    import torch

    try:
        ids = torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError("input_ids", f"must be token ids: {error}") from error
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise InvalidArgumentError("input_ids", f"must be one sequence (batch size 1), got shape {tuple(ids.shape)}")
    if not len(ids) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidArgumentError("input_ids", f"must be one token id at least, got {len(ids)} of {ids.dtype}")
    return ids.to(torch.int64)


def check_generate(given: Mapping[str, Any], keyword: str) -> None:
    """Raises InvalidArgumentError for what a cached prefix of one sequence cannot serve."""
    config = given.get("generation_config")
    for name in _ONE:
        value = given.get(name, getattr(config, name, None))
        if value not in (None, 1):
            raise InvalidArgumentError(name, f"must be 1, got {value}: a cached prefix is that of one sequence")
    for name in (keyword, *_NOT_OURS):
        if given.get(name) is not None:
            raise InvalidArgumentError(name, "cannot be given together with a cached prefix")
    if given.get("use_cache") is False:
        raise InvalidArgumentError("use_cache", "must not be False: there would be no cache to restore")
    mask = given.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise InvalidArgumentError("attention_mask", "must be all ones: padding is not served")
