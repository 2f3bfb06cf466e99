"""A host whose lanes are driven by hand: its real directory, reclaim, migrator and lanes, and no rule of its own."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from hybridkv.benchmarks.harness import Lap, lap
from hybridkv.service.config import Config, load_config
from hybridkv.service.facade import Host
from hybridkv.tiers import points
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.moves import Stage, Transfer
from hybridkv.tiers.errors import InternalError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.replacement import Rows
from hybridkv.tiers.states import Outcome, Priority, Reason, ReserveOutcome, Tier

KIB, MIB = 1 << 10, 1 << 20
WAIT_S = 60.0
KEY_BYTES = 16
KEYS_PER_CALL = 4096
_DONE = Stage.DONE
_STAGE = attrgetter("stage")

QUIET: dict[str, object] = {
    "gpu.high_watermark": 1.0,
    "gpu.low_watermark": 1.0,
    "gpu.idle_timeout_s": 0,
    "cpu.high_watermark": 1.0,
    "cpu.low_watermark": 1.0,
    "cpu.idle_timeout_s": 0,
    "disk.high_watermark": 1.0,
    "disk.low_watermark": 1.0,
    "migration.promote_at_accesses": 0,
    "migration.cooldown_s": 0,
    "migration.host_pressure_high": 1.0,
}
"""No rule moves anything by itself."""


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * (KEY_BYTES // 8)


def keys(numbers: Sequence[int]) -> Keys:
    return Keys.of([key(number) for number in numbers])


def space_of(block_bytes: int) -> Namespace:
    return Namespace(model="bench", layout=BlockLayout.opaque(block_bytes, 16, "bench"), key_bytes=KEY_BYTES)


def config_for(
    folder: Path, *, gpu_bytes: int = 0, cpu_bytes: int, disk_bytes: int = 0, device: str = "host:0", **more: object
) -> Config:
    """A quiet config with these tiers; `more`: other keys, `section__name`."""
    tiers: dict[str, object] = {
        "daemon.socket": f"unix://{folder}/kv.sock",
        "cpu.capacity_bytes": cpu_bytes,
        "cpu.min_bytes": 0,
        **({"gpu.devices": [device], "gpu.capacity_bytes": gpu_bytes} if gpu_bytes else {}),
        **({"disk.path": str(folder / "disk"), "disk.capacity_bytes": disk_bytes} if disk_bytes else {}),
    }
    overrides = {**QUIET, **tiers, **{name.replace("__", "."): value for name, value in more.items()}}
    return load_config(overrides=overrides, env={})


class Landing:
    """Over once all of these transfers have ended. Made and looked at under the directory's lock, and so cheaply."""

    def __init__(self, transfers: list[Transfer]) -> None:
        self.total = len(transfers)
        self._transfers = transfers
        self._over = threading.Event()

    def look(self) -> None:
        """Something has ended. The last is asked first, for lanes take them in order."""
        if not self.total or (self._transfers[-1].stage >= _DONE and min(map(_STAGE, self._transfers)) >= _DONE):
            self._over.set()

    def queued(self) -> int:
        """How many have not begun."""
        return sum(transfer.stage is Stage.QUEUED for transfer in self._transfers)

    def wait(self) -> None:
        if not self._over.wait(WAIT_S):
            raise InternalError(f"blocks did not land within {WAIT_S} s")


