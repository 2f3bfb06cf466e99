"""The backend class that SGLang's HiCache loads by name: `--hicache-storage-backend dynamic`.

A page of SGLang's host pool is a block; its key is SGLang's page hash. SGLang calls from threads of its own, which it never
starts again: no call here raises. What fails is a miss, or a page that is not stored.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hybridkv.connectors.guarded import Guarded
from hybridkv.connectors.sglang.metrics import Meter
from hybridkv.connectors.sglang.moves import Moves
from hybridkv.connectors.sglang.options import Options
from hybridkv.connectors.sglang.pool import HostPool, Pages
from hybridkv.connectors.sglang.space import keys_of, namespace_of, parent_of
from hybridkv.connectors.sglang.values import bytes_of, new_page
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.client import KV, Lease, Reservation, connect
from hybridkv.service.config import load_config
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage  # type: ignore[import-not-found]
except ImportError:  # the contract is tested without it; SGLang itself takes nothing that is not of its class

    class HiCacheStorage:  # type: ignore[no-redef]
        """Stands in for SGLang's base class where SGLang is not installed."""


T = TypeVar("T")

BATCH = 128
"""Pages in one call: what SGLang itself batches."""

Move = Callable[[KV, Keys, slice, bytes | None], list[bool]]
"""Moves one batch: its keys, where it lies among all keys of the call, and the key before it."""


