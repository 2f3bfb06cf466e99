"""How fast a device copies scattered blocks, beside one large copy of the same bytes in the same run."""

import mmap
import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from hybridkv.benchmarks.report import Row
from hybridkv.tiers.device.base import Device, Direction, HostRegistration, Stream
from hybridkv.tiers.device.completion import Completion
from hybridkv.tiers.device.pool import DevicePool

BLOCK_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20)
TARGETS = {16 << 10: 0.6, 256 << 10: 0.9, 2 << 20: 0.9}
BOTH_TARGET = 1.6  # of one large copy in one direction
BOTH_BLOCK_BYTES = 2 << 20
WAIT_S = 120.0
UNIT = "GB/s"

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """Memory to copy between: of both sides the lower `total` bytes go up, the upper `total` come down."""

    device: Device
    pool: DevicePool
    host: npt.NDArray[np.uint8]
    total: int
    registration: HostRegistration
    up: Stream
    down: Stream


def prepare(device: Device, total: int) -> Setting:
    """Commit and page-lock 2 × `total` bytes on each side. `total` must not exceed an allocation of the pool."""
    pool = device.create_pool(2 * total)
    for extent in range(pool.extent_count):
        pool.commit_extent(extent)
    host = np.frombuffer(mmap.mmap(-1, 2 * total), np.uint8)
    host[:] = 1
    registration = device.register_host(host, 0, host.nbytes)
    return Setting(device, pool, host, total, registration, device.stream("rate-up"), device.stream("rate-down"))


def measure(setting: Setting, repeats: int = 5) -> list[Row]:
    """Rates per block size in both directions and both at once. Medians; rounds are interleaved, the first is dropped."""
    taken: dict[tuple[Direction | None, int], list[float]] = defaultdict(list)
    for round_number in range(repeats + 1):
        for direction in (Direction.TO_DEVICE, Direction.TO_HOST):
            for nbytes in (setting.total, *BLOCK_BYTES):
                taken[direction, nbytes].append(_timed(setting, [direction], nbytes, round_number))
        taken[None, BOTH_BLOCK_BYTES].append(_timed(setting, [*_BOTH], BOTH_BLOCK_BYTES, round_number))
    seconds = {key: median(values[1:]) for key, values in taken.items()}
    return _rows(setting.total, seconds)


_BOTH = (Direction.TO_DEVICE, Direction.TO_HOST)


def _timed(setting: Setting, directions: list[Direction], nbytes: int, seed: int) -> float:
    offsets = {direction: _scattered(setting, direction, nbytes, seed) for direction in directions}
    start = time.perf_counter()
    running = [_start(setting, direction, *offsets[direction], nbytes) for direction in directions]
    for completion in running:
        if not completion.wait(WAIT_S):
            raise TimeoutError(f"a copy of {setting.total} bytes took more than {WAIT_S} s")
        completion.check()
    return time.perf_counter() - start


def _start(setting: Setting, direction: Direction, device: Offsets, host: Offsets, nbytes: int) -> Completion:
    stream = setting.up if direction is Direction.TO_DEVICE else setting.down
    return stream.copy(direction, setting.pool, device, setting.host, host, nbytes)


def _scattered(setting: Setting, direction: Direction, nbytes: int, seed: int) -> tuple[Offsets, Offsets]:
    """Every block of the direction's half, in random order on both sides."""
    first = 0 if direction is Direction.TO_DEVICE else setting.total
    rng = np.random.default_rng(seed)
    count = setting.total // nbytes
    device, host = rng.permutation(count).astype(np.int64), rng.permutation(count).astype(np.int64)
    return first + device * nbytes, first + host * nbytes


def _rows(total: int, seconds: dict[tuple[Direction | None, int], float]) -> list[Row]:
    rates = {key: total / value / 1e9 for key, value in seconds.items()}
    rows = []
    for direction in _BOTH:
        floor = rates[direction, total]
        rows.append(Row(f"{direction.value}, one copy of {total >> 20} MiB", floor, UNIT))
        for nbytes in BLOCK_BYTES:
            name = f"{direction.value}, {nbytes >> 10} KiB blocks"
            rows.append(Row(name, rates[direction, nbytes], UNIT, floor, TARGETS.get(nbytes)))
    one_way = min(rates[direction, total] for direction in _BOTH)
    both = 2 * rates[None, BOTH_BLOCK_BYTES]
    rows.append(Row(f"both at once, {BOTH_BLOCK_BYTES >> 10} KiB blocks", both, UNIT, one_way, BOTH_TARGET))
    return rows
