"""Taking blocks out: reserved, copied layer by layer, sealed; on a thread of its own, behind the computation."""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridkv.connectors.vllm.layout import GroupLayout
from hybridkv.connectors.vllm.metadata import Part, Store, note_dropped
from hybridkv.connectors.vllm.scopes import Scopes
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.connectors.vllm.transfer import Transfer
from hybridkv.service.client import KV, Reservation
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import ReserveOutcome, SealOutcome

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""vLLM tells of a request's end with its next step. An engine that makes none for so long has no request under way: what is
still open at the daemon ends then, without the hint that its session is over."""


class StoreJob:
    """One store under way. It holds its source blocks until `copied` is set, whatever becomes of it."""

    def __init__(self, store: Store, computed: Any) -> None:
        """`computed`: the mark behind which the blocks are full."""
        self.store = store
        self.computed = computed
        self.copied = threading.Event()
        self._lock = threading.Lock()
        self._state = "waiting"

    def begin_copy(self) -> bool:
        """Whether the source may be read now; False once it was given up."""
        with self._lock:
            if self._state == "given up":
                return False
            self._state = "copying"
            return True

    def give_up(self) -> bool:
        """Read nothing more: True when the copy had not begun; else the caller waits for `copied`."""
        with self._lock:
            if self._state != "waiting":
                return False
            self._state = "given up"
            return True


class Storer:
    """Carries stores out in order. `submit`, `flush`, `pending` and `take_dropped` belong to the engine's thread."""

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        transfers: Sequence[Transfer],
        scopes: Scopes,
        timeout_s: float,
        counters: Counters,
    ) -> None:
        self._layouts = layouts
        self._transfers = transfers
        self._scopes = scopes
        self._timeout_s = timeout_s
        self._counters = counters
        self._jobs: queue.SimpleQueue[StoreJob | tuple[str, bool] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way: dict[str, list[StoreJob]] = {}
        self._dropped: dict[tuple[str, int], int] = {}
        self._copied: dict[str, int] = {}
        self._stepped_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="hybridkv-store", daemon=True)
        self._thread.start()

    def submit(self, store: Store) -> StoreJob:
        """Begin. With a sliding window the caller waits for `copied` before vLLM gives the blocks to others."""
        job = StoreJob(store, self._transfers[store.part.group].mark_computed())
        with self._lock:
            self._under_way.setdefault(store.request, []).append(job)
        self._jobs.put(job)
        return job

    def refuse(self, store: Store) -> None:
        """Do not begin it at all."""
        self.drop(store)
        self._note_copied(StoreJob(store, None))

    def drop(self, store: Store) -> None:
        """Note that it is not carried out, so that the scheduler may plan it again."""
        with self._lock:
            note_dropped(self._dropped, [((store.request, store.part.group), store.part.first)])
        self._counters.add(dropped_blocks=len(store.part.keys))

    def flush(self, request_id: str) -> None:
        """The request's blocks are about to be overwritten: return once nothing reads them any more."""
        with self._lock:
            jobs = list(self._under_way.get(request_id, ()))
        for job in jobs:
            if job.give_up():
                self.drop(job.store)
            else:
                job.copied.wait()

    def end_request(self, request_id: str, end_of_session: bool) -> None:
        """The request is over: it ends at the daemon behind its last store."""
        self._jobs.put((request_id, end_of_session))

    def note_step(self) -> None:
        """The engine has made a step."""
        self._stepped_at = time.monotonic()

    def pending(self, request_id: str) -> bool:
        """Whether a store of the request still reads its blocks."""
        with self._lock:
            return any(not job.copied.is_set() for job in self._under_way.get(request_id, ()))

    def take_dropped(self) -> dict[tuple[str, int], int]:
        """(request, group) → first index that was not stored, since the last call."""
        with self._lock:
            taken, self._dropped = self._dropped, {}
        return taken

    def take_copied(self) -> dict[str, int]:
        """Request → how many of its stores read its blocks no more, since the last call."""
        with self._lock:
            taken, self._copied = self._copied, {}
        return taken

    def close(self) -> None:
        """Carry out what is left, then return."""
        self._jobs.put(None)
        self._thread.join()

    # ------------------------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, tuple):
                self._scopes.end(job[0], end_of_session=job[1])
                continue
            try:
                self._store(job)
            except Exception:  # the thread must live on: a block that is not stored is only a later miss
                log.exception("hybridkv: a store failed")
                self.drop(job.store)
            finally:
                self._note_copied(job)
                self._forget(job)

    def _next(self) -> StoreJob | tuple[str, bool] | None:
        while True:
            try:
                return self._jobs.get(timeout=IDLE_S)
            except queue.Empty:
                if time.monotonic() - self._stepped_at >= IDLE_S:
                    self._scopes.end_all()

    def _note_copied(self, job: StoreJob) -> None:
        """Its source may be given to others; the first time counts."""
        with self._lock:
            if not job.copied.is_set():
                job.copied.set()
                name = job.store.request
                self._copied[name] = self._copied.get(name, 0) + 1

    def _forget(self, job: StoreJob) -> None:
        with self._lock:
            jobs = self._under_way[job.store.request]
            jobs.remove(job)
            if not jobs:
                del self._under_way[job.store.request]

    def _store(self, job: StoreJob) -> None:
        part, door = job.store.part, self._scopes.doors[job.store.part.group]
        kv = door.kv
        if kv is None:
            self.drop(job.store)
            return
        try:
            with self._counters.timed("store"):
                for start in range(0, len(part.keys), kv.keys_per_call):
                    if not self._store_batch(job, kv, start, start + kv.keys_per_call):
                        break
        except HybridKVError as error:
            door.failed(kv, error)
            self.drop(job.store)

    def _store_batch(self, job: StoreJob, kv: KV, start: int, stop: int) -> bool:
        """Store keys `start` to `stop` of the part; whether the rest may follow."""
        part = job.store.part
        keys, parent = Keys.of(part.keys[start:stop]), part.keys[start - 1] if start else part.parent
        request = self._scopes.request(kv, job.store.request, job.store.hints)
        with request.reserve(keys, parent=parent, tier="cpu", timeout_s=self._timeout_s) as slots:
            present = int((slots.outcomes == ReserveOutcome.PRESENT).sum())
            full = int((slots.outcomes == ReserveOutcome.NO_ROOM).sum())
            self._counters.add(present_blocks=present, dropped_blocks=full)
            if slots.new:
                if not job.begin_copy():
                    return False
                self._copy(part, slots, np.array(part.block_ids[start:stop], np.int64), job.computed)
            if stop >= len(part.keys):
                self._note_copied(job)
            self._seal(part, slots)
        return not full

    def _copy(self, part: Part, slots: Reservation, ids: "np.ndarray[Any, np.dtype[np.int64]]", computed: Any) -> None:
        transfer, stacks = self._transfers[part.group], slots.stacks(np.array(slots.new, np.int64))
        for layer in range(len(self._layouts[part.group].pages)):
            transfer.gather(layer, stacks, ids, computed)

    def _seal(self, part: Part, slots: Reservation) -> None:
        if not slots.new:
            return
        sealed = int((slots.seal() == SealOutcome.SEALED).sum())
        self._counters.add(stored_blocks=sealed, stored_bytes=sealed * self._layouts[part.group].payload_bytes)