class LaneRig:
    """One host and one worker attached to it in this process. `gpu` and `cpu` are its pools' indices; `disk` is None
    where the host has no disk tier."""

    def __init__(self, config: Config, block_bytes: int, host: Host | None = None) -> None:
        """`host`: one that runs already and is not closed with the rig."""
        self._owned = host is None
        self.host = host or Host(config, start_loop=False)
        self.migrator = self.host.migrator
        self.directory = self.host.directory
        self.block = block_bytes
        self.cpu = self.host.memory.cpu_index
        self.gpu = 0
        self.disk = None if self.directory.state.disk is None else self.directory.state.disk.index
        self.session = self.host.attach(space_of(block_bytes), in_process=True).session
        self._written = 0
        self._template = np.random.default_rng(1).integers(0, 256, block_bytes, np.uint8)
        self._landings: list[Landing] = []
        self._listening = points.listening(self._at_point)
        self._listening.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ blocks

    def write(self, count: int, tier: Tier) -> Rows:
        """Seal `count` new blocks in a tier, with checksums as a client gives them: their rows, shuffled."""
        numbers = list(range(self._written, self._written + count))
        self._written += count
        self.make_room(self.gpu if tier is Tier.GPU else self.cpu, count)
        for first in range(0, count, KEYS_PER_CALL):
            self._write(numbers[first : first + KEYS_PER_CALL], tier)
        rows = self.rows(numbers)
        return np.random.default_rng(count).permutation(rows)

    def _write(self, numbers: list[int], tier: Tier) -> None:
        ticket = self.host.reserve(self.session, keys(numbers), tier=tier)
        ticket.wait(WAIT_S)
        reply = ticket.reply()
        if not (reply.outcomes == ReserveOutcome.NEW).all():
            raise InternalError(f"{len(numbers)} blocks find no room")
        sums = np.empty(len(numbers), np.uint64)
        array = self.host.pool_array(int(reply.slots["pool"][0]), writable=True)
        for at, (number, start) in enumerate(zip(numbers, reply.slots["offset"].tolist(), strict=True)):
            view = array[start : start + self.block]
            view[:] = self._template
            view[:8].view(np.uint64)[0] = number
            sums[at] = xxhash.xxh3_64_intdigest(view.data)
        self.host.seal(self.session, reply.reservation, None, sums)

    def rows(self, numbers: Sequence[int]) -> Rows:
        """Directory rows of blocks by number."""
        space = self.directory.space(space_of(self.block).fingerprint)
        assert space is not None
        with self.directory.lock:
            return self.directory.sealed(space.index, [key(number) for number in numbers])

    def keys_of(self, rows: Rows) -> Keys:
        return Keys.of([self.directory.blocks.keys[row] for row in rows.tolist()])

    def make_room(self, pool: int, count: int) -> None:
        """Slots for `count` more blocks are carved and backed by memory."""
        with self.directory.lock:
            self.migrator.reclaim.make_room(pool, self.block, count)
        self.settle()

    def slots(self, rows: Rows, pool: int) -> NDArray[np.int64]:
        slots: NDArray[np.int64] = self.directory.blocks.slot[pool][rows]
        return slots

    # ------------------------------------------------------------------------------------------------ moves

    def demote(self, rows: Rows, source: int, priority: Priority = Priority.DEMAND) -> Lap:
        """Move blocks one tier down, from the decision to the last commit."""
        with lap() as taken:
            landing = self.begin_demotion(rows, source, priority)
            self._wait(landing)
        self._require(rows, source + 1)
        return taken

    def begin_demotion(self, rows: Rows, source: int, priority: Priority) -> Landing:
        """Decide to move blocks one tier down."""
        with self.directory.lock:
            self.migrator.reclaim.lower(source, rows.tolist(), Reason.RECLAIM, priority)
            return self._expect(rows)

    def promote(self, rows: Rows, target: int) -> Lap:
        """Copy blocks up in the background, from the decision to the last commit."""
        with lap() as taken:
            with self.directory.lock:
                self.migrator.prefetch(rows, target)
                landing = self._expect(rows)
            self._wait(landing)
        self._require(rows, target)
        return taken

    def demand(self, wanted: Keys, tier: Tier) -> Lap:
        """Acquire blocks in a tier, as a worker does, until all are there; then the lease is released."""
        with lap() as taken:
            ticket = self.host.acquire(self.session, wanted, tier=tier, independent=True)
            ticket.wait(WAIT_S)
            reply = ticket.reply()
        if not (reply.states == Outcome.HIT).all():
            raise InternalError(f"{(reply.states != Outcome.HIT).sum()} of {len(wanted)} blocks did not come")
        self.host.release(self.session, reply.lease)
        return taken

    def drop(self, rows: Rows, pool: int) -> None:
        """Drop copies of blocks that have another one; nothing is under way when it returns."""
        self.settle()
        self.forget_copies(rows, pool)

    def forget_copies(self, rows: Rows, pool: int) -> None:
        """Drop copies of blocks that have another one and are not moving, whatever else is under way."""
        with self.directory.lock:
            self.directory.copies.drop(rows[self.slots(rows, pool) != NO_SLOT], pool)

    def settle(self) -> None:
        if not self.migrator.quiesce(WAIT_S):
            raise InternalError(f"transfers stay in flight after {WAIT_S} s")

    def _expect(self, rows: Rows) -> Landing:
        """Of transfers just begun, under the lock."""
        landing = Landing([*filter(None, map(self.directory.state.transfers.get, rows.tolist()))])
        self._landings.append(landing)
        landing.look()
        return landing

    def _at_point(self, name: str) -> None:
        """A lane has committed: under the directory's lock."""
        if name in ("move.source_freed", "move.source_kept"):
            for landing in self._landings:
                landing.look()

    def _wait(self, landing: Landing) -> None:
        landing.wait()
        with self.directory.lock:
            self._landings.remove(landing)

    def _require(self, rows: Rows, pool: int) -> None:
        missing = int((self.slots(rows, pool) == NO_SLOT).sum())
        if missing:
            raise InternalError(f"{missing} of {len(rows)} blocks did not arrive in {self.directory.books[pool].id}")

    def close(self) -> None:
        self._listening.__exit__(None, None, None)
        if self._owned:
            self.host.close()


@contextmanager
def rig_for(folder: Path, block_bytes: int, **config: int) -> Iterator[LaneRig]:
    """A rig of its own host, see `config_for`."""
    with LaneRig(config_for(folder, **config), block_bytes) as rig:  # type: ignore[arg-type]
        yield rig
