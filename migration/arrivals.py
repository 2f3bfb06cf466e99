"""Arrivals: what becomes of a batch once its bytes were carried. Under the directory's lock; the lanes call it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from hybridkv.migration.ledger import MoveLedger
from hybridkv.migration.movers import Cargo, Carried
from hybridkv.tiers.device.base import Offsets
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import DiskBook
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.states import Reason

_log = logging.getLogger(__name__)

_label = attrgetter("source", "target", "space")


@dataclass(frozen=True, slots=True)
class Leg:
    """Where a worker carries its cargo: from pool to pool, by index."""

    source: int
    target: int


class Arrivals:
    """Ends the transfers of one leg, and gives the lanes' CPU slots back that they used."""

    def __init__(
        self, name: str, leg: Leg, directory: Directory, moves: MoveLedger, on_error: Callable[[BaseException], None]
    ) -> None:
        """`name`: of the lane, for the log. `on_error` hears of commits that failed by a bug."""
        self._on_error = on_error
        self._name = name
        self._leg = leg
        self._directory = directory
        self._moves = moves

    def settle(self, cargo: Cargo) -> tuple[list[Transfer], list[Transfer]]:
        """Commit what arrived, fail what did not: (transfers that ended, those that have a second leg)."""
        ended: list[Transfer] = []
        onward: list[Transfer] = []
        for number in np.flatnonzero(cargo.outcomes != Carried.MOVED).tolist():
            self._fail(cargo.transfers[number], Carried(cargo.outcomes[number]), blamed=cargo.blamed)
            ended.append(cargo.transfers[number])
        for target, transfers, places in self._arrived(cargo):
            if target != self._leg.target:
                onward += transfers
            else:
                self._commit(transfers, places)
                ended += transfers
        self.close(ended)
        return ended, onward

    @staticmethod
    def _arrived(cargo: Cargo) -> Iterator[tuple[int, list[Transfer], Offsets]]:
        """What arrived, in groups of one source, target and namespace, and so of one size, for headers are published for
        one of them: (target, transfers, places). Most batches are one group."""
        labels = [*map(_label, cargo.transfers)]
        if cargo.outcomes.min() == cargo.outcomes.max() == Carried.MOVED and labels.count(labels[0]) == len(labels):
            yield labels[0][1], [*cargo.transfers], cargo.targets
            return
        groups: dict[tuple[int, int, int], list[int]] = {}
        for number in np.flatnonzero(cargo.outcomes == Carried.MOVED).tolist():
            groups.setdefault(labels[number], []).append(number)
        for (_, target, _), numbers in groups.items():
            yield target, [*map(cargo.transfers.__getitem__, numbers)], cargo.targets[numbers]

    def close(self, transfers: Sequence[Transfer]) -> None:
        """Transfers of this leg have ended, by whatever way."""
        for transfer in transfers:
            if transfer.via is not None:
                self._give_back_lane_slot(transfer, transfer.via)
        self._moves.all_ended(transfers)

    def _fail(self, transfer: Transfer, outcome: Carried, *, blamed: bool) -> None:
        row = np.array([transfer.row], np.int64)
        if outcome is Carried.FAILED and blamed and self._both_there():
            self._note_setback(transfer)
        if outcome is Carried.CORRUPT:
            self._directory.state.counters["blocks_corrupt"] += 1
            _log.error("lane %s: a block does not have the checksum its writer sealed: removed", self._name)
            self._directory.copies.remove(row, Reason.LOSS)
        elif outcome is Carried.LOST:
            self._directory.state.counters["copies_lost"] += 1
        self._directory.moves.fail([transfer], source_lost=outcome is Carried.LOST)

    def _commit(self, transfers: list[Transfer], places: Offsets) -> None:
        try:
            self._directory.moves.commit(transfers, places)
        except Exception as error:
            # A bug of ours. The blocks stay where they were: nobody may wait for these transfers for ever.
            self._directory.state.counters["commits_failed"] += 1
            self._on_error(error)
            failed = [transfer for transfer in transfers if transfer.stage is Stage.RUNNING]
            for transfer in failed:
                self._note_setback(transfer)
            self._directory.moves.fail(failed)

    def _both_there(self) -> bool:
        """Both ends of the leg take part: a disk tier that is off is to blame itself."""
        books = self._directory.books
        ends = (books[self._leg.source], books[self._leg.target])
        return all(book.on for book in ends if isinstance(book, DiskBook))

    def _note_setback(self, transfer: Transfer) -> None:
        self._directory.state.setbacks.failed(transfer.row, self._directory.state.clock.now())

    def _give_back_lane_slot(self, transfer: Transfer, slot: int) -> None:
        pool = self._leg.target if self._leg.target != transfer.target else self._leg.source
        self._directory.state.mapped(pool).lane_slots[transfer.size].append(slot)
        transfer.via = None
