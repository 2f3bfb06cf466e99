"""Taking over what a daemon before this one left in the CPU tier: once, at the start, before anybody asks.

Sealed blocks become known again, each to be verified before its first use. Slots that living workers of before may touch are
frozen. Everything is done in an order in which a kill at any step leaves regions that the next start can take over as well:
first what is not to be found is made unreadable, then who may touch what is noted anew, then the notes of before go.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.frozen import Frozen, FrozenSession
from hybridkv.migration.heirlooms import Heirlooms, first_of_each, judged
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT, Checksum
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.state import Space
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.left_behind import LeftBehind
from hybridkv.tiers.points import point
from hybridkv.tiers.process import ProcessWatch
from hybridkv.tiers.replacement import NO_ROW, Rows
from hybridkv.tiers.states import BlockState

_log = logging.getLogger(__name__)

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TakeOverReport:
    """What became of what was there. `outcome`: "nothing" was there, "cold" (discarded because asked), "discarded" (could not
    be used: `reason`) or "taken". `dropped`: sealed slots that were not taken over, by reason."""

    outcome: str
    reason: str = ""
    blocks: int = 0
    bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    frozen_slots: int = 0
    frozen_sessions: int = 0
    took_s: float = 0.0


class TakeOver:
    """One take-over. `run` is called once, under the directory's lock, when the disk's blocks are known already."""

    def __init__(
        self, directory: Directory, book: MappedBook, left: LeftBehind, frozen: Frozen, never_mapped: bool = False
    ) -> None:
        """`never_mapped`: this daemon hands the memory to nobody."""
        self._never_mapped = never_mapped
        self._directory = directory
        self._book = book
        self._headers = left.headers
        self._survey = left.survey
        self._frozen = frozen
        self._dropped: Counter[str] = Counter()
        self._blocks = 0
        self._bytes = 0

    def run(self, daemon_epoch: int) -> TakeOverReport:
        """Raises nothing that is foreseen."""
        survey = self._survey
        for extent, size in survey.carved:
            self._headers.commit_extent(extent, size)
            self._book.table.adopt(extent, size)
        self._headers.take_over(daemon_epoch, self._never_mapped)
        point("takeover.claimed")
        heirlooms = self._sift(Heirlooms.of(self._headers, survey.sealed, survey.sealed_at))
        for fingerprint in heirlooms.fingerprints():
            self._adopt_space(fingerprint, heirlooms.of_space(fingerprint))
        self._order()
        point("takeover.adopted")
        sessions = self._freeze()
        self._directory.state.counters["blocks_taken_over"] += self._blocks
        return TakeOverReport(
            "taken", "", self._blocks, self._bytes, dict(self._dropped), self._frozen.slots_count, len(sessions)
        )

    # ------------------------------------------------------------------------------------------------ blocks

    def _sift(self, found: Heirlooms) -> Heirlooms:
        """What may be served; the rest is unreadable from now on."""
        why = judged(self._headers, found)
        for reason, positions in why.items():
            self._drop(found.indices[positions], reason)
        bad = np.zeros(len(found), np.bool_)
        for positions in why.values():
            bad[positions] = True
        return found.chosen(np.flatnonzero(~bad))

    def _drop(self, indices: Indices, reason: str) -> None:
        if len(indices):
            self._headers.retire(indices)
            self._dropped[reason] += len(indices)

    def _adopt_space(self, fingerprint: bytes, found: Heirlooms) -> None:
        """One namespace's blocks. All have one size and one width of keys: what says otherwise is not believed."""
        size, width = found.commonest()
        known = self._directory.space(fingerprint)
        if known is not None:
            size, width = known.block_bytes, known.key_bytes
        fits = (found.sizes == size) & (found.key_bytes == width) & np.isin(found.parent_bytes, (0, width))
        fits &= first_of_each(found)
        self._drop(found.indices[~fits], "malformed")
        found = found.chosen(np.flatnonzero(fits))
        if not len(found):
            return
        space = self._directory.add_space_by(fingerprint, size, width)
        self._adopt(space, found)

    def _adopt(self, space: Space, found: Heirlooms) -> None:
        blocks = self._directory.blocks
        rows = blocks.find(space.index, found.packed_keys())
        # The disk may have another block of the key, of before the last one was sealed. It is durable, so it stays.
        differs = (rows != NO_ROW) & (blocks.checksum[rows] != found.checksums)
        self._drop(found.indices[differs], "other_on_disk")
        found, rows = found.chosen(np.flatnonzero(~differs)), rows[~differs]
        self._insert(space, found, rows)
        now = self._directory.state.clock.now()
        blocks.accesses[rows] = np.nan_to_num(found.access_count, nan=0.0, posinf=0.0).clip(0, 1e9)
        blocks.last_access[rows] = np.maximum(blocks.last_access[rows], _times(found.last_access_at, now))
        if len(rows):
            order = np.argsort(blocks.last_access[rows], kind="stable")
            self._directory.copies.adopt(rows[order], self._book.index, found.offsets[order])
        self._blocks += len(found)
        self._bytes += len(found) * space.block_bytes

    def _insert(self, space: Space, found: Heirlooms, rows: Rows) -> None:
        """Rows for those that have none, written into `rows`."""
        blocks, now = self._directory.blocks, self._directory.state.clock.now()
        new = np.flatnonzero(rows == NO_ROW)
        rows[new] = fresh = blocks.allocate(len(new))
        found = found.chosen(new)
        blocks.insert(space.index, found.packed_keys(), fresh, found.packed_parents(), BlockState.SEALED)
        blocks.checksum[fresh] = found.checksums
        blocks.checked[fresh] = Checksum.CLAIMED
        blocks.sealed_at[fresh] = _times(found.sealed_at, now)

    def _order(self) -> None:
        """Namespaces came one after the other; the policy's order is by time over all of them."""
        blocks = self._directory.blocks
        rows: Rows = np.flatnonzero(blocks.slot[self._book.index] != NO_SLOT)
        times = blocks.last_access[rows]
        if len(np.unique(blocks.namespace[rows])) > 1:
            self._book.policy.touched(rows[np.argsort(times, kind="stable")], float(times.max()))

    # ------------------------------------------------------------------------------------------------ slots

    def _freeze(self) -> list[FrozenSession]:
        """Slots that living workers may touch are theirs until they end; whatever nobody can touch is nobody's."""
        survey, headers, table = self._survey, self._headers, self._book.table
        living = self._living()
        owned = np.zeros(len(survey.touched), np.bool_)
        for session in living:
            its = np.isin(survey.owners, [entry + 1 for entry in session.entries])
            owned |= its
            session.slots = survey.touched_at[its | survey.shared].tolist()
        theirs = owned | (survey.shared if living else np.zeros(len(owned), np.bool_))
        places = survey.touched_at[theirs]
        living = self._with_slots(living)
        free = np.fromiter((table.use_of(place) is SlotUse.FREE for place in places.tolist()), np.bool_, len(places))
        self._book.freeze(places[free])
        self._frozen.freeze(living)
        point("takeover.frozen")
        headers.set_haunts(survey.touched[~theirs], np.zeros(int((~theirs).sum()), np.uint32))
        headers.set_owner(survey.touched[~owned], 0)
        headers.set_holders(survey.touched, np.zeros(len(survey.touched), np.uint32))
        for entry in np.setdiff1d(survey.sessions, [*self._frozen.entries]).tolist():
            headers.clear_session(entry)
        return living

    def _with_slots(self, living: list[FrozenSession]) -> list[FrozenSession]:
        """Who holds nothing can touch nothing; the others are let go of."""
        for session in living:
            for watch in () if session.slots else session.watches.values():
                watch.close()
        return [session for session in living if session.slots]

    def _living(self) -> list[FrozenSession]:
        """Sessions of before with a process that lives. Processes without a pid here hold nothing (see `Survey`)."""
        sessions: dict[tuple[int, int], FrozenSession] = {}
        for entry in self._survey.sessions.tolist():
            row: Any = self._headers.sessions[entry]
            if not row["pid"]:
                continue
            epoch, number = int(row["epoch"]), int(row["session"])
            session = sessions.setdefault((epoch, number), FrozenSession(epoch, number))
            session.entries.append(entry)
            watch = ProcessWatch(int(row["pid"]), int(row["start_time"]), row["boot_id"].tobytes())
            if watch.gone:
                watch.close()
            else:
                session.watches[entry] = watch
        return [session for session in sessions.values() if session.watches]


def _times(values: NDArray[np.float64], now: float) -> NDArray[np.float64]:
    """Seconds since 1970 that make sense."""
    times: NDArray[np.float64] = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, now)
    return times
