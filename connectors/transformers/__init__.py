"""transformers: `generate` that starts from the longest cached prefix and stores what it computed."""

from hybridkv.connectors.transformers.identity import namespace_of
from hybridkv.connectors.transformers.prefix import Generated, PrefixCache, Restored, cached_generate

__all__ = ["Generated", "PrefixCache", "Restored", "cached_generate", "namespace_of"]