class HybridKVHiCache(HiCacheStorage):  # type: ignore[misc]
    """Pages of SGLang's host pool in the tiers of a daemon. Thread-safe.

    The namespace is known once the pool is registered; before, everything is a miss. The constructor and
    `register_mem_pool_host` raise InvalidArgumentError, or what the daemon refuses the namespace with, so that SGLang does
    not start with what cannot be served; a daemon that is not there yet does not hinder the start.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        """As SGLang's factory calls it; `kwargs` holds nothing that is used here."""
        self._config = storage_config
        self._options = Options.of(getattr(storage_config, "extra_config", None))
        self._address = self._options.address or load_config().daemon.socket
        self._meter = Meter()
        self._pool: HostPool | None = None
        self._space: Namespace | None = None
        self._guarded = Guarded(self._connect, self._options.retry_s)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool whose pages are stored. Raises what the class says."""
        self.mem_pool_host = mem_pool_host
        pool = HostPool(mem_pool_host)
        self._space = namespace_of(self._config, pool, self._options)
        self._moves = Moves(pool.page_bytes, self._options, self._meter)
        self._pool = pool
        self._guarded.open()

    # ------------------------------------------------------------------------------------------------- the v1 calls

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the first on are there, in any tier."""
        return self._call("batch_exists", lambda kv: kv.lookup(keys_of(keys)).prefix if keys else 0, 0)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Load pages into the host pool; whether each was. A page that was not may hold anything."""

        def load(kv: KV, wanted: Keys, at: slice, parent: bytes | None) -> list[bool]:
            pages, numbers = self._pages(host_indices, at)

            def write(lease: Lease, hits: npt.NDArray[np.int64]) -> None:
                pages.write(numbers, lease.stacks(hits))

            return self._moves.load(kv, wanted, write)

        return self._in_batches("batch_get_v1", keys, load)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of the host pool; whether each is there afterwards.

        True also for a page that another worker has stored, or is storing just now: SGLang gives up the rest of a chain at
        the first False. What fails half-way is not published.
        """

        def store(kv: KV, wanted: Keys, at: slice, parent: bytes | None) -> list[bool]:
            pages, numbers = self._pages(host_indices, at)

            def read(slots: Reservation) -> None:
                pages.read(numbers, slots.stacks(np.array(slots.new)))

            return self._moves.store(kv, wanted, parent or parent_of(extra_info), read)

        return self._in_batches("batch_set_v1", keys, store)

    def clear(self) -> None:
        """Remove this namespace's pages from every tier."""

        def clear(kv: KV) -> int:
            with AdminClient(self._address) as admin:
                return admin.clear(kv.space.fingerprint)

        self._call("clear", clear, 0)

    def get_stats(self) -> Any:
        """What was moved since the last call, as SGLang's StorageMetrics. Makes no call to the daemon."""
        return self._meter.take()

    def counts(self) -> dict[str, int]:
        """Calls since the start: `calls, failed` (refused, or no daemon), `skipped` (daemon left alone), `bugs`."""
        return dict(self._guarded.counts)

    def close(self) -> None:
        """Detach; SGLang calls it when the backend is detached at run time."""
        self._guarded.close()

    # ---------------------------------------------------------------------------------------------- the plain calls

    def exists(self, key: str) -> bool:
        """Whether the page is there."""
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The page as a flat tensor, `target_location` where it is given; None when it is not there."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Sequence[Any] | None = None, target_sizes: Any = None
    ) -> list[Any]:
        """Flat data pages, None for each that is not there. A location whose page is not there may hold anything."""
        targets = [None] * len(keys) if target_locations is None else list(target_locations)

        def load(kv: KV, wanted: Keys, at: slice, parent: bytes | None) -> list[bool]:
            page_bytes = self._moves.page_bytes

            def fill(lease: Lease, hits: npt.NDArray[np.int64]) -> None:
                for i in hits.tolist():
                    if targets[at.start + i] is None:
                        targets[at.start + i] = new_page(self.mem_pool_host, page_bytes)
                    bytes_of(targets[at.start + i], page_bytes)[:] = lease.array(i)[:page_bytes]

            return self._moves.load(kv, wanted, fill)

        found = self._in_batches("batch_get", keys, load)
        return [target if there else None for target, there in zip(targets, found, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store one flat data page."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Sequence[Any] | None = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store flat data pages (host tensors of a page's size); whether all are there afterwards."""
        given = list(values or ())
        if len(given) != len(keys):
            return False

        def store(kv: KV, wanted: Keys, at: slice, parent: bytes | None) -> list[bool]:
            page_bytes = self._moves.page_bytes

            def fill(slots: Reservation) -> None:
                for i in slots.new:
                    slots.array(i)[:page_bytes] = bytes_of(given[at.start + i], page_bytes)

            return self._moves.store(kv, wanted, parent, fill)

        return all(self._in_batches("batch_set", keys, store))

    # ------------------------------------------------------------------------------------------------------ inside

    def _connect(self) -> KV:
        if self._space is None:
            raise FailedPreconditionError("no host pool is registered yet")
        return connect(self._address, self._space, timeout_s=self._options.daemon_timeout_s)

    def _call(self, what: str, work: Callable[[KV], T], default: T) -> T:
        return self._guarded.call(f"SGLang {what}", work, default)

    def _in_batches(self, what: str, keys: Sequence[str], move: Move) -> list[bool]:
        """`move` for each batch, guarded: one that fails is False throughout and does not hinder the next."""
        done: list[bool] = []
        for start in range(0, len(keys), BATCH):
            at = slice(start, min(start + BATCH, len(keys)))
            done += self._call(what, partial(_move_batch, move, keys, at), [False] * (at.stop - at.start))
        return done

    def _pages(self, host_indices: Any, at: slice) -> tuple[Pages, npt.NDArray[np.int64]]:
        """The pool's pages, and the numbers of those of a batch."""
        pool = self._pool
        if pool is None:
            raise FailedPreconditionError("no host pool is registered yet")
        tokens = host_indices[at.start * pool.page_tokens : at.stop * pool.page_tokens]
        return pool.pages, pool.page_numbers(tokens, at.stop - at.start)


def _move_batch(move: Move, keys: Sequence[str], at: slice, kv: KV) -> list[bool]:
    parent = keys_of(keys[at.start - 1 : at.start])[0] if at.start else None
    return move(kv, keys_of(keys[at]), at, parent)
