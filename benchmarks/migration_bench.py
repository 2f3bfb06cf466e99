"""`hybridkv bench migration`: lanes, foreground, policies and thrashing. What each row means: docs/performance.md."""

from functools import partial

from hybridkv.benchmarks import cuda_lanes, disk_rates, foreground, lane_rates, policy_cost, thrash
from hybridkv.benchmarks.bench import Bench, Step
from hybridkv.benchmarks.lane_rates import BLOCK_BYTES, DOWN, UP, lane_name, size_text
from hybridkv.benchmarks.lane_rig import KIB
from hybridkv.benchmarks.panels import Panel
from hybridkv.migration.policies import POLICY_NAMES

_SMALL = (16 * KIB, 64 * KIB, 256 * KIB)
_TICKS = [size_text(size) for size in BLOCK_BYTES]


def _steps() -> tuple[Step, ...]:
    steps = [
        Step(f"lanes of host memory, {size_text(b)}", partial(lane_rates.rates, block_bytes=b)) for b in BLOCK_BYTES
    ]
    steps += [
        Step(f"lanes of host memory, {size_text(b)}, small batches", partial(lane_rates.small_batches, block_bytes=b))
        for b in _SMALL
    ]
    for size in BLOCK_BYTES:
        steps.append(Step(f"disk, writing {size_text(size)}", partial(disk_rates.written, block_bytes=size)))
        steps.append(Step(f"disk, reading {size_text(size)}", partial(disk_rates.read, block_bytes=size)))
    steps += [
        Step(
            f"disk, writing {size_text(b)}, small batches", partial(disk_rates.written_in_small_batches, block_bytes=b)
        )
        for b in _SMALL[1:]
    ]
    steps += [
        Step("foreground, acquires", foreground.acquires),
        Step("foreground, promotions", foreground.promotions),
        Step("foreground, overtaking", foreground.overtaking),
    ]
    steps += [
        Step(f"policy {policy}, {count:,} blocks", partial(policy_cost.costs, policy=policy, count=count))
        for policy in POLICY_NAMES
        for count in policy_cost.POOLS
    ]
    steps += [Step("thrash, background", thrash.background), Step("thrash, demand", thrash.demanded)]
    return (*steps, Step("cuda", cuda_lanes.rates))


def _panels() -> tuple[Panel, ...]:
    memory = {
        f"{lane} {how}": [lane_name(lane, size, how) for size in BLOCK_BYTES]
        for lane in (DOWN, UP)
        for how in ("demand", "background")
    }
    disk = {
        "write": [lane_name(disk_rates.WRITE, size) for size in BLOCK_BYTES],
        "read, cached": [lane_name(disk_rates.READ, size, disk_rates.CACHED) for size in BLOCK_BYTES],
        "read, cold": [lane_name(disk_rates.READ, size, disk_rates.COLD) for size in BLOCK_BYTES],
    }
    pools = [f"{count:,}" for count in policy_cost.POOLS]
    access = {p: [policy_cost.access_name(p, count) for count in policy_cost.POOLS] for p in POLICY_NAMES}
    victims = {p: [policy_cost.victims_name(p, count) for count in policy_cost.POOLS] for p in POLICY_NAMES}
    return (
        Panel("Lanes between host memory and the host device (dashed: random-order copy)", "GB/s", _TICKS, memory),
        Panel("Lanes of the disk tier (dashed: plain files, random-order copy)", "GB/s", _TICKS, disk, log=True),
        Panel("A block access", "µs", pools, access),
        Panel("Choosing 1,000 victims", "ms", pools, victims),
    )


BENCH = Bench("migration", "hybridkv bench migration", _steps(), _panels())
