"""The devices that one conformance suite runs on."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.benchmarks.device_peer import Answer, Peer, pattern
from hybridkv.tiers.device.base import AllocationHandle, Device, ImportedPool
from hybridkv.tiers.device.cuda import CudaDevice
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.device.host_pool import HostPoolExport
from hybridkv.tiers.device.pool import DevicePool, PoolExport
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.gpu import open_device
from tests.tiers.device.bench import Bench, closing
from tests.tiers.device.fake_cuda import FakeCuda
from tests.tiers.device.fake_world import World

Bytes = npt.NDArray[np.uint8]
EXTENT_BYTES = 4 << 20
EXTENTS = 6  # not a multiple of the extents in an allocation


class Asks(Protocol):
    def ask(
        self, handles: Sequence[AllocationHandle], nbytes: int, read: dict[int, int], write: dict[int, int]
    ) -> Answer: ...


class Rig:
    """A device, a committed pool on it, and what differs between kinds of device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool: DevicePool = device.create_pool(EXTENT_BYTES * EXTENTS, extent_bytes=EXTENT_BYTES)
        for extent in range(EXTENTS):
            self.pool.commit_extent(extent)

    def host_memory(self, nbytes: int, *, registered: bool = True) -> Bytes:
        """Zeroed host memory on pages of its own; page-locked where that matters."""
        memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        if registered:
            answer = self.device.register_host(memory, 0, nbytes)
            assert answer.ok, answer.reason
        return memory

    @contextmanager
    def second_process(self, export: PoolExport) -> Iterator[Asks]:
        """Another process that can map what `export` tells."""
        fd = export.descriptor(writable=True) if isinstance(export, HostPoolExport) else None
        with Peer(fd) as peer:
            if fd is not None:
                os.close(fd)
            yield peer

    def close(self) -> None:
        self.device.close()


class FakeRig(Rig):
    """The CUDA device on the fake runtime; its second process is a second runtime in the same world."""

    def __init__(self, reaches_host: bool) -> None:
        runtime = FakeCuda()
        self.world, runtime.reaches_host = runtime.world, reaches_host
        super().__init__(CudaDevice(0, runtime, staging_bytes=128 << 10))

    @contextmanager
    def second_process(self, export: PoolExport) -> Iterator[Asks]:
        peer = FakePeer(self.world)
        yield peer
        peer.close()

    def close(self) -> None:
        super().close()
        assert not self.world.violations


class FakePeer:
    """Writes like an engine's kernel does: it has not happened when the answer leaves, only the event says when."""

    def __init__(self, world: World) -> None:
        self._runtime = FakeCuda(world)
        self._device = CudaDevice(0, self._runtime)
        self._pools: list[ImportedPool] = []

    def ask(
        self, handles: Sequence[AllocationHandle], nbytes: int, read: dict[int, int], write: dict[int, int]
    ) -> Answer:
        pool = self._device.import_pool(handles)
        self._pools.append(pool)
        wrong = [o for o, seed in read.items() if not np.array_equal(pool.view(o, nbytes), pattern(seed, nbytes))]
        stream = self._runtime.current_stream(0)
        for offset, seed in write.items():
            view = pool.view(offset, nbytes).numpy()
            self._runtime.kernel(0, stream, partial(np.copyto, view, pattern(seed, nbytes)))
        return Answer(wrong, self._device.export_event(self._device.record_event()))

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


def _real_cuda() -> Rig:
    try:
        return Rig(open_device("cuda:0"))
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["host", "fake-cuda", "fake-cuda-staging", pytest.param("cuda", marks=pytest.mark.gpu)])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    makers = {
        "host": lambda: Rig(HostDevice(0)),
        "fake-cuda": lambda: FakeRig(True),
        "fake-cuda-staging": lambda: FakeRig(False),  # kernels cannot reach host memory
        "cuda": _real_cuda,
    }
    made = makers[request.param]()
    yield made
    made.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from closing(Bench())


@pytest.fixture(params=[False, True], ids=["staged", "kernels-reach-host"])
def either(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from closing(Bench(request.param))
