"""Keys of a request's blocks, from vLLM's own block hashes.

vLLM chains them over tokens, LoRA name, multimodal hashes, cache_salt and prompt embeddings; all that the engine, the model
and the layout decide is in the namespace. A LoRA's name says nothing of its weights, so these are mixed in here.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from hybridkv.connectors.vllm.groups import Group
from hybridkv.connectors.vllm.identity import stamp_of


def adapter_of(request: Any) -> bytes | None:
    """A digest of the request's LoRA: name, path and, where that is a folder, its files. None without one."""
    lora = getattr(request, "lora_request", None)
    if lora is None:
        return None
    folder = Path(str(lora.lora_path))
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    described = json.dumps([str(lora.lora_name), str(lora.lora_path), stamp_of(files)])
    return hashlib.blake2b(described.encode(), digest_size=32).digest()


class RequestKeys:
    """The keys of one request, per group. They grow as vLLM hashes what is generated; not thread-safe."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._adapter = adapter_of(request)
        self._keys: dict[int, list[bytes]] = {}

    def of(self, group: Group) -> list[bytes]:
        """Keys of all full blocks that vLLM has hashed: a block's is the hash that ends it. Do not change the list."""
        hashes, found = self._request.block_hashes, self._keys.setdefault(group.index, [])
        for i in range(len(found), len(hashes) // group.hashes):
            found.append(self._key(bytes(hashes[(i + 1) * group.hashes - 1])))
        return found

    def _key(self, block_hash: bytes) -> bytes:
        if self._adapter is None:
            return block_hash
        return hashlib.blake2b(block_hash, digest_size=len(block_hash), key=self._adapter).digest()
