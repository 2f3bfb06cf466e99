"""What a blocking soak worker does to one namespace: every verb of the client, chosen and sized by the seed."""

import random
import time
from collections.abc import Callable

import numpy as np

from hybridkv.benchmarks.content import Bytes, Content
from hybridkv.benchmarks.soak.tally import CALL_FREE, Tally, WrongBytesError
from hybridkv.benchmarks.soak.universe import CHAIN_BLOCKS, CHAINS, keys_of
from hybridkv.service.client import KV, Lease, Reservation
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome

HELD_COUNT = 6
TIERS = (None, None, "cpu", "gpu")
WRITE_BLOCKS = 8
PAUSE_S = 0.01
GARBAGE = 0xEE


class Operations:
    """Random verbs over one handle; raises WrongBytesError, and what the client raises."""

    def __init__(self, kv: KV, space: int, rng: random.Random, tally: Tally) -> None:
        self.kv, self.space, self.rng, self.tally = kv, space, rng, tally
        self.content = Content(kv.space.layout.block_bytes)
        self._held: list[tuple[Keys, Lease]] = []
        self.verbs: dict[Callable[[], None], int] = {
            self.read: 20,
            self.read_again: 12,
            self.acquire: 16,
            self.held: 8,
            self.write: 16,
            self.write_behind: 5,
            self.abort: 4,
            self.request: 8,
            self.prefetch: 4,
            self.touch: 2,
            self.lookup: 2,
            self.remove: 1,
        }
        self._last = self.some()

    # ------------------------------------------------------------------------------------------------ reading

    def read(self) -> None:
        self._last = self.some()
        self._read(self._last)

    def read_again(self) -> None:
        """Mostly without a call: their places are known."""
        counts = self.kv.translations
        self._read(self._last)
        after = self.kv.translations
        if counts is not None and after is not None:
            self.tally.note(CALL_FREE, max(0, after.hits - counts.hits))

    def acquire(self) -> None:
        keys, views = self.some(), self.rng.random() < 0.8
        lease = self.kv.acquire(keys, tier=self.rng.choice(TIERS), timeout_s=self._patience(), views=views)
        if views and self.rng.random() < 0.3:
            self._hold(keys, lease)
            return
        with lease:
            self._look(keys, lease) if views else self._copy(keys, lease)

    def held(self) -> None:
        """A lease taken long ago: its blocks are what they were."""
        if self._held:
            keys, lease = self._held.pop(0)
            if lease.valid:
                self._look(keys, lease)
            lease.release()

    def lookup(self) -> None:
        self.kv.lookup(self.some())

    # ------------------------------------------------------------------------------------------------ writing

    def write(self) -> None:
        keys, parent = self._missing(self.some())
        with self.kv.reserve(keys, parent=parent, tier=self.rng.choice(TIERS), timeout_s=self._patience()) as slots:
            self._fill(keys, slots)
            chosen = slots.new if self.rng.random() < 0.9 else slots.new[::2]
            slots.seal(chosen)

    def write_behind(self) -> None:
        keys, parent = self._missing(self.some())
        blocks = np.empty((len(keys), self.kv.space.layout.block_bytes), np.uint8)
        for key, row in zip(keys, blocks, strict=True):
            self.content.fill(key, row)
        self.kv.put(keys, blocks, parent)
        blocks[:] = GARBAGE
        if self.rng.random() < 0.5:
            self.kv.flush(1.0)

    def abort(self) -> None:
        """Written, and never published: nobody may ever see it."""
        keys, parent = self._missing(self.some())
        slots = self.kv.reserve(keys, parent=parent, tier=self.rng.choice(TIERS), timeout_s=self._patience())
        for i in slots.new:
            slots.array(i)[:] = GARBAGE
        slots.abort()

    def request(self) -> None:
        """As an engine does: what is there is leased, the rest is computed, all of it touched at the end."""
        keys = self.some()
        hints = {"priority": self.rng.choice((None, 0, 1, 2)), "request_class": self.rng.choice((None, 1, 2))}
        request = self.kv.request(**hints)
        try:
            with request.acquire(keys, timeout_s=self._patience()) as lease:
                self._look(keys, lease)
                found = lease.prefix
            rest = keys[found : found + WRITE_BLOCKS]
            if len(rest):
                with request.reserve(rest, keys[found - 1] if found else None, timeout_s=self._patience()) as slots:
                    self._fill(rest, slots)
                    slots.seal()
        finally:
            if self.rng.random() < 0.9:  # else it ends when nobody renews it
                request.end(
                    end_of_session=self.rng.random() < 0.2, expected_next_use_s=self.rng.choice((None, 0.5, 900.0))
                )

    # ------------------------------------------------------------------------------------------------ the rest

    def prefetch(self) -> None:
        self.kv.prefetch(self.some(), self.rng.choice(("cpu", "gpu")), deadline_s=self.rng.choice((None, 0.1)))

    def touch(self) -> None:
        self.kv.touch(self.some())

    def remove(self) -> None:
        keys = self.some()
        self.kv.remove(keys[self.rng.randrange(len(keys)) :])

    def some(self) -> Keys:
        """The beginning of a chain; a quarter of them take most of the work."""
        count = CHAINS[self.space]
        number = self.rng.randrange(count if self.rng.random() < 0.4 else count // 4)
        return keys_of(self.space, number)[: self.rng.randint(1, CHAIN_BLOCKS)]

    # ------------------------------------------------------------------------------------------------ inside

    def verify(self, key: bytes, block: Bytes, how: str) -> bool:
        """Whether it is the key's block."""
        return self.content.verify(key, block) or self._wrong(key, block, how)

    def _wrong(self, key: bytes, block: Bytes, how: str) -> bool:
        right = np.empty_like(block)
        self.content.fill(key, right)
        at = np.flatnonzero(right != block)
        raise WrongBytesError(
            f"{how}: block {key.hex()} of namespace {self.space} differs in {len(at)} of {len(block)} bytes, "
            f"from byte {at[0]} on: {block[at[0] : at[0] + 16].tobytes().hex()}"
        )

    def _read(self, keys: Keys) -> None:
        out = np.empty((len(keys), self.kv.space.layout.block_bytes), np.uint8)
        states = self.kv.read(keys, out, timeout_s=self._patience())
        hits = np.flatnonzero(states == Outcome.HIT).tolist()
        for i in hits:
            self.verify(keys[i], out[i], "read")
        self.tally.verified(len(hits), len(hits) * out.shape[1])

    def _look(self, keys: Keys, lease: Lease) -> None:
        """Verify through views, as long as the lease is good."""
        hits = np.flatnonzero(lease.states == Outcome.HIT).tolist()
        for i in hits:
            block = lease.array(i)
            if not self.content.verify(keys[i], block) and lease.valid:
                self._wrong(keys[i], block, "lease")
        self.tally.verified(len(hits), len(hits) * self.kv.space.layout.block_bytes)

    def _copy(self, keys: Keys, lease: Lease) -> None:
        out = np.empty((len(keys), self.kv.space.layout.block_bytes), np.uint8)
        hits = np.flatnonzero(lease.read_into(out) == Outcome.HIT).tolist()
        for i in hits:
            self.verify(keys[i], out[i], "read_into")
        self.tally.verified(len(hits), len(hits) * out.shape[1])

    def _hold(self, keys: Keys, lease: Lease) -> None:
        if len(self._held) >= HELD_COUNT:
            self.held()
        self._held.append((keys, lease))

    def _missing(self, keys: Keys) -> tuple[Keys, bytes | None]:
        """What of a chain comes after its known prefix (or its head, when all is known), and the key before that."""
        start = self.kv.lookup(keys).prefix
        start = start if start < len(keys) else 0
        return keys[start : start + WRITE_BLOCKS], keys[start - 1] if start else None

    def _fill(self, keys: Keys, slots: Reservation) -> None:
        """Half of each block, a pause in which the process may be killed or stopped, then the rest."""
        rows = [(slots.array(i), keys[i]) for i in slots.new]
        blocks = []
        for out, key in rows:
            block = np.empty(len(out), np.uint8)
            self.content.fill(key, block)
            out[: len(out) // 2] = block[: len(out) // 2]
            blocks.append(block)
        time.sleep(self.rng.random() * PAUSE_S)
        for (out, _), block in zip(rows, blocks, strict=True):
            out[len(out) // 2 :] = block[len(out) // 2 :]

    def _patience(self) -> float:
        return self.rng.choice((0.0, 0.05, 0.5))
