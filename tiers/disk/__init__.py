"""The disk tier: blocks in LMDB segments under one physical cap; see `store`."""

from hybridkv.tiers.disk.store import DiskStore
from hybridkv.tiers.disk.types import (
    DiskBlock,
    DiskCounters,
    DiskRef,
    DiskState,
    DiskUsage,
    Probe,
    ReadOutcome,
    Recovered,
    RecoveredBlock,
    RecoveredRun,
    SetAside,
)

__all__ = [
    "DiskBlock",
    "DiskCounters",
    "DiskRef",
    "DiskState",
    "DiskStore",
    "DiskUsage",
    "Probe",
    "ReadOutcome",
    "Recovered",
    "RecoveredBlock",
    "RecoveredRun",
    "SetAside",
]
