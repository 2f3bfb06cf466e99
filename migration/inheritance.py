"""What a start does with the regions of a daemon before it: use those of the CPU tier, discard what cannot be used."""

import logging
import time
from dataclasses import replace

from hybridkv.migration.frozen import Frozen
from hybridkv.migration.takeover import TakeOver, TakeOverReport
from hybridkv.tiers.cpu import CpuPool
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.extents import ExtentTable
from hybridkv.tiers.instance import InstanceDir
from hybridkv.tiers.left_behind import LeftBehind
from hybridkv.tiers.states import Tier

_log = logging.getLogger(__name__)


class TakeOverFailedError(Exception):
    """What was left behind is worse than it looked: to be discarded, and the start begun anew."""


def find_left(
    instance: InstanceDir, cpu_bytes: int, never_mapped: bool = False
) -> tuple[LeftBehind | None, TakeOverReport]:
    """What can be taken over of a CPU tier of this size (one that no worker may map, with `never_mapped`), and what is to be
    said where that is nothing. All other regions are removed: device memory ended with its daemon."""
    left, report = None, TakeOverReport("nothing")
    if instance.was_discarded:
        report = TakeOverReport("cold", "as asked")
        _log.info("CPU tier of the daemon before this one discarded, as asked")
    paths = instance.region_path("cpu"), instance.region_path("cpu.headers")
    if set(paths) <= set(instance.stale):
        try:
            left = LeftBehind.open(*paths, ExtentTable(cpu_bytes), never_mapped=never_mapped)
        except FailedPreconditionError as error:
            report = _reported(str(error))
    elif instance.stale:
        report = _reported("it is not complete")
    for path in instance.stale:
        if left is None or path not in paths:
            path.unlink(missing_ok=True)
    return left, report


def _reported(reason: str) -> TakeOverReport:
    _log.warning("CPU tier of the daemon before this one discarded: %s", reason)
    return TakeOverReport("discarded", reason)


def inherit(
    directory: Directory,
    cpu: CpuPool,
    left: LeftBehind,
    frozen: Frozen,
    daemon_epoch: int,
    never_mapped: bool = False,
) -> TakeOverReport:
    """Take `left` over, whose regions `cpu` and its book have by now. Raises TakeOverFailedError, whatever was wrong."""
    began = time.monotonic()
    book = directory.state.mapped(directory.state.pools_in(Tier.CPU)[0])
    try:
        with directory.lock:
            report = TakeOver(directory, book, left, frozen, never_mapped).run(daemon_epoch)
        cpu.adopt_extents({extent for extent, _ in left.survey.carved})
    except Exception as error:
        raise TakeOverFailedError(f"{type(error).__name__}: {error}") from error
    report = replace(report, took_s=time.monotonic() - began)
    _log.info(
        "CPU tier taken over in %.3f s: %d blocks (%d bytes), to be verified before their first use; dropped: %s; "
        "frozen: %d slots of %d sessions",
        report.took_s,
        report.blocks,
        report.bytes,
        ", ".join(f"{count} {why}" for why, count in report.dropped.items()) or "none",
        report.frozen_slots,
        report.frozen_sessions,
    )
    return report


def discarded(instance: InstanceDir, error: TakeOverFailedError) -> TakeOverReport:
    """The start goes on without it."""
    _log.error("taking over the CPU tier failed", exc_info=error.__cause__)
    instance.discard()
    return _reported(str(error))
