"""A worker's mappings: complete or refused, read-only where sealed blocks are read, absent in forked children."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hybridkv.service.client.regions import WorkerRegions
from hybridkv.service.side.client import ReceivedRegion
from hybridkv.service.side.handles import handles_to_extra
from hybridkv.service.side.protocol import RegionInfo, RegionKind
from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError, NotFoundError
from hybridkv.tiers.headers import HeaderRegion
from hybridkv.tiers.pools import PoolId
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import Tier

EXTENT_BYTES = 1 << 16
CAPACITY_BYTES = 4 * EXTENT_BYTES
POOL = 2


@dataclass
class Offered:
    """A pool as the daemon has it, and its three regions as a worker receives them."""

    data: SharedRegion
    headers: HeaderRegion

    def received(self) -> list[ReceivedRegion]:
        nbytes, header_bytes = self.data.nbytes, self.headers.region.nbytes
        return [
            ReceivedRegion(RegionInfo("rw", POOL, RegionKind.DATA_RW, nbytes), os.dup(self.data.fd)),
            ReceivedRegion(RegionInfo("ro", POOL, RegionKind.DATA_RO, nbytes), self.data.read_only_fd()),
            ReceivedRegion(RegionInfo("h", POOL, RegionKind.HEADERS, header_bytes), self.headers.region.read_only_fd()),
        ]


@pytest.fixture
def offered() -> Iterator[Offered]:
    with TemporaryDirectory(dir="/dev/shm") as path:
        data = SharedRegion.create(Path(path) / "d", CAPACITY_BYTES)
        headers = HeaderRegion.create(
            Path(path) / "h",
            pool=PoolId(Tier.CPU),
            capacity_bytes=CAPACITY_BYTES,
            extent_bytes=EXTENT_BYTES,
            daemon_epoch=1,
        )
        yield Offered(data, headers)
        data.close()
        headers.close(unlink=True)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_both_views_are_the_daemons_memory(offered: Offered) -> None:
    with WorkerRegions(offered.received()) as regions:
        assert regions.pools == (POOL,)
        regions.writable(POOL)[100] = 5
        assert regions.readable(POOL)[100] == offered.data.array[100] == 5
        assert not regions.readable(POOL).flags.writeable
        assert regions.headers(POOL).describe()["daemon_epoch"] == 1


def test_of_device_memory_the_headers_are_mapped_and_the_handles_told(offered: Offered) -> None:
    handle = AllocationHandle("cuda", "GPU-1", 0, CAPACITY_BYTES, bytes(range(64)))
    headers = offered.received()[2]
    told = RegionInfo("g", POOL, RegionKind.CUDA, CAPACITY_BYTES, handles_to_extra("GPU-1", [handle]))
    with WorkerRegions([headers, ReceivedRegion(told, None)]) as regions:
        assert regions.pools == ()
        assert regions.handles == {POOL: [handle]}
        assert regions.headers(POOL).describe()["capacity_bytes"] == CAPACITY_BYTES
        with pytest.raises(FailedPreconditionError, match="take a view"):
            regions.readable(POOL)
        with pytest.raises(FailedPreconditionError, match="take a view"):
            regions.writable(POOL)


def test_a_pool_that_is_not_mapped_is_a_typed_error(offered: Offered) -> None:
    with WorkerRegions(offered.received()) as regions:
        with pytest.raises(NotFoundError, match="pool 0 is not mapped"):
            regions.readable(0)
        assert not regions.forked()


def test_views_outlive_close(offered: Offered) -> None:
    regions = WorkerRegions(offered.received())
    view = regions.readable(POOL)[:10]
    regions.close()
    regions.close()
    offered.data.array[3] = 8
    assert view[3] == 8
    with pytest.raises(ExpiredError, match="with their session"):
        regions.writable(POOL)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_incomplete_pool_is_refused_and_nothing_is_kept(offered: Offered, missing: int) -> None:
    before = open_fds()
    received = offered.received()
    received.pop(missing).close()
    with pytest.raises(FailedPreconditionError, match="was not handed over"):
        WorkerRegions(received)
    received.clear()
    assert open_fds() == before


def test_a_region_twice_or_too_small_is_refused(offered: Offered) -> None:
    with pytest.raises(FailedPreconditionError, match="twice"):
        WorkerRegions(offered.received() + offered.received())
    received = offered.received()
    received[0].nbytes = CAPACITY_BYTES // 2
    with pytest.raises(FailedPreconditionError, match="less than its headers describe"):
        WorkerRegions(received)
    received = offered.received()
    received[1].nbytes = CAPACITY_BYTES * 2
    with pytest.raises(FailedPreconditionError, match="claimed"):
        WorkerRegions(received)


FORKED = """
import os, sys
from hybridkv.service.client.regions import WorkerRegions
from hybridkv.service.side.client import ReceivedRegion
from hybridkv.service.side.protocol import RegionInfo, RegionKind
from hybridkv.tiers.errors import FailedPreconditionError

regions = WorkerRegions(
    ReceivedRegion(RegionInfo("r", 0, kind, int(sys.argv[2 * i + 2])), int(sys.argv[2 * i + 1]))
    for i, kind in enumerate((RegionKind.DATA_RW, RegionKind.DATA_RO, RegionKind.HEADERS))
)
if os.fork() == 0:
    assert regions.forked()
    try:
        regions.writable(0)
    except FailedPreconditionError as error:
        regions.close()
        os._exit(9 if "attach again" in str(error) else 1)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), regions.writable(0).nbytes, regions.forked())
"""


def test_a_forked_child_is_told_to_attach_again(offered: Offered) -> None:
    received = offered.received()
    fds = [(region.take_fd(), region.nbytes) for region in received]
    command = [sys.executable, "-c", FORKED, *(str(figure) for pair in fds for figure in pair)]
    pass_fds = [fd for fd, _ in fds]
    child = subprocess.run(command, pass_fds=pass_fds, capture_output=True, text=True, timeout=60, check=False)
    for fd in pass_fds:
        os.close(fd)
    assert child.stdout.split() == ["9", str(CAPACITY_BYTES), "False"], child.stderr
