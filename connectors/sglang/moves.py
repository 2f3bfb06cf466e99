"""Pages on their way: leased and copied out, or reserved, filled and published."""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.sglang.metrics import Meter
from hybridkv.connectors.sglang.options import Options
from hybridkv.service.client import KV, Lease, Reservation
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome

Fill = Callable[[Reservation], None]
Use = Callable[[Lease, npt.NDArray[np.int64]], None]

_PUBLISHED = (SealOutcome.SEALED, SealOutcome.ALREADY_SEALED)
_WITH_OTHERS = (ReserveOutcome.PRESENT, ReserveOutcome.BEING_WRITTEN)


class Moves:
    """Moves batches of pages of `page_bytes` between host memory and the CPU tier. Raises what the client raises."""

    def __init__(self, page_bytes: int, options: Options, meter: Meter) -> None:
        self.page_bytes = page_bytes
        self._options = options
        self._meter = meter

    def load(self, kv: KV, keys: Keys, use: Use) -> list[bool]:
        """Lease pages and `use` those that are there; True for each that was leased all the while."""
        began = time.monotonic()
        with kv.acquire(keys, tier="cpu", timeout_s=self._options.load_timeout_s, independent=True) as lease:
            there = lease.states == Outcome.HIT
            hits = np.flatnonzero(there)
            if len(hits):
                use(lease, hits)
            if not lease.valid:  # the daemon went: its memory may be another's by now
                there[:] = False
        self._meter.loaded(int(there.sum()), self.page_bytes, time.monotonic() - began)
        found: list[bool] = there.tolist()
        return found

    def store(self, kv: KV, keys: Keys, parent: bytes | None, fill: Fill) -> list[bool]:
        """Reserve what nobody has, `fill` and publish it; True for each page that is stored then, or that another worker
        is storing. Nothing is published when `fill` raises."""
        began = time.monotonic()
        with kv.reserve(keys, parent=parent, tier="cpu", timeout_s=self._options.store_timeout_s) as slots:
            there = np.isin(slots.outcomes, _WITH_OTHERS)
            ours = np.array(slots.new, np.int64)
            if len(ours):
                fill(slots)
                self._blank_rest(slots)
                there[ours] = np.isin(slots.seal(), _PUBLISHED)
        self._meter.stored(int(there[ours].sum()), self.page_bytes, time.monotonic() - began)
        stored: list[bool] = there.tolist()
        return stored

    def _blank_rest(self, slots: Reservation) -> None:
        """What lies behind the page in its block, which is rounded up, must not be of an earlier block."""
        for stack in slots.stacks(np.array(slots.new)):
            stack.blocks[stack.rows, self.page_bytes :] = 0
