"""Publishing blocks for which nobody waits: what became of each is counted, and nothing that a cache may lose is raised."""

from collections import Counter
from dataclasses import dataclass

from hybridkv.service.client.core import Budget, States, Wish, batches
from hybridkv.service.client.link import Attachment, Link
from hybridkv.service.client.reservation import Reservation, take_reservation
from hybridkv.service.client.staging import Blocks
from hybridkv.tiers.errors import HybridKVError, ResourceExhaustedError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.points import point
from hybridkv.tiers.states import ReserveOutcome, SealOutcome, Tier

ROOM_WAIT_S = 5.0
"""How long a batch waits for room that is being made."""


@dataclass(frozen=True, slots=True)
class PutCounts:
    """What became of blocks that were put, each counted once. `waiting` ones are not published yet, and counted later.

    `sealed`: published. `already_sealed`: another's block for that key came first and stays. `being_written`: another is
    writing it at this moment. `no_room`: there was none for it. `lost`: the daemon was not there, or refused; `failure` is
    the last reason.
    """

    sealed: int = 0
    already_sealed: int = 0
    being_written: int = 0
    no_room: int = 0
    lost: int = 0
    waiting: int = 0
    failure: str = ""

    def __add__(self, other: "PutCounts") -> "PutCounts":
        return PutCounts(
            self.sealed + other.sealed,
            self.already_sealed + other.already_sealed,
            self.being_written + other.being_written,
            self.no_room + other.no_room,
            self.lost + other.lost,
            self.waiting + other.waiting,
            other.failure or self.failure,
        )


@dataclass(slots=True, eq=False)
class Written:
    """Blocks that were written to their slots and are still to be sealed."""

    slots: Reservation
    count: int


def written(link: Link, keys: Keys, blocks: Blocks, parent: bytes | None) -> tuple[list[Written], PutCounts]:
    """Reserve and write, a call for as many keys as one takes; what there were no slots for is counted."""
    pieces: list[Written] = []
    counts, done = PutCounts(), 0

    def call(attachment: Attachment, budget: Budget) -> None:
        nonlocal counts, done
        for chosen, part in batches(keys[done:], attachment.attached.limits.keys_per_call_count):
            at = slice(done, done + chosen.stop - chosen.start)
            slots, missed = _reserved(attachment, part, keys[done - 1] if done else parent, budget, link.timeout_s)
            counts += missed
            done = at.stop
            if slots is not None:
                counts += _filled(slots, blocks[at], pieces)

    try:
        link.run(call, ROOM_WAIT_S)
    except HybridKVError as error:
        counts += lost(len(keys) - done, error)
    return pieces, counts


def sealed(piece: Written) -> PutCounts:
    """Publish what was written; anything but SEALED frees its slot."""
    try:
        with piece.slots as slots:
            return _told(slots.seal())
    except HybridKVError as error:
        return lost(piece.count, error)


def published(link: Link, keys: Keys, blocks: Blocks, parent: bytes | None) -> PutCounts:
    """Reserve, write and seal; on a new session, when the one there was is lost before anything was reserved."""
    pieces, counts = written(link, keys, blocks, parent)
    for piece in pieces:
        counts += sealed(piece)
    return counts


def lost(count: int, error: HybridKVError) -> PutCounts:
    """`count` blocks that are not published, and why."""
    return PutCounts(lost=count, failure=f"{type(error).__name__}: {error}")


def _reserved(
    attachment: Attachment, keys: Keys, parent: bytes | None, budget: Budget, timeout_s: float
) -> tuple[Reservation | None, PutCounts]:
    """Slots in the CPU tier for the keys that nobody has; None where there are none to be had. And the other keys."""
    wish = Wish(keys, Tier.CPU)
    try:
        slots = take_reservation(attachment, wish, parent, budget, timeout_s)
    except ResourceExhaustedError as error:
        return None, PutCounts(no_room=len(keys), failure=f"{type(error).__name__}: {error}")
    found = Counter(slots.outcomes.tolist())
    counts = PutCounts(
        already_sealed=found[ReserveOutcome.PRESENT],
        being_written=found[ReserveOutcome.BEING_WRITTEN],
        no_room=found[ReserveOutcome.NO_ROOM],
    )
    if not slots.new:
        slots.abort()
        return None, counts
    return slots, counts


def _filled(slots: Reservation, blocks: Blocks, pieces: list[Written]) -> PutCounts:
    """Write to the slots, which are then among `pieces`; or give them up."""
    new = slots.new
    try:
        slots.write_from(blocks if len(new) == len(blocks) else blocks[new], new)
    except HybridKVError as error:  # it lapsed meanwhile, or a page cannot be had
        with slots:
            return lost(len(new), error)
    point("worker.put_written")
    pieces.append(Written(slots, len(new)))
    return PutCounts()


def _told(outcomes: States) -> PutCounts:
    found = Counter(outcomes.tolist())
    expired = found[SealOutcome.EXPIRED]
    return PutCounts(
        sealed=found[SealOutcome.SEALED],
        already_sealed=found[SealOutcome.ALREADY_SEALED],
        lost=expired,
        failure="the reservation lapsed" if expired else "",
    )
