"""What the soak runs on: a daemon with tiers so small that everything moves all the time, and times so short that they pass."""

from hybridkv.benchmarks.daemon_process import DaemonProcess
from hybridkv.benchmarks.demo_setup import Places

GPU_BYTES, CPU_BYTES, DISK_BYTES = 6 << 20, 12 << 20, 24 << 20
LEASE_S, GRACE_S = 2.0, 1.0

_CONFIG = """\
[daemon]
socket = "{places.address}"
lease_s = {lease_s}
reservation_s = {lease_s}
grace_s = {grace_s}
drain_s = 10

[gpu]
devices = ["host:0"]
capacity_bytes = {gpu_bytes}
high_watermark = 0.8
low_watermark = 0.6
idle_timeout_s = 3

[cpu]
capacity_bytes = {cpu_bytes}
shm_dir = "{places.shm}"
high_watermark = 0.8
low_watermark = 0.6
idle_timeout_s = 6

[disk]
path = "{places.disk}"
capacity_bytes = {disk_bytes}

[migration]
interval_s = 0.1
cooldown_s = 0.2
lane_slots_count = 4
inflight_bytes = "8MiB"
batch_bytes = "1MiB"
explain_moves_count = 2048
"""

POLICIES: tuple[object, ...] = ("lru", "arc", "s3fifo", "gdsf", "rhq")
LIVE_CHANGES: tuple[dict[str, object], ...] = (
    {"gpu.high_watermark": 0.5, "gpu.low_watermark": 0.3},
    {"gpu.high_watermark": 1.0, "gpu.low_watermark": 1.0},
    {"cpu.high_watermark": 0.9, "cpu.low_watermark": 0.85},
    {"cpu.high_watermark": 0.6, "cpu.low_watermark": 0.4},
    {"cpu.capacity_bytes": CPU_BYTES // 2},
    {"cpu.capacity_bytes": CPU_BYTES},
    {"gpu.capacity_bytes": GPU_BYTES // 2},
    {"gpu.capacity_bytes": GPU_BYTES},
    {"disk.capacity_bytes": DISK_BYTES // 2},
    {"disk.capacity_bytes": DISK_BYTES},
    {"disk.admit_min_accesses": 2},
    {"disk.admit_min_accesses": 0},
    {"migration.background_bytes_per_s": "20MB"},
    {"migration.background_bytes_per_s": 0},
    {"migration.promote_at_accesses": 1},
    {"migration.promote_at_accesses": 0},
    *({f"{tier}.policy": name} for tier in ("gpu", "cpu", "disk") for name in POLICIES),
)
"""What an operator changes meanwhile, at random."""


def make_daemon(places: Places) -> DaemonProcess:
    """The daemon, not started. Its socket has a second name in a folder without a side socket: who connects there streams."""
    alias = places.work / "streams" / "kv.sock"
    alias.parent.mkdir()
    alias.symlink_to(places.work / "kv.sock")
    sizes = {"gpu_bytes": GPU_BYTES, "cpu_bytes": CPU_BYTES, "disk_bytes": DISK_BYTES}
    return DaemonProcess(places.work, _CONFIG.format(places=places, lease_s=LEASE_S, grace_s=GRACE_S, **sizes))


def streaming_address(places: Places) -> str:
    return f"unix://{places.work}/streams/kv.sock"
