"""A host without a byte behind it: the facade, the directory and every decision of a daemon, on a clock that is set."""

from dataclasses import replace

from hybridkv.migration.simulated import SimulatedMemory, SimulatedMigrator
from hybridkv.service.config import Config
from hybridkv.service.facade import Host
from hybridkv.service.specs import memory_spec, migration_spec, policies
from hybridkv.tiers.clock import Clock


class SimulatedHost(Host):
    """For one thread. Copies are made by `migrator.quiesce`, passes of the background loop by `tick`.

    Its config counts as far as it decides what is kept where. Nothing of it is opened: no socket, no memory, no directory.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        super().__init__(config, clock=clock, start_loop=False)

    def _open(self, config: Config, instance: str, inherit: bool) -> None:
        self._instance = None
        self.memory = SimulatedMemory(memory_spec(config), self.clock, policies(config))
        # Nobody asks a replay to explain a block, and remembering moves would be a good part of its time.
        self.migrator = SimulatedMigrator(self.memory, replace(migration_spec(config), explain_moves=1))
