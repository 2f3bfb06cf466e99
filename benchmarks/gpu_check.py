"""`make gpu-check`: does the CUDA device do what the tests without a GPU assume? Under five minutes on one GPU.

Runs the device conformance suite on the real GPU, shares memory and events with a second process, and measures copy
rates against one large page-locked copy. Exits 0 when all holds, 1 when something does not, 2 where there is no GPU.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridkv.benchmarks import copy_rates
from hybridkv.benchmarks.device_peer import Peer, pattern
from hybridkv.benchmarks.report import Row, print_table, write_json
from hybridkv.tiers.device.base import Device, Direction
from hybridkv.tiers.device.host_pool import HostPoolExport
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.gpu import open_device

MET, NOT_MET, NO_GPU = 0, 1, 2
RATE_BYTES = 256 << 20
SHARED_BLOCKS = 64
SHARED_BLOCK_BYTES = 64 << 10


class Tally:
    """A pytest plugin that counts what the suite did."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0

    def pytest_runtest_logreport(self, report: object) -> None:
        outcome, when = getattr(report, "outcome", ""), getattr(report, "when", "")
        self.passed += outcome == "passed" and when == "call"
        self.failed += outcome == "failed"
        self.skipped += outcome == "skipped"


def conformance(tests: Path) -> list[Row]:
    """The device suite under the marker `gpu`: nothing may fail and nothing may be skipped."""
    import pytest

    tally = Tally()
    pytest.main(["-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(tests.parent), str(tests)], plugins=[tally])
    total = tally.passed + tally.failed + tally.skipped
    return [Row("conformance tests passed", tally.passed, "tests", float(max(total, 1)), 1.0)]


def shared_with_a_second_process(device: Device) -> list[Row]:
    """A second process verifies blocks that lie on the GPU, and writes others behind an event that we wait for."""
    nbytes, count = SHARED_BLOCK_BYTES, SHARED_BLOCKS
    setting = copy_rates.prepare(device, 2 * count * nbytes)
    packed = np.arange(count, dtype=np.int64) * nbytes
    setting.host[: count * nbytes] = np.concatenate([pattern(seed, nbytes) for seed in range(count)])
    setting.up.copy(Direction.TO_DEVICE, setting.pool, packed, setting.host, packed, nbytes).wait(copy_rates.WAIT_S)
    export = setting.pool.export()
    ours = {offset: seed for seed, offset in enumerate(packed.tolist())}
    theirs = {offset + count * nbytes: seed + count for offset, seed in ours.items()}
    fd = export.descriptor(writable=True) if isinstance(export, HostPoolExport) else None
    with Peer(fd) as peer:
        answer = peer.ask(export.new_handles(), nbytes, ours, theirs)
        setting.down.wait_event(device.import_event(answer.event))
        written = packed + count * nbytes
        done = setting.down.copy(Direction.TO_HOST, setting.pool, written, setting.host, written, nbytes)
        done.wait(copy_rates.WAIT_S)
        done.check()
    export.close()
    if fd is not None:
        os.close(fd)
    seen = sum(np.array_equal(setting.host[o : o + nbytes], pattern(seed, nbytes)) for o, seed in theirs.items())
    return [
        Row("blocks a second process read right", float(count - len(answer.wrong)), "blocks", float(count), 1.0),
        Row("blocks it wrote, read right behind its event", float(seen), "blocks", float(count), 1.0),
    ]


def rates(device: Device) -> list[Row]:
    """Copy rates, and whether the host memory could be page-locked (else the rates are those of the slow path)."""
    setting = copy_rates.prepare(device, RATE_BYTES)
    if not setting.registration.ok:
        sys.stderr.write(f"page-locking failed, copies take the slow path: {setting.registration.reason}\n")
    return [Row("host memory page-locked", float(setting.registration.ok), "", None, 1.0), *copy_rates.measure(setting)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    parser.add_argument("--device", default="cuda:0", help="the device to check (default: cuda:0)")
    options = parser.parse_args(arguments)
    tests = Path(__file__).resolve().parents[1] / "tests" / "tiers" / "device"
    try:
        device = open_device(options.device)
    except UnavailableError as error:
        sys.stderr.write(f"gpu-check needs a GPU: {error}\n")
        return NO_GPU
    rows = shared_with_a_second_process(device) + rates(device)
    extra = {"device": device.uuid, "device_free_bytes": device.free_bytes()}
    device.close()
    if tests.is_dir():
        rows += conformance(tests)
    else:
        sys.stderr.write(f"the conformance suite is not here ({tests}): run gpu-check from a checkout\n")
        rows.append(Row("conformance tests passed", 0.0, "tests", 1.0, 1.0))
    print_table(f"gpu-check on {extra['device']}", rows)
    if options.json is not None:
        write_json(options.json, "gpu_check", rows, extra)
    return MET if all(row.met is not False for row in rows) else NOT_MET


if __name__ == "__main__":
    sys.exit(main())
