"""Calls that count once a device's stream has come to an event: until then the caller's kernels may still write.

Nobody waits: `settle` asks the events, with every background pass, when something ended, and before other calls. The calls
of one session keep their order.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hybridkv.migration.tickets import Ticket
from hybridkv.paging.answers import Answer
from hybridkv.tiers.device.base import Event
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.errors import HybridKVError, NotFoundError

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Call:
    events: list[Event]
    act: Callable[[], "Ticket[Any]"]
    answer: Answer[Any] = field(default_factory=Answer)
    inner: "Ticket[Any] | None" = None


class Deferred:
    """Calls that wait for events, by session. `settle` is called without the lock, the others under it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._calls: dict[int, deque[_Call]] = {}

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._calls.values())

    def run(self, session: int, pending: Mapping[int, Event], act: Callable[[], Ticket[T]]) -> Ticket[T]:
        """`act`, at once or when the events, and the session's calls before it, are done. It begins something, as a ticket."""
        waiting = self._calls.get(session)
        if not pending and not waiting:
            return act()
        call = _Call(list(pending.values()), act)
        self._calls.setdefault(session, deque()).append(call)
        return call.answer.ticket

    def settle(self) -> None:
        """Carry out the calls whose events are done."""
        if not self._calls:
            return
        with self._directory.lock:
            fronts = {session: list(calls) for session, calls in self._calls.items()}
        for session, calls in fronts.items():
            for call in calls:
                if not all(_is_done(event) for event in call.events):
                    break
                self._carry_out(session, call)

    def _carry_out(self, session: int, call: _Call) -> None:
        with self._directory.lock:
            waiting = self._calls.get(session)
            if not waiting or waiting[0] is not call:
                return
            waiting.popleft()
            if not waiting:
                del self._calls[session]
            try:
                ticket = call.act()
            except HybridKVError as error:
                call.answer.fail(error)
                ticket = None
        if ticket is None:
            call.answer.ticket.finish()
        else:
            ticket.add_done_callback(lambda: _pass_on(ticket, call.answer))

    def forget(self, session: int) -> list[Ticket[Any]]:
        """The session ends, and so do its calls: tickets to be finished without the lock."""
        calls = self._calls.pop(session, deque())
        for call in calls:
            call.answer.fail(NotFoundError(f"session: {session} is not attached"))
        return [call.answer.ticket for call in calls]


def _pass_on(ticket: "Ticket[Any]", answer: Answer[Any]) -> None:
    try:
        answer.give(ticket.reply())
    except HybridKVError as error:
        answer.fail(error)
    answer.ticket.finish()


def _is_done(event: Event) -> bool:
    """An event that cannot be asked is not done: the call waits until its session ends."""
    try:
        return event.done
    except HybridKVError as error:
        _log.warning("a worker's device event cannot be asked: %s", error)
        return False
