"""A CUDA device on the fake runtime, small enough that its limits are met."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Direction
from hybridkv.tiers.device.cuda import CudaDevice
from hybridkv.tiers.device.cuda_pool import CudaPool
from hybridkv.tiers.device.cuda_stream import PARTS_IN_FLIGHT, CudaStream
from tests.tiers.device.fake_cuda import FakeCuda
from tests.tiers.device.fake_world import World

KIB = 1 << 10
LARGE = 64 * KIB
SMALL = 4 * KIB
MOMENT_S = 0.2  # long enough for code without its synchronisation to run on
EXTENT_BYTES = 4 << 20


def offsets(*blocks: int, nbytes: int) -> npt.NDArray[np.int64]:
    return np.array(blocks, np.int64) * nbytes


class Bench:
    """A device with one buffer of staging, a pool of 16 MiB and page-locked memory of 8 MiB."""

    def __init__(self, reaches_host: bool = False) -> None:
        self.world = World()
        self.runtime = FakeCuda(self.world)
        self.runtime.reaches_host = reaches_host
        self.device = CudaDevice(0, self.runtime, staging_bytes=4 * SMALL, staging_count=1)
        self.pool: CudaPool = self.device.create_pool(16 << 20, extent_bytes=EXTENT_BYTES, extents_per_allocation=2)
        for extent in range(4):
            self.pool.commit_extent(extent)
        self.host = np.zeros(8 << 20, np.uint8)
        assert self.device.register_host(self.host, 0, self.host.nbytes).ok

    def device_bytes(self, block: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """What lies in device memory now, whatever is still under way."""
        return self.pool.view(block * nbytes, nbytes).numpy()

    def stalled(self, stream: CudaStream) -> None:
        """Stop the device and fill the stream, so that its issuing thread stands before the next batch."""
        self.world.pause()
        issued = self.world.calls("copy_async")
        for block in range(PARTS_IN_FLIGHT):
            where = offsets(60 + block, nbytes=LARGE)
            stream.copy(Direction.TO_DEVICE, self.pool, where, self.host, where, LARGE)
        assert self.world.wait_for_calls("copy_async", issued + PARTS_IN_FLIGHT)


def closing(made: Bench) -> Iterator[Bench]:
    yield made
    made.world.resume()
    made.device.close()
    assert made.world.violations == []
