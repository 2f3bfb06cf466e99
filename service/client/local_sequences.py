"""Calls about sequences to a host in this process. See `SequenceCalls`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from hybridkv.migration.tickets import Ticket
from hybridkv.paging.replies import (
    AdvanceReply,
    FaultReply,
    OpenReply,
    ResizeReply,
    ResumeReply,
    StickyReply,
    SuspendReply,
    TranslateReply,
    Want,
)
from hybridkv.paging.windows import Window
from hybridkv.service.client.memory import Events
from hybridkv.service.client.sequence_calls import Checksums
from hybridkv.service.client.transport import Indices, States
from hybridkv.service.facade import Host
from hybridkv.service.openings import open_all
from hybridkv.service.sequence_codec import Opening
from hybridkv.tiers.keys import Keys

T = TypeVar("T")


class LocalSequenceCalls:
    """`session` gives the session's number, or raises LostError."""

    def __init__(self, host: Host, session: Callable[[], int]) -> None:
        self._host, self._calls = host, host.sequences
        self._session = session

    def open(self, openings: Sequence[Opening], *, timeout_s: float) -> list[OpenReply]:
        return open_all(self._host, self._session(), openings)

    def attach(self, sequence: int, first_block: int, keys: Keys, *, timeout_s: float) -> int:
        return self._calls.attach(self._session(), sequence, first_block, keys)

    def extend(self, more: Sequence[tuple[int, int]], *, timeout_s: float) -> list[int]:
        return self._calls.extend(self._session(), list(more))

    def fault(self, wants: Sequence[Want], *, hold: bool, wait_s: float, timeout_s: float) -> FaultReply:
        return _settled(self._calls.fault(self._session(), wants, hold=hold), wait_s)

    def translate(self, sequence: int, blocks: Indices, *, timeout_s: float) -> TranslateReply:
        return self._calls.translate(self._session(), sequence, blocks)

    def publish(
        self,
        sequence: int,
        first_block: int,
        keys: Keys,
        *,
        parent: bytes,
        checksums: Checksums | None,
        events: Events,
        wait_s: float,
        timeout_s: float,
    ) -> States:
        ticket = self._calls.publish(
            self._session(), sequence, first_block, keys, parent=parent, checksums=checksums, events=events
        )
        return _settled(ticket, wait_s)

    def fork(self, sequence: int, count: int, *, events: Events, wait_s: float, timeout_s: float) -> tuple[int, ...]:
        return _settled(self._calls.fork(self._session(), sequence, count, events=events), wait_s)

    def suspend(self, sequences: Sequence[int], *, events: Events, wait_s: float, timeout_s: float) -> SuspendReply:
        return _settled(self._calls.suspend(self._session(), list(sequences), events=events), wait_s)

    def resume(self, sequences: Sequence[int], *, wait_s: float, timeout_s: float) -> ResumeReply:
        return _settled(self._calls.resume(self._session(), list(sequences)), wait_s)

    def close(self, sequences: Sequence[int], *, events: Events, timeout_s: float) -> None:
        self._calls.close(self._session(), list(sequences), events=events)

    def advance(self, sequence: int, position: int, window: Window | None, *, timeout_s: float) -> AdvanceReply:
        return self._calls.advance(self._session(), sequence, position, window=window)

    def adjust_page_size(
        self, page_blocks: int, sequence: int | None, *, wait_s: float, timeout_s: float
    ) -> ResizeReply:
        session = self._session()
        ticket = self._calls.adjust_page_size(
            page_blocks, session=None if sequence is None else session, sequence=sequence
        )
        return _settled(ticket, wait_s)

    def set_sticky(self, sequence: int, first_block: int, count: int, sticky: bool, *, timeout_s: float) -> StickyReply:
        return self._calls.set_sticky(self._session(), sequence, first_block, count, sticky)

    def note_translations(self, hits: int, misses: int, invalidations: int, *, timeout_s: float) -> None:
        self._calls.note_tlb(self._session(), hits, misses, invalidations)

    def describe(self, sequence: int, *, timeout_s: float) -> dict[str, Any]:
        return asdict(self._calls.describe(self._session(), sequence))


def _settled(ticket: Ticket[T], wait_s: float) -> T:
    """The ticket's reply once it is done, or what it says when `wait_s` is over."""
    try:
        if not ticket.done and wait_s > 0:
            ticket.wait(wait_s)
        return ticket.reply()
    except BaseException:
        ticket.abandon()
        raise
