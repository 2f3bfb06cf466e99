"""Hints: what a caller knows about its blocks that their history does not tell yet. Advice, never a promise."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import InvalidArgumentError

MAX_REQUEST_CLASS: Final = 255
MAX_NEXT_USE_S: Final = 1e9


class Importance(IntEnum):
    """How much a caller would miss its blocks. Wire values."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Hints:
    """About the blocks of one request; every field is optional.

    priority             LOW: they go first. HIGH: they never do, and go last for as long as an idle block stays
    expected_next_use_s  seconds from the request's end to the next use. Beyond the idle timeout: they go first until then;
                         sooner: they go last until twice that time
    request_class        0 to 255, the caller's own meaning: requests and hits are counted by it, and a class whose blocks
                         are hardly ever used again goes first (see `tiers.directory.hinting`)
    end_of_session       no further request continues this chain: they go first

    Raises InvalidArgumentError naming the field.
    """

    priority: Importance | None = None
    expected_next_use_s: float | None = None
    request_class: int | None = None
    end_of_session: bool = False

    def __post_init__(self) -> None:
        if self.priority is not None:
            importance = Importance(checked_int("priority", self.priority, Importance.LOW, Importance.HIGH))
            object.__setattr__(self, "priority", importance)
        if self.request_class is not None:
            checked_int("request_class", self.request_class, 0, MAX_REQUEST_CLASS)
        if self.expected_next_use_s is not None:
            checked_seconds("expected_next_use_s", self.expected_next_use_s, MAX_NEXT_USE_S)

    def over(self, earlier: "Hints") -> "Hints":
        """These hints, completed by those given earlier."""
        return Hints(
            self.priority if self.priority is not None else earlier.priority,
            self.expected_next_use_s if self.expected_next_use_s is not None else earlier.expected_next_use_s,
            self.request_class if self.request_class is not None else earlier.request_class,
            self.end_of_session or earlier.end_of_session,
        )


NO_HINTS: Final = Hints()


def checked_seconds(field: str, value: float, high: float) -> float:
    """`value` if it is a number of seconds in 0..`high`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgumentError(field, f"must be a number of seconds, got {type(value).__name__}")
    if not math.isfinite(value) or not 0.0 <= value <= high:
        raise InvalidArgumentError(field, f"{value} is not in 0..{high:g} seconds")
    return float(value)
