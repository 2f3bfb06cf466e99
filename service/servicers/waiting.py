"""Waiting for a facade ticket without a thread, and no longer than the caller will."""

import asyncio
import contextlib
from typing import Any, Protocol

from hybridkv.tiers.errors import DeadlineExceededError

ANSWER_MARGIN_S = 0.02
"""Kept of a call's deadline for the answer: a reply that comes after the deadline is lost, with what it grants."""

DURABLE_WITHIN_S = 2.0
"""How long the answer to a removal waits for the disk. A disk that is slower than that, or fails, does not hold it."""

_NOTHING_LEFT_S = 0.0


class Awaited(Protocol):
    """The part of a ticket that waiting needs."""

    @property
    def done(self) -> bool: ...
    def add_done_callback(self, fn: Any) -> None: ...
    def abandon(self) -> None: ...


def budget_s(wait_s: float, context: Any) -> float:
    """`wait_s`, cut to what the call's deadline leaves. Never negative."""
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return wait_s
    return max(_NOTHING_LEFT_S, min(wait_s, remaining - ANSWER_MARGIN_S))


async def settled(ticket: Awaited, wait_s: float, context: Any) -> None:
    """Return when the ticket is done, `wait_s` is over or the call's deadline is near, whichever is first.

    When the call is cancelled meanwhile, or its deadline has passed before it got here or when it could be answered, the
    ticket is abandoned: nobody will hear what it grants. In the latter cases DeadlineExceededError is raised.
    """
    _check_deadline(ticket, context)
    budget = budget_s(wait_s, context)
    if ticket.done or budget <= _NOTHING_LEFT_S:
        return
    try:
        await _done_within(ticket, budget)
    except asyncio.CancelledError:
        ticket.abandon()
        raise
    _check_deadline(ticket, context)  # on a busy machine this thread may come too late


def _check_deadline(ticket: Awaited, context: Any) -> None:
    if (remaining := context.time_remaining()) is not None and remaining <= _NOTHING_LEFT_S:
        ticket.abandon()
        raise DeadlineExceededError("the deadline had passed before the call was served")


async def _done_within(ticket: Awaited, budget: float) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon stopped while a copy was under way
            loop.call_soon_threadsafe(finish)

    ticket.add_done_callback(wake)
    try:
        await asyncio.wait((done,), timeout=budget)
    finally:
        done.cancel()
