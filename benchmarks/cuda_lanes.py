"""The lanes of a CUDA device, beside one large page-locked copy. Rows are skipped, with the reason, where there is none."""

from hybridkv.benchmarks import copy_rates
from hybridkv.benchmarks.bench import Setting
from hybridkv.benchmarks.harness import Lap, interleaved
from hybridkv.benchmarks.lane_rates import DOWN, SET_BYTES, UP, size_text
from hybridkv.benchmarks.lane_rig import KIB, MIB, LaneRig, config_for
from hybridkv.benchmarks.report import Row, skipped
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.gpu import open_device
from hybridkv.tiers.states import Tier

DEVICE = "cuda:0"
LEAST = {16 * KIB: 0.6, 64 * KIB: None, 256 * KIB: 0.9, 2 * MIB: 0.9}
LEAST_BOTH = copy_rates.BOTH_TARGET
BOTH = "cuda, both directions at once, 2 MiB blocks"
PLAIN_BYTES = 256 * MIB


def lane_name(lane: str, block_bytes: int) -> str:
    return f"cuda {lane}, {size_text(block_bytes)} blocks"


def rates(setting: Setting) -> list[Row]:
    """Copies of the device streams, and the lanes themselves, at every size."""
    try:
        device = open_device(DEVICE)
    except UnavailableError as error:
        return _skipped(str(error))
    try:
        streams = copy_rates.measure(copy_rates.prepare(device, PLAIN_BYTES), setting.pairs)
    finally:
        device.close()
    floors = {row.name.split(",")[0]: row.value or 0.0 for row in streams if "one copy of" in row.name}
    found = [row for row in streams if "one copy of" not in row.name]
    for size, target in LEAST.items():
        found += _lanes(setting, size, target, floors["to_host"], floors["to_device"])
    return found


def _lanes(setting: Setting, block_bytes: int, target: float | None, down: float, up: float) -> list[Row]:
    config = config_for(
        setting.folder, gpu_bytes=4 * SET_BYTES, cpu_bytes=4 * SET_BYTES, device=DEVICE, cpu__page_lock="on"
    )
    with LaneRig(config, block_bytes) as rig:
        rows = rig.write(SET_BYTES // block_bytes, Tier.CPU)
        rig.make_room(rig.gpu, len(rows))
        wanted = rig.keys_of(rows)
        rig.demand(wanted, Tier.GPU)
        rig.drop(rows, rig.cpu)

        def lower() -> Lap:
            taken = rig.demote(rows, rig.gpu)
            rig.demand(wanted, Tier.GPU)
            rig.drop(rows, rig.cpu)
            return taken

        def bring_up() -> Lap:
            rig.demote(rows, rig.gpu)
            taken = rig.demand(wanted, Tier.GPU)
            rig.drop(rows, rig.cpu)
            return taken

        laps = interleaved({DOWN: lower, UP: bring_up}, setting.pairs)
    return [
        Row(lane_name(lane, block_bytes), laps[lane].gb_per_s(SET_BYTES), "GB/s", floor, target)
        for lane, floor in ((DOWN, down), (UP, up))
    ]


def _skipped(reason: str) -> list[Row]:
    rows = [
        skipped(lane_name(lane, size), "GB/s", reason, target) for size, target in LEAST.items() for lane in (DOWN, UP)
    ]
    return [*rows, skipped(BOTH, "GB/s", reason, LEAST_BOTH)]
