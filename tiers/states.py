"""The words of the state machine, as enums. Wire values are the enum values: never renumber."""

from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """A level of memory; a smaller value is a higher tier."""

    GPU = 0
    CPU = 1
    DISK = 2


class BlockState(IntEnum):
    """State of a directory row. FREE: the row is unused. REMOVED: the block is gone, but a lease, a request or a move in
    flight still holds its row."""

    FREE = 0
    RESERVED = 1
    SEALED = 2
    REMOVED = 3


class Outcome(IntEnum):
    """Answer of a lookup or an acquire, per key. RECOMPUTE: it is here, but the caller said that it computes faster than it
    would land; not loaded, and as good as a MISS."""

    HIT = 1
    PENDING = 2
    MISS = 3
    RECOMPUTE = 4


class ReserveOutcome(IntEnum):
    """Answer of a reserve, per key."""

    NEW = 1
    PRESENT = 2
    BEING_WRITTEN = 3
    NO_ROOM = 4


class SealOutcome(IntEnum):
    """Answer of a seal, per slot."""

    SEALED = 1
    ALREADY_SEALED = 2
    EXPIRED = 3


class Priority(IntEnum):
    """Order in which lanes serve; a smaller value goes first."""

    DEMAND = 0
    PREFETCH = 1
    BACKGROUND = 2


class Reason(StrEnum):
    """Why a block was moved, evicted or dropped; also the label of the move metrics."""

    DEMAND = "demand"
    PREFETCH = "prefetch"
    PROMOTE_AT_ACCESSES = "promote_at_accesses"
    WATERMARK = "watermark"
    IDLE = "idle"
    FEW_ACCESSES = "demote_below_accesses"
    PRESSURE = "memory_pressure"
    RESIZE = "resize"
    RECLAIM = "reclaim"
    RECARVE = "recarve"
    DRAIN = "drain"
    REMOVE = "remove"
    SUSPEND = "suspend"
    WINDOW = "window"
    PAGE_SIZE = "page_size"
    CLEAR = "clear"
    LOSS = "loss"
    QUOTA = "quota"
