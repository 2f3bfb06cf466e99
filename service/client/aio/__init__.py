"""The asyncio client: what `connect` gives, with `await`. See `kv.AsyncKV`."""

from hybridkv.service.client import forking  # before anything that imports gRPC  # isort: skip
from hybridkv.service.client.aio.kv import AsyncKV, connect_async
from hybridkv.service.client.aio.lease import AsyncLease
from hybridkv.service.client.aio.reservation import AsyncReservation
from hybridkv.service.client.aio.verbs import AsyncRequest

__all__ = ["AsyncKV", "AsyncLease", "AsyncRequest", "AsyncReservation", "connect_async", "forking"]
