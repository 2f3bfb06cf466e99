"""LMCache's daemon by its own client protocol, in shared-memory mode, as its vLLM connector uses it on a CPU.

`python -m hybridkv.benchmarks.peers.lmcache URL`, URL as its client takes it ("tcp://host:port", "grpc://host:port").
"""

import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridkv.benchmarks.content import Bytes
from hybridkv.benchmarks.peers.work import serve

CHUNK_TOKENS = 64
CALL_S = 60.0


class LMCache:
    """A block is a chunk of CHUNK_TOKENS tokens of a model with one layer, without K/V planes (its MLA layout), in uint8.

    A put is prepare, copy, commit; a get is lookup, wait, prepare, copy, commit; both end their request, as a scheduler would.
    """

    def __init__(self, url: str) -> None:
        factory: Any = importlib.import_module("lmcache.v1.multiprocess.transport.factory")
        self._types: Any = importlib.import_module("lmcache.v1.multiprocess.custom_types")
        self._base: Any = importlib.import_module("lmcache.v1.multiprocess.transfer_context.base")
        self._client = factory.RequestClientFactory.create(url)
        self._numbers = itertools.count()
        self._contexts: dict[int, Any] = {}
        self._client.noop().result(timeout=CALL_S)

    def put(self, keys: Sequence[bytes], blocks: Bytes) -> None:
        context, size = self._context(blocks.shape[1]), blocks.shape[1]
        key = self._key(keys, size, worker=0)
        prepared = context.prepare_store(key, size)
        if prepared is None or list(prepared[1]) != list(range(len(keys))):
            raise RuntimeError(f"prepare_store gave no room for all of {len(keys)} chunks")
        for slot, block in zip(prepared[0], blocks, strict=True):
            slot.view(-1).numpy()[:] = block
        if not context.commit_store(key, size, prepared[0]):
            raise RuntimeError("commit_store failed")
        self._client.end_session(key.request_id).result(timeout=CALL_S)

    def get(self, keys: Sequence[bytes], out: Bytes) -> None:
        context, size = self._context(out.shape[1]), out.shape[1]
        key = self._key(keys, size, worker=0)
        self._client.lookup(self._key(keys, size, worker=None, request=key.request_id), 1).result(timeout=CALL_S)
        self._client.wait_prefetch_status(key.request_id, CALL_S).result(timeout=CALL_S)
        slots = context.prepare_retrieve(key, size)
        for slot, row in zip(slots or (), out, strict=False):
            row[:] = slot.view(-1).numpy()
        context.commit_retrieve(key, size)
        self._client.end_session(key.request_id).result(timeout=CALL_S)

    def forget(self, keys: Sequence[bytes]) -> None:
        del keys
        self._client.clear(True).result(timeout=CALL_S)

    def _key(self, keys: Sequence[bytes], size: int, worker: int | None, request: str | None = None) -> Any:
        """The chunks of `keys` as one prompt: each key's bytes are the first of its chunk's tokens."""
        tokens = np.zeros((len(keys), CHUNK_TOKENS), np.int64)
        tokens[:, :4] = np.frombuffer(b"".join(keys), "<u4").reshape(len(keys), -1)[:, :4]
        return self._types.IPCCacheServerKey(
            model_name=f"bench-{size}",
            world_size=1,
            worker_id=worker,
            token_ids=tuple(tokens.ravel().tolist()),
            start=0,
            end=tokens.size,
            request_id=request or f"{os.getpid()}-{next(self._numbers)}",
            num_kv_readers=1,
        )

    def _context(self, size: int) -> Any:
        """The registration of one block size; its instance number is the size."""
        context = self._contexts.get(size)
        if context is None:
            context = self._contexts[size] = self._register(size)
        return context

    def _register(self, size: int) -> Any:
        torch: Any = importlib.import_module("torch")
        api: Any = importlib.import_module("lmcache.v1.distributed.api")
        width = size // CHUNK_TOKENS
        payload = self._types.RegisterEngineDrivenContextPayload(
            instance_id=size,
            model_name=f"bench-{size}",
            world_size=1,
            block_size=CHUNK_TOKENS,
            num_layers=1,
            hidden_dim_size=width,
            dtype_str="uint8",
            use_mla=True,
            num_physical_slots=CHUNK_TOKENS,
        )
        reply = self._client.register_kv_cache_engine_driven_context(payload).result(timeout=CALL_S)
        shape = torch.Size([1, CHUNK_TOKENS, width])
        layout = api.MemoryLayoutDesc(shapes=[shape], dtypes=[torch.uint8])
        metadata = self._base.EngineDrivenContextMetadata(layout_desc=layout, block_size=CHUNK_TOKENS, use_mla=True)
        if not reply.shm_name:
            raise RuntimeError("the server offers no shared memory")
        return self._base.create_engine_driven_context(
            metadata, self._client, CALL_S, shm_name=reply.shm_name, pool_size=reply.pool_size
        )


if __name__ == "__main__":
    serve(lambda: LMCache(sys.argv[1]))
