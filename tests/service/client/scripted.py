"""A transport that does what a test tells it, over one flat array: no daemon, no sockets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.service.client.link import Link
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.transport import LostError
from hybridkv.service.replies import AcquireReply, Attached, LimitsInfo, LookupReply, PoolInfo, ReserveReply
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE
from hybridkv.tiers.states import Outcome, Tier

BLOCK_BYTES = 4096
SLOTS = 8
LIMIT = 4
POOLS = (
    PoolInfo(0, Tier.CPU, 0, "host", BLOCK_BYTES * SLOTS, BLOCK_BYTES),
    PoolInfo(1, Tier.DISK, 0, "disk", 1 << 20, 1 << 16),
)


class Headers:
    """Generations that a test may change; `checks` counts how often they were asked."""

    def __init__(self) -> None:
        self.generations: npt.NDArray[np.uint64] = np.full(SLOTS, 2, np.uint64)
        self.checks = 0
        self.before_check: Callable[[], None] = lambda: None

    def holds(self, index: int, generation: int, extent: int, extent_epoch: int) -> bool:
        self.checks += 1
        self.before_check()
        return int(self.generations[index]) == generation

    def valid_slots(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        self.checks += 1
        self.before_check()
        return np.asarray(self.generations[slots["header"]] == slots["generation"])


class Mapped:
    """One pool of memory."""

    pools: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        self.memory = np.repeat(np.arange(SLOTS, dtype=np.uint8), BLOCK_BYTES)
        self.header = Headers()
        self.closed = False
        self.unmapped: list[Callable[[], None]] = []

    def readable(self, pool: int) -> npt.NDArray[np.uint8]:
        view = self.memory[:]
        view.flags.writeable = False
        return view

    def read_only(self, pool: int) -> tuple[Any, npt.NDArray[np.uint8]]:
        return self.header, self.readable(pool)

    def writable(self, pool: int) -> npt.NDArray[np.uint8]:
        return self.memory

    def headers(self, pool: int) -> Any:
        return self.header

    def close(self) -> None:
        self.closed = True
        for call in self.unmapped:
            call()

    def when_unmapped(self, call: Callable[[], None]) -> None:
        self.unmapped.append(call)


class Scripted:
    """A Transport. Key n lies in slot n; `states` are what it answers, `calls` what it was asked."""

    payload = None
    unmapped_reason = ""
    draining = False
    sequences: Any = None  # no test that scripts a transport opens one

    def __init__(
        self, epoch: int = 1, session: int = 1, lease_s: float = 30.0, pools: tuple[PoolInfo, ...] = POOLS
    ) -> None:
        limits = LimitsInfo(LIMIT, 1 << 22, 1 << 20, lease_s, lease_s, 5.0)
        self.attached = Attached(session, b"t" * 16, epoch, b"f" * 32, BLOCK_BYTES, 16, pools, limits)
        self.mapped = Mapped()
        self.memory = Memory(self.mapped, pools, BLOCK_BYTES)
        self.calls: list[tuple[str, Any]] = []
        self.states: list[list[Outcome]] = []
        self.alive: list[bool] | None = None
        self.lost = False
        self.closed: list[bool] = []
        self.failure: Exception | None = None
        self._next_lease = 10

    def _note(self, verb: str, what: Any) -> None:
        self.calls.append((verb, what))
        if self.lost:
            raise LostError("scripted")
        if self.failure is not None:
            raise self.failure

    def lookup(self, keys: Keys, *, timeout_s: float) -> LookupReply:
        self._note("lookup", len(keys))
        return LookupReply(np.full(len(keys), Outcome.HIT, np.uint8), np.full(len(keys), Tier.CPU, np.uint8))

    def acquire(self, keys: Keys, **asked: Any) -> AcquireReply:
        self._note("acquire", asked)
        answers = self.states.pop(0) if self.states else [Outcome.HIT] * len(keys)
        slots = np.zeros(len(keys), SLOT_DTYPE)
        for slot, key in zip(slots, keys, strict=True):
            number = int.from_bytes(key, "little")
            slot["offset"], slot["header"], slot["generation"] = number * BLOCK_BYTES, number, 2
        if asked["lease"] is None:
            self._next_lease += 1
        lease = self._next_lease if asked["lease"] is None else asked["lease"]
        return AcquireReply(lease, np.array(answers, np.uint8), slots, self.attached.limits.lease_s)

    def renew(self, holds: list[int], requests: list[int], *, timeout_s: float) -> list[bool]:
        self._note("renew", [*holds, *requests])
        return [True] * (len(holds) + len(requests)) if self.alive is None else self.alive

    def release(self, lease: int, *, events: Any = (), timeout_s: float) -> None:
        self._note("release", lease)

    def reserve(self, keys: Keys, **asked: Any) -> ReserveReply:
        self._note("reserve", asked)
        return ReserveReply(7, np.ones(len(keys), np.uint8), np.zeros(len(keys), SLOT_DTYPE), 30.0)

    def seal(
        self, reservation: int, indices: Any, checksums: Any, *, events: Any = (), timeout_s: float
    ) -> npt.NDArray[np.uint8]:
        self._note("seal", (reservation, indices.tolist(), checksums.tolist()))
        return np.ones(len(indices), np.uint8)

    def abort(self, reservation: int, indices: Any, *, events: Any = (), timeout_s: float) -> None:
        self._note("abort", (reservation, indices.tolist()))

    def prefetch(
        self, keys: Keys, *, tier: Tier | None, device: int | None, deadline_s: float | None = None, timeout_s: float
    ) -> int:
        self._note("prefetch", (len(keys), tier))
        return len(keys)

    def touch(self, keys: Keys, counts: npt.NDArray[np.int64] | None = None, *, timeout_s: float) -> int:
        if counts is None:
            self._note("touch", len(keys))
        else:
            self._note("told", [(int.from_bytes(k, "little"), n) for k, n in zip(keys, counts.tolist(), strict=True)])
        return len(keys)

    def remove(self, keys: Keys, *, timeout_s: float) -> int:
        self._note("remove", len(keys))
        return len(keys)

    def end_request(self, request: int, *, hints: Hints = NO_HINTS, timeout_s: float) -> None:
        self._note("end_request", request)

    def stats(self, *, timeout_s: float) -> dict[str, Any]:
        self._note("stats", None)
        return {"epoch": self.attached.epoch}

    def tell_unmapped(self, epoch: int, session: int) -> None:
        self.calls.append(("unmapped", (epoch, session)))

    def close(self, *, detach: bool) -> None:
        self.closed.append(detach)
        self.lost = True

    def asked(self, verb: str) -> list[Any]:
        """What the calls of `verb` were given."""
        return [what for name, what in self.calls if name == verb]


class Dialed:
    """A dial that hands out the given transports one by one; an exception among them is raised."""

    def __init__(self, *answers: Scripted | Exception) -> None:
        self.answers = list(answers)
        self.count = 0

    def __call__(self, timeout_s: float) -> Scripted:
        self.count += 1
        if not self.answers:
            raise UnavailableError("nobody is there")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def linked(*answers: Scripted | Exception, timeout_s: float = 5.0) -> Link:
    return Link(Dialed(*answers), timeout_s, None)


def numbered(*numbers: int) -> Keys:
    """Keys of slots."""
    return Keys.of((n.to_bytes(16, "little") for n in numbers), 16)
