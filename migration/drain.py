"""Drain: what lies in volatile tiers only is written to disk, before the daemon stops."""

import threading
from collections.abc import Callable, Iterable

import numpy as np

from hybridkv.migration.reclaim import Reclaim
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import DiskBook
from hybridkv.tiers.directory.moves import Transfer
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState, Priority, Reason

_PAUSE_S = 0.005


class Drain:
    """One drain. Leased and protected blocks are written too: their volatile copies stay."""

    def __init__(self, directory: Directory, reclaim: Reclaim, send: Callable[[Iterable[Transfer]], None]) -> None:
        self._directory = directory
        self._reclaim = reclaim
        self._send = send
        self._tried: set[tuple[int, bytes]] = set()
        """(namespace, key) of the blocks begun: each is tried once, so that a failing disk ends the drain."""

    def run(self, timeout_s: float) -> tuple[int, int]:
        """(blocks written, blocks that are in volatile tiers only). Blocks; returns when nothing more can be written."""
        directory, disk = self._directory, self._directory.state.disk
        deadline = directory.state.clock.now() + timeout_s
        pause = threading.Event()
        while True:
            with directory.lock:
                left, moving = (self._volatile(), 0) if disk is None else self._begin_some(disk)
                over = disk is None or not moving or directory.state.clock.now() >= deadline
                if over:
                    return self._written(), len(left)
            pause.wait(_PAUSE_S)

    def _begin_some(self, disk: DiskBook) -> tuple[Rows, int]:
        """Begin what can be begun: (blocks not on disk yet, how many of them are on their way somewhere)."""
        blocks, state = self._directory.blocks, self._directory.state
        left = self._volatile()
        if disk.on:
            for size, some in state.by_size(self._untried(left)):
                self._write(disk, size, self._most_recent(disk, size, some))
        return left, int(np.count_nonzero(blocks.busy[left]))

    def _volatile(self) -> Rows:
        """Private blocks are not counted: nobody would know them after a restart."""
        disk, blocks = self._directory.state.disk, self._directory.blocks
        if disk is not None:
            rows = self._directory.without_copy_in(disk.index)
        else:
            rows = np.flatnonzero(blocks.state == BlockState.SEALED)
        return np.asarray(rows[blocks.private[rows] == 0])

    def _untried(self, rows: Rows) -> Rows:
        blocks = self._directory.blocks
        idle = rows[blocks.busy[rows] == 0]
        names = zip(blocks.namespace[idle].tolist(), blocks.keys.of(idle), strict=True)
        tried = np.fromiter((name in self._tried for name in names), np.bool_, len(idle))
        untried: Rows = idle[~tried]
        return untried

    def _most_recent(self, disk: DiskBook, size: int, rows: Rows) -> Rows:
        """Where not all fit, those used last; in the order of use, so that the disk has them in that order."""
        ranked = rows[np.argsort(self._directory.blocks.last_access[rows], kind="stable")]
        room = max(0, disk.capacity_slots(size) - len(self._tried))
        return ranked[len(ranked) - min(len(ranked), room) :]

    def _write(self, disk: DiskBook, size: int, rows: Rows) -> None:
        blocks = self._directory.blocks
        self._reclaim.make_room(disk.index, size, len(rows))
        for source in range(disk.index):
            here = rows[(blocks.slot[source][rows] != NO_SLOT) & (blocks.busy[rows] == 0)]
            begun = self._directory.moves.begin(
                self._directory.fitting(here, disk.index),
                source,
                disk.index,
                Reason.DRAIN,
                Priority.DEMAND,
                keep_source=True,
            )
            self._tried.update((int(blocks.namespace[t.row]), blocks.keys[t.row]) for t in begun)
            self._send(begun)

    def _written(self) -> int:
        """Of the blocks tried, those that are on disk now."""
        blocks, disk = self._directory.blocks, self._directory.state.disk
        found = [blocks.find_one(space, key) for space, key in self._tried]
        rows = np.array([row for row in found if row != NO_ROW], np.int64)
        return 0 if disk is None else int(np.count_nonzero(blocks.slot[disk.index][rows] != NO_SLOT))
