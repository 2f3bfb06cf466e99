"""The host, opened: its parts, the operations of whoever runs it, and its memory. The workers' verbs are in `facade.py`.

Thread-safe. `drain`, `clear`, `check` and `close` may take milliseconds and more; call them from a thread that may block.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.explain import Explainer
from hybridkv.migration.memory import Memory
from hybridkv.migration.migrator import Migrator
from hybridkv.migration.tickets import Ticket
from hybridkv.paging.sequences import Sequences
from hybridkv.service.config import Config
from hybridkv.service.probes import Health, health
from hybridkv.service.replies import (
    DrainReport,
)
from hybridkv.service.report import stats
from hybridkv.service.sequence_calls import SequenceCalls
from hybridkv.service.sessions import SessionBook
from hybridkv.service.specs import memory_spec, migration_spec, paging_rules, policies, quotas
from hybridkv.service.tenants import tenant_stats
from hybridkv.service.tuner import Tuner
from hybridkv.service.tuning import ConfigUpdate
from hybridkv.tiers.clock import Clock, SystemClock
from hybridkv.tiers.directory.feed import Content
from hybridkv.tiers.directory.hinting import DEFAULT_FAR_S
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.header_reader import HeaderReader
from hybridkv.tiers.instance import InstanceDir, claim_instance
from hybridkv.tiers.states import Reason
from hybridkv.version import __version__


class HostBase:
    """Opening it takes the shared-memory and disk directories; closing gives them back."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        start_loop: bool = True,
        instance: str | None = None,
        inherit: bool = False,
        bequeath: bool = False,
    ) -> None:
        """Raises what hinders the start, naming the config key. `start_loop` False: a test calls `tick` itself.

        `instance` names it in the shared-memory directory; None: by its socket, so that a second one is refused.
        `inherit`: the CPU tier of a host before this one, which was stopped or killed, is taken over; else it is discarded.
        `bequeath`: `close` leaves the CPU tier for the next one.
        """
        self.epoch = secrets.randbits(63) | 1
        self.version = __version__
        self.clock = clock or SystemClock()
        self.started_at = self.clock.now()
        self._bequeath = bequeath
        self._open(config, instance or instance_name(config), inherit)
        self.directory = self.memory.directory
        if self.directory.state.quotas is not None:
            self.directory.state.quotas.set_limits(quotas(config))
        self._sessions = SessionBook(self.directory, self.memory, self.migrator, config, self.epoch)
        self.paging = Sequences(self.migrator, paging_rules(config))
        self.sequences = SequenceCalls(self._sessions, self.migrator, self.paging)
        self._sessions.on_end = self.paging.forget_session
        self._tuner = Tuner(config, self.memory, self.migrator, self._sessions, self.paging)
        self._readers: dict[int, HeaderReader] = {}
        self.feed = self.directory.state.feed
        self.feed.limit_bytes = config.limits.watch_buffer_bytes
        self._closed = False
        self.migrator.on_tick = self._before_pass
        self.directory.accesses.hinting.far_s = lambda: self.config.cpu.idle_timeout_s or DEFAULT_FAR_S
        if start_loop:
            self.migrator.start_loop()

    def _open(self, config: Config, instance: str, inherit: bool) -> None:
        """Memory and migrator; when that fails nothing stays open, and what could have been taken over stays."""
        self._instance: InstanceDir | None = claim_instance(Path(config.cpu.shm_dir), instance, keep=inherit)
        try:
            self.memory = Memory(memory_spec(config), self._instance, self.clock, self.epoch, policies(config))
            self.migrator = Migrator(self.memory, migration_spec(config), start_loop=False)
        except BaseException:
            self._instance.close(keep=bool(self._instance.stale))
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.memory!r}, epoch {self.epoch})"

    # ------------------------------------------------------------------------------------------------ operation

    def removals(self) -> Ticket[None]:
        """Done once nothing that was removed or cleared so far can come back with a restart."""
        return self.migrator.removals()

    def clear(self, fingerprint: bytes | None = None) -> int:
        """Remove every block of a namespace (None: of all; a beginning of a fingerprint: of those that have it) from every
        tier: how many there were."""
        removed = 0
        with self.directory.lock:
            for space in self.directory.state.spaces:
                if fingerprint is None or space.fingerprint.startswith(fingerprint):
                    rows = self.directory.of_space(space.index)
                    self.migrator.moves.history.removed(rows, Reason.CLEAR)
                    self.directory.copies.remove(rows, Reason.CLEAR)
                    removed += len(rows)
            self.directory.state.counters["cleared"] += removed
        self.migrator.stir()
        return removed

    @property
    def config(self) -> Config:
        """What is in force now."""
        return self._tuner.config

    @property
    def config_version(self) -> int:
        """1 at the start, one more with each change of the config."""
        return self._tuner.version

    def update_config(
        self,
        changes: Mapping[str, object],
        *,
        expected_version: int | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> ConfigUpdate:
        """Change config keys (dotted) while running: all of `changes`, or none. `sources` of the present values, for
        messages only.

        Raises InvalidArgumentError naming every bad key with its limit, FailedPreconditionError for keys that need a
        restart, or when another version than `expected_version` is in force. May take a second with many blocks.
        """
        return self._tuner.update(changes, expected_version, sources)

    def reload_config(self, loaded: Config) -> ConfigUpdate:
        """Go by `loaded` as far as that needs no restart; the answer names what does. Raises as `update_config`."""
        return self._tuner.reload(loaded)

    def content(self, fingerprint: bytes | None = None) -> Content:
        """Every block that can be found, of a namespace or of all, and the number of the event that comes after."""
        with self.directory.lock:
            return self.feed.content(fingerprint)

    @property
    def pool_names(self) -> list[str]:
        """By index."""
        return [str(book.id) for book in self.directory.books]

    def explain(self, key: bytes, prefix: bytes = b"") -> list[dict[str, Any]]:
        """What is known of a block, for each namespace (whose fingerprint begins with `prefix`) that has or had it: its
        copies, its moves and why, what comes next or keeps it. Looks at what a background pass looks at."""
        return Explainer(self.migrator).explain(key, prefix)

    def drain(self, timeout_s: float) -> DrainReport:
        """Bring to disk what is in volatile tiers only; returns when done or after `timeout_s`."""
        return DrainReport(*self.migrator.drain(timeout_s))

    def tick(self) -> None:
        """One pass of the background loop, for tests with a clock of their own."""
        self.migrator.tick()

    def _before_pass(self) -> None:
        self._sessions.expire()
        self.memory.frozen.poll()
        self.paging.tick()

    def check(self) -> list[str]:
        """One line for each law found broken."""
        return self.directory.check()

    def health(self) -> Health:
        """Component → (works, why not)."""
        return health(self)

    def stats(self) -> dict[str, object]:
        """Figures, JSON-serialisable; `docs/guide.md` lists the keys."""
        return stats(self)

    def tenant_stats(self, tenant: str) -> dict[str, object]:
        """What one tenant may know: its own figures, and no other's."""
        return tenant_stats(self, tenant)

    def holds_by_owner(self) -> Counter[str]:
        """Leases and reservations of each tenant. Under the directory's lock."""
        return self._sessions.holds_by_owner()

    @property
    def session_count(self) -> int:
        return self._sessions.count

    def close(self) -> None:
        """End lanes and loop, give memory back. Blocks that are on disk stay. May be called again."""
        if self._closed:
            return
        self._closed = True
        self.migrator.close()
        self.paging.close_all()
        keep = self._bequeath and self.memory.worth_keeping
        self.memory.close(keep=keep)
        self._sessions.close()
        if self._instance is not None:
            self._instance.close(keep=keep)

    # ------------------------------------------------------------------------------------------------ memory

    def pool_array(self, pool: int, writable: bool = False) -> NDArray[np.uint8]:
        """A mapped pool's bytes, flat, for use in this process. Raises InvalidArgumentError for a CUDA pool."""
        array = self.memory.region_of(pool).array
        if writable:
            return array
        view = array.view()
        view.flags.writeable = False
        return view

    def header_reader(self, pool: int) -> HeaderReader:
        """A reader of the pool's headers, for use in this process."""
        if pool not in self._readers:
            headers = self.directory.state.mapped(pool).headers
            if headers is None:
                raise InvalidArgumentError("pool", f"{pool} has no headers")
            self._readers[pool] = HeaderReader(headers.region)
        return self._readers[pool]


def discard_left(config: Config) -> int:
    """Free what a stopped or killed host left in shared memory: how many bytes. Raises UnavailableError while one lives."""
    left = claim_instance(Path(config.cpu.shm_dir), instance_name(config), keep=True)
    freed = sum(path.stat().st_blocks * 512 for path in left.stale)
    left.close()
    return freed


def instance_name(config: Config) -> str:
    """Names a daemon among the host's: two with the same socket are the same instance, and exclude each other."""
    return hashlib.blake2b(config.daemon.socket.encode(), digest_size=8).hexdigest()
