"""Answers that somebody gives later: a ticket whose value is set."""

from collections.abc import Callable
from typing import Generic, TypeVar

from hybridkv.migration.tickets import Ticket
from hybridkv.tiers.errors import DeadlineExceededError, HybridKVError

T = TypeVar("T")


class Answer(Generic[T]):
    """One call's answer. `give` and `fail` set it; whoever calls them finishes the ticket, without the directory's lock.

    A reply asked for too early raises DeadlineExceededError; what was begun goes on.
    """

    def __init__(self) -> None:
        self._value: Callable[[], T] = _too_early
        self.ticket: Ticket[T] = Ticket(lambda: self._value(), lambda: None)

    def give(self, value: T) -> None:
        self._value = lambda: value

    def fail(self, error: HybridKVError) -> None:
        def refuse() -> T:
            raise error

        self._value = refuse


def _too_early() -> T:  # type: ignore[type-var]
    raise DeadlineExceededError("not done in time; it goes on")
