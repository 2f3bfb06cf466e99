"""Slots that workers of a daemon before this one may still touch: not used again until these confirm, or are gone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.process import ProcessWatch


@dataclass(slots=True)
class FrozenSession:
    """A session of before: its entries in the session table, the processes of it that live, by entry, the slots it haunts
    (offsets), and since when."""

    epoch: int
    session: int
    entries: list[int] = field(default_factory=list)
    watches: dict[int, ProcessWatch] = field(default_factory=dict)
    slots: Sequence[int] = ()
    frozen_at: float = 0.0


class Frozen:
    """The sessions of before that have not ended. Thread-safe by the directory's lock."""

    def __init__(self, directory: Directory, book: MappedBook) -> None:
        self._directory = directory
        self._book = book
        self._sessions: list[FrozenSession] = []
        self.on_freed: Callable[[int], None] = lambda _entry: None
        """Called under the lock with an entry of the session table that nobody needs any more."""

    def freeze(self, sessions: Sequence[FrozenSession]) -> None:
        """Their slots are haunted from now on. Under the lock."""
        for session in sessions:
            session.frozen_at = self._directory.state.clock.now()
            self._book.haunt(session.slots)
        self._sessions += sessions

    @property
    def sessions_count(self) -> int:
        return len(self._sessions)

    @property
    def oldest_at(self) -> float | None:
        """When the slots that wait longest were frozen. Under the lock."""
        return min((session.frozen_at for session in self._sessions), default=None)

    @property
    def slots_count(self) -> int:
        return len({slot for session in self._sessions for slot in session.slots})

    @property
    def entries(self) -> set[int]:
        """Entries of the session table that are still needed."""
        return {entry for session in self._sessions for entry in session.entries}

    def poll(self) -> None:
        """Free what belonged to processes that have ended meanwhile."""
        if not self._sessions:
            return
        with self._directory.lock:
            for session in list(self._sessions):
                self._end(session, [entry for entry, watch in session.watches.items() if watch.gone])

    def confirm(self, epoch: int, session: int, pid: int) -> bool:
        """Process `pid` maps nothing of that session any more. False when it never did, as far as is known."""
        with self._directory.lock:
            for frozen in list(self._sessions):
                if (frozen.epoch, frozen.session) == (epoch, session):
                    entries = [entry for entry, watch in frozen.watches.items() if watch.pid == pid]
                    self._end(frozen, entries)
                    return bool(entries)
        return False

    def _end(self, session: FrozenSession, entries: Sequence[int]) -> None:
        """These processes touch nothing of it any more; when they were the last, nobody does."""
        for entry in entries:
            session.watches.pop(entry).close()
        if session.watches:
            return
        self._book.release(session.slots)
        self._sessions.remove(session)
        self._directory.state.counters["frozen_slots_freed"] += len(session.slots)
        for entry in session.entries:
            if self._book.headers is not None:
                self._book.headers.clear_session(entry)
            self.on_freed(entry)

    def close(self) -> None:
        """End the watches. The slots stay what they are."""
        for session in self._sessions:
            for watch in session.watches.values():
                watch.close()
        self._sessions.clear()
