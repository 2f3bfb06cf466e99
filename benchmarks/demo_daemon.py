"""The demo's daemon: a process of its own on the demo's tiers."""

from hybridkv.benchmarks.daemon_process import DaemonProcess
from hybridkv.benchmarks.demo_setup import LANE_SLOTS, Places, Sizes

_CONFIG = """\
[daemon]
socket = "{address}"
warm_restart = false  # what is there after the kill is to come from the disk alone

[gpu]
devices = ["host:0"]
capacity_bytes = {sizes.gpu_bytes}

[cpu]
capacity_bytes = {sizes.cpu_bytes}
shm_dir = "{places.shm}"

[disk]
path = "{places.disk}"
capacity_bytes = {sizes.disk_bytes}

[migration]
lane_slots_count = {lane_slots}
"""


class DemoDaemon(DaemonProcess):
    """`hybridkv serve` on the demo's tiers. May be killed and started again on the same folders."""

    def __init__(self, places: Places, sizes: Sizes) -> None:
        self.places = places
        super().__init__(
            places.work, _CONFIG.format(address=places.address, sizes=sizes, places=places, lane_slots=LANE_SLOTS)
        )
