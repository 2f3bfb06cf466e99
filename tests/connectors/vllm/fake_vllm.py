"""The modules of vLLM that the connector imports, as small as they can be: names and signatures of 0.32 and 0.33."""

import enum
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

VERSION = "0.33.0"


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class CacheHitSource(enum.Enum):
    HOST = "host"
    DISK = "disk"


@dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class Marker:
    """Stands for the abstract bases that plain values are registered with."""

    @classmethod
    def register(cls, kind: type) -> type:
        return kind


class KVConnectorBase:
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._connector_metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def _get_connector_metadata(self) -> Any:
        return self._connector_metadata


class Stats:
    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = data or {}


class PromMetrics:
    def __init__(
        self, config: Any, kinds: dict[Any, Any], labelnames: list[str], values: dict[int, list[object]]
    ) -> None:
        self._counter_cls, self._labelnames, self.per_engine_labelvalues = kinds["counter"], labelnames, values


def install(patch: pytest.MonkeyPatch) -> None:
    """Make `import vllm…` find these; what of the connector was imported before is imported anew, and forgotten after."""
    base = {
        "KVConnectorBase_V1": KVConnectorBase,
        "KVConnectorHandshakeMetadata": Marker,
        "KVConnectorMetadata": Marker,
        "KVConnectorRole": KVConnectorRole,
        "KVConnectorTransferResults": KVConnectorTransferResults,
        "KVConnectorWorkerMetadata": Marker,
        "SupportsHMA": type("SupportsHMA", (), {}),
    }
    metrics = {"KVConnectorStats": Stats, "KVConnectorPromMetrics": PromMetrics}
    at = "vllm.distributed.kv_transfer.kv_connector.v1"
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": VERSION},
        f"{at}.base": base,
        f"{at}.metrics": metrics,
    }
    contents["vllm.v1.metrics.cache_hit_source"] = {"CacheHitSource": CacheHitSource}
    for name in list(contents):
        parts = name.split(".")
        for end in range(1, len(parts)):
            contents.setdefault(".".join(parts[:end]), {})
    for name, attributes in contents.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        patch.setitem(sys.modules, name, module)
    for name in ("connector", "metrics"):
        patch.delitem(sys.modules, f"hybridkv.connectors.vllm.{name}", raising=False)


def config(address: str, model: str = "org/model", policy: str = "recompute", **extra: Any) -> Any:
    """A VllmConfig as far as the connector reads it."""
    hf_config = SimpleNamespace(to_dict=lambda: {"rope_theta": 1e4, "_name_or_path": "x"})
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"address": address, "timeout_s": 5.0, **extra}, kv_load_failure_policy=policy
        ),
        parallel_config=SimpleNamespace(rank=0, world_size=1),
        cache_config=SimpleNamespace(block_size=16, prefix_caching_hash_algo="sha256", cache_dtype="auto"),
        model_config=SimpleNamespace(
            model=model, revision="1", hf_config=hf_config, dtype=torch.float32, quantization=None
        ),
        compilation_config=SimpleNamespace(static_forward_context={}),
        device_config=SimpleNamespace(device_type="cpu"),
        speculative_config=None,
    )
