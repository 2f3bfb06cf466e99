"""One daemon after the other on the same folders: each looks at what the one before left, works, and dies at its point."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybridkv.benchmarks.content import Content
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.client import KV
from hybridkv.service.client.link import Link
from hybridkv.service.client.proofs import proofs
from hybridkv.service.client.rpc import RpcDial
from hybridkv.service.client.transport import Transport
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier
from tests.service.client.conftest import BLOCK_TOKENS, make_space
from tests.service.crash.processes import Forked, Zygote

BLOCK_BYTES = 16 << 10
CALL_S = 10.0
MARKS_OFF: dict[str, object] = {
    f"{tier}.{mark}_watermark": 1.0 for tier in ("gpu", "cpu", "disk") for mark in ("high", "low")
}
GARBAGE = 0xEE


def emptied(tier: str) -> dict[str, object]:
    """Watermarks under which whatever may leave the tier does."""
    return {f"{tier}.high_watermark": 0.001, f"{tier}.low_watermark": 0.0005}


def values(folder: Path, *, verify: bool) -> dict[str, object]:
    """Small tiers between which nothing moves by itself. A SIGKILL tears no tree: `verify` only where that is the point."""
    return MARKS_OFF | {
        "daemon.socket": f"unix://{folder}/kv.sock",
        "daemon.grace_s": 0.05,
        "gpu.devices": ["host:0"],
        "gpu.capacity_bytes": "1MiB",
        "cpu.shm_dir": str(folder),
        "cpu.capacity_bytes": "2MiB",
        "disk.path": str(folder / "disk"),
        "disk.capacity_bytes": "32MiB",
        "disk.verify_at_start": verify,
        "migration.interval_s": 0.02,
        "migration.cooldown_s": 0,
        "migration.promote_at_accesses": 0,
        "migration.background_bytes_per_s": 0,
        "migration.lane_slots_count": 2,
        "migration.chain_prefetch_max_blocks": 0,
    }


class DeadError(Exception):
    """The daemon has died, which is what it was meant to do."""


class Stage:
    """What one daemon's clients do, and what they may expect of the next daemon.

    `sealed`: keys that were offered for sealing, answered or not; `durable`: those of which the daemon said that they lie on
    disk; `never`: keys that were written to and not sealed.
    """

    def __init__(self, daemon: Forked, folder: Path, number: int) -> None:
        self.daemon, self.folder, self.number = daemon, folder, number
        self.address = f"unix://{folder}/kv.sock"
        self.died_at = ""
        self.spoiled = False
        self.sealed: set[bytes] = set()
        self.durable: set[bytes] = set()
        self.never: set[bytes] = set()
        self.clients: list[KV] = []
        self.admin = AdminClient(self.address)
        self._chains = 0
        self._content = Content(BLOCK_BYTES)

    def connect(self) -> KV:
        """A client that gives up at once when the daemon is dead."""
        space = make_space(block_bytes=BLOCK_BYTES)
        kv = KV(space, Link(self._dial(space), CALL_S, None))
        self.clients.append(kv)
        return kv

    def close(self) -> None:
        for kv in self.clients:
            kv.close()
        self.admin.close()

    def keys(self, kv: KV, count: int) -> Keys:
        """A chain that no other call and no other stage had."""
        return kv.keys(self.tokens(count))

    def tokens(self, count: int) -> list[int]:
        """The tokens of such a chain."""
        self._chains += 1
        first = self.number * 10_000_000 + self._chains * 10_000
        return list(range(first, first + count * BLOCK_TOKENS))

    def store(self, kv: KV, count: int, tier: str = "cpu") -> Keys:
        """Write and seal so many blocks."""
        keys = self.keys(kv, count)
        self.sealed.update(keys)
        with kv.reserve(keys, tier=tier, timeout_s=CALL_S) as slots:
            slots.write_from(self.blocks(keys))
            slots.seal()
        return keys

    def blocks(self, keys: Keys) -> npt.NDArray[np.uint8]:
        """What belongs into them: uint8 [n, BLOCK_BYTES]."""
        rows = np.empty((len(keys), BLOCK_BYTES), np.uint8)
        for key, row in zip(keys, rows, strict=True):
            self._content.fill(key, row)
        return rows

    def sink(self, kv: KV, keys: Keys) -> None:
        """Bring blocks down to disk, and know it."""
        self.config(MARKS_OFF | emptied("gpu") | emptied("cpu"))
        while True:
            found = kv.lookup(keys)
            on_disk = np.flatnonzero((found.states == Outcome.HIT) & (found.tiers == Tier.DISK))
            self.durable.update(keys.at(on_disk))
            if len(on_disk) == len(keys):
                break
        self.config(MARKS_OFF)

    def config(self, changes: dict[str, object]) -> None:
        self.admin.update_config(changes)

    def _dial(self, space: Namespace) -> Callable[[float], Transport]:
        dial = RpcDial(self.address, space, proofs())

        def dialled(timeout_s: float) -> Transport:
            if self.daemon.has_ended():
                raise DeadError
            return dial(timeout_s)

        return dialled


@contextmanager
def staged(daemon: Forked, folder: Path, number: int) -> Iterator[Stage]:
    """Work until the daemon is dead; that it died in the middle is no error here."""
    stage = Stage(daemon, folder, number)
    try:
        yield stage
    except (DeadError, HybridKVError):
        if not daemon.has_ended(CALL_S):
            raise
    finally:
        stage.close()


def start(zygote: Zygote, folder: Path, crash_at: str, *, verify: bool = False) -> Forked:
    return zygote.fork("daemon", values(folder, verify=verify), crash_at)
