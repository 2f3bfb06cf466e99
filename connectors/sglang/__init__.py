"""SGLang: a dynamic HiCache storage backend. It has not run in SGLang yet: see docs/engines.md."""

from hybridkv.connectors.sglang.storage import HybridKVHiCache

__all__ = ["HybridKVHiCache"]
