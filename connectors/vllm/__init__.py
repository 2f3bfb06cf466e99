"""The connector for vLLM: `kv_connector_module_path="hybridkv.connectors.vllm"`, `kv_connector="HybridKVConnector"`.

vLLM owns the GPU's KV pool and its block table; here its blocks are copied to and from the daemon's CPU tier, which the
disk tier lies behind. One block of vLLM (N tokens, every layer of one KV-cache group of one rank) is one block here.
`connector.py` is what vLLM calls, `scheduler.py` and `worker.py` are its two halves. Only `connector.py` and `metrics.py`
import vLLM, so that the rest can be used, and tested, where it is not installed.
"""

from typing import Any

__all__ = ["HybridKVConnector"]


def __getattr__(name: str) -> Any:
    """`HybridKVConnector`, once it is asked for: it needs vLLM."""
    if name == "HybridKVConnector":
        from hybridkv.connectors.vllm.connector import HybridKVConnector

        return HybridKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
