"""Whose blocks a rank's are: what of vLLM's config decides the bytes of a block, as a `Namespace`."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hybridkv.connectors.vllm.layout import GroupLayout
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

KEY_BYTES = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}
_SEEDED = frozenset({"xxhash", "xxhash_cbor"})
_VOLATILE = frozenset({"_name_or_path", "transformers_version"})
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".json")


def key_bytes_of(vllm_config: Any) -> int:
    """The width of vLLM's block hashes. FailedPreconditionError where they differ from process to process."""
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if algorithm not in KEY_BYTES:
        raise FailedPreconditionError(f"hybridkv does not know prefix_caching_hash_algo={algorithm}; use sha256_cbor")
    if algorithm in _SEEDED and os.environ.get("PYTHONHASHSEED") is None:
        raise FailedPreconditionError(
            f"hybridkv cannot use prefix_caching_hash_algo={algorithm}: without PYTHONHASHSEED every process has its own "
            "hashes; use sha256 or sha256_cbor, or set PYTHONHASHSEED to the same value everywhere"
        )
    return KEY_BYTES[algorithm]


def space_of(vllm_config: Any, layout: GroupLayout, *, groups: int, rank: int, world: int, salt: str) -> Namespace:
    """The namespace of one group on one rank. FailedPreconditionError for what has none."""
    model = vllm_config.model_config
    described = {
        "group": [layout.group.index, groups, layout.identity()],
        "hash": [str(vllm_config.cache_config.prefix_caching_hash_algo), os.environ.get("PYTHONHASHSEED", "")],
        "engine": engine_of(vllm_config, layout.group.layers),
        "model": config_of(model.hf_config),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache": str(vllm_config.cache_config.cache_dtype),
        "draft": str(getattr(vllm_config.speculative_config, "model", "")),
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()
    return Namespace(
        model=str(model.model),
        revision=revision_of(str(model.model), model.revision),
        config_digest=digest,
        layout=BlockLayout.opaque(layout.payload_bytes, layout.group.block_tokens, f"vllm:{digest}"),
        salt=salt,
        rank=rank,
        world=world,
        key_bytes=key_bytes_of(vllm_config),
    )


def engine_of(vllm_config: Any, layers: tuple[str, ...]) -> list[str]:
    """vLLM's version, device and attention backends: what a page holds inside is theirs to decide."""
    import vllm

    known = vllm_config.compilation_config.static_forward_context
    backends = {_backend(known[layer]) for layer in layers if layer in known}
    return [vllm.__version__, str(vllm_config.device_config.device_type), *sorted(backends)]


def _backend(layer: Any) -> str:
    backend = layer.get_attn_backend() if hasattr(layer, "get_attn_backend") else type(layer)
    return str(getattr(backend, "__name__", backend))


def config_of(hf_config: Any) -> dict[str, Any]:
    """The model's config (RoPE and its scaling among it) without what says nothing of the bytes."""
    described: dict[str, Any] = hf_config.to_dict()
    return {name: value for name, value in described.items() if name not in _VOLATILE}


def revision_of(model: str, revision: str | None) -> str:
    """The revision; for a model in a folder also which files it is made of, so that new weights are another model."""
    folder = Path(model)
    if not folder.is_dir():
        return revision or ""
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    return f"{revision or ''}+{stamp_of(files)}"


def stamp_of(files: list[Path]) -> str:
    """A digest of names, sizes and times of change."""
    listed = [(path.name, (status := path.stat()).st_size, status.st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]
