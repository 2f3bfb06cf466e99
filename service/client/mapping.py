"""Mapping the daemon's memory for one session, over the side socket, or saying why that cannot be."""

import time
from pathlib import Path

from hybridkv.service.client.attaching import side_socket
from hybridkv.service.client.devices import Handles, WorkerDevices
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.regions import WorkerRegions, handles_by_pool
from hybridkv.service.replies import Attached
from hybridkv.service.side.client import fetch_regions
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.states import Tier

HANDLES_S = 5.0


def map_memory(address: str, told: str, attached: Attached, deadline: float) -> tuple[Memory | None, str]:
    """The session's memory, or None and the reason. `told`: the side socket as the daemon named it. Blocks until
    `deadline` (monotonic) at most."""
    path = side_socket(address, told)
    if path is None:
        return None, "the daemon offers no side socket on this connection"
    left_s = max(0.001, deadline - time.monotonic())
    try:
        regions = WorkerRegions(fetch_regions(path, attached.session, attached.token, left_s))
    except HybridKVError as error:
        return None, str(error)
    if not any(pool.tier is Tier.CPU and pool.index in regions.pools for pool in attached.pools):
        regions.close()
        return None, "the daemon handed over no region of its CPU tier"
    devices = WorkerDevices(regions.handles, lambda: _handles(path, attached)) if regions.handles else None
    return Memory(regions, attached.pools, attached.block_bytes, devices), ""


def _handles(path: Path, attached: Attached) -> Handles:
    """All device memory there is by now. The descriptors that come along are known already."""
    received = fetch_regions(path, attached.session, attached.token, HANDLES_S)
    for region in received:
        region.close()
    return handles_by_pool(received)
