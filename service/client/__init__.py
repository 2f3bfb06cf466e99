"""The client: `connect` to a daemon, or `open` one in this process. Both give a `KV`."""

from hybridkv.service.client import forking  # before anything that imports gRPC  # isort: skip
from hybridkv.service.client.connecting import connect, open
from hybridkv.service.client.core import Found
from hybridkv.service.client.kv import KV
from hybridkv.service.client.lease import Lease
from hybridkv.service.client.publishing import PutCounts
from hybridkv.service.client.reservation import Reservation
from hybridkv.service.client.verbs import Request

__all__ = ["KV", "Found", "Lease", "PutCounts", "Request", "Reservation", "connect", "forking", "open"]
