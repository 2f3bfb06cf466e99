"""Names of devices, and what opening one costs."""

import subprocess
import sys

import pytest

from hybridkv.tiers.device.base import AllocationHandle
from hybridkv.tiers.device.host import HostDevice
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError
from hybridkv.tiers.gpu import import_pool, open_device


@pytest.mark.parametrize(("name", "index"), [("host", 0), ("host:0", 0), ("host:3", 3)])
def test_host_devices_by_name(name: str, index: int) -> None:
    device = open_device(name)
    assert isinstance(device, HostDevice)
    assert device.index == index


@pytest.mark.parametrize("name", ["", "gpu:0", "cuda:", "cuda:-1", "cuda:x", "host:1:2", "host:²"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_device(name)
    assert refused.value.field == "device"


def test_a_gpu_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="cuda"):
        open_device("cuda:99")


def test_the_host_device_needs_no_torch() -> None:
    code = (
        "import sys; from hybridkv.tiers.gpu import open_device; d = open_device('host:0'); "
        "d.create_pool(1 << 20).commit_extent(0); d.stream('s'); d.close(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_imports_name_one_known_device() -> None:
    one, two = AllocationHandle("host", "host-0", 0, 4096), AllocationHandle("host", "host-1", 0, 4096)
    for handles in ([], [one, two], [AllocationHandle("rocm", "x", 0, 4096)]):
        with pytest.raises(InvalidArgumentError, match="handles"):
            import_pool(handles)
