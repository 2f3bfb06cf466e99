"""The config in force, and the way to another one while the host runs: checked as a whole, applied as one step."""

import logging
import threading
from collections.abc import Mapping

from hybridkv.migration.memory import Memory
from hybridkv.migration.migrator import Migrator
from hybridkv.paging.sequences import Sequences
from hybridkv.service.config import Config
from hybridkv.service.sessions import SessionBook
from hybridkv.service.specs import migration_spec, paging_rules, policies, quotas
from hybridkv.service.tuning import ConfigUpdate, Revision, reload, revise
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError

_log = logging.getLogger(__name__)


class Tuner:
    """One update at a time; what is read under the directory's lock sees all of an update or nothing. Thread-safe."""

    def __init__(
        self, config: Config, memory: Memory, migrator: Migrator, sessions: SessionBook, paging: Sequences
    ) -> None:
        self.config = config
        self.version = 1
        """Counts the configs in force since the start."""
        self._started = config
        self._memory = memory
        self._migrator = migrator
        self._sessions = sessions
        self._paging = paging
        self._turn = threading.Lock()

    def update(
        self, changes: Mapping[str, object], expected_version: int | None, sources: Mapping[str, str] | None
    ) -> ConfigUpdate:
        """See `Host.update_config`."""
        with self._turn:
            if expected_version not in (None, self.version):
                raise FailedPreconditionError(
                    f"nothing was changed: version {expected_version} was expected, {self.version} is in force"
                )
            return self._become(revise(self.config, self._started, changes, sources))

    def reload(self, loaded: Config) -> ConfigUpdate:
        """See `Host.reload_config`."""
        with self._turn:
            return self._become(reload(self.config, self._started, loaded))

    def _become(self, revision: Revision) -> ConfigUpdate:
        previous = self.version
        if revision.changed:
            self._check_sizes(revision)
            self._apply(revision)
            self.version += 1
            _log.info("config version %d: %s", self.version, ", ".join(map(str, revision.changed)))
        return ConfigUpdate(self.version, previous, revision.changed, revision.needs_restart)

    def _check_sizes(self, revision: Revision) -> None:
        problems = {
            f"{tier.name.lower()}.capacity_bytes": problem
            for tier, capacity_bytes in revision.resized().items()
            if (problem := self._memory.why_too_small(tier, capacity_bytes))
        }
        if problems:
            raise InvalidArgumentError(next(iter(problems)), "; ".join(problems.values()))

    def _apply(self, revision: Revision) -> None:
        """What may fail comes first: the new policies and the spec. The rest only sets values."""
        config, directory = revision.config, self._memory.directory
        spec = migration_spec(config)
        with directory.lock:
            self._memory.reorder(revision.reordered(), policies(config))
            directory.retune(half_life_s=config.migration.decay_half_life_s, window_s=config.migration.promote_window_s)
            self._migrator.retune(spec)
            self._sessions.retune(config)
            if directory.state.quotas is not None:
                directory.state.quotas.set_limits(quotas(config))
            directory.state.feed.limit_bytes = config.limits.watch_buffer_bytes
            self._paging.retune(paging_rules(config))
            for tier, capacity_bytes in revision.resized().items():
                self._migrator.resize(tier, capacity_bytes)
            self.config = config
        if revision.touches("daemon.log_level"):
            logging.getLogger("hybridkv").setLevel(config.daemon.log_level.upper())
        self._migrator.stir()
