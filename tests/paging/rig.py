"""Hosts with sequences for the tests of paging: real tiers on the host device, blocks whose bytes follow from their number."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridkv.migration.tickets import Ticket
from hybridkv.paging.replies import FaultReply, OpenReply, Want
from hybridkv.paging.states import PageState, PublishOutcome
from hybridkv.tiers.device.host_stream import HostStream
from hybridkv.tiers.keys import Keys
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, Rig, Worker, content, keys

TOKENS = 16
"""Tokens of a block of the rig's layout."""

UNMAPPED, READABLE, WRITABLE, FRESH, ELSEWHERE, LOST = (int(state) for state in PageState)
PUBLISHED, ALREADY, KEPT_PRIVATE, NOT_WRITABLE = (int(outcome) for outcome in PublishOutcome)

NONE = Keys(b"", 16)


class Pages:
    """One session's sequences. Reading verifies every byte against what was written."""

    def __init__(self, rig: Rig, worker: Worker | None = None) -> None:
        self.rig = rig
        self.worker = worker or rig.worker
        self.session = self.worker.session
        self.calls = rig.host.sequences
        self.block = self.worker.block

    @property
    def copies(self) -> HostStream:
        """The stream that copies on write go through."""
        stream = self.rig.host.paging.copier.streams[0]
        assert isinstance(stream, HostStream)
        return stream

    # ------------------------------------------------------------------------------------------------ life

    def opened(self, blocks: int = 0, chain: Iterable[int] = (), **how: Any) -> OpenReply:
        """A sequence of so many whole blocks, which begins with the chain."""
        chain = list(chain)
        tokens = how.pop("tokens", max(blocks, len(chain)) * TOKENS)
        return self.calls.open(self.session, keys(chain) if chain else NONE, tokens=tokens, **how)

    def open(self, blocks: int = 0, chain: Iterable[int] = (), **how: Any) -> int:
        return self.opened(blocks, chain, **how).sequence

    def close(self, *sequences: int) -> None:
        self.calls.close(self.session, sequences)

    # ------------------------------------------------------------------------------------------------ pages

    def ask(self, sequence: int, blocks: Iterable[int], write: bool = False, **how: Any) -> Ticket[FaultReply]:
        return self.calls.fault(self.session, [Want(sequence, np.array(list(blocks), np.int64), write)], **how)

    def fault(self, sequence: int, blocks: Iterable[int], write: bool = False, **how: Any) -> FaultReply:
        """Fault and wait until it is done."""
        ticket = self.ask(sequence, blocks, write, **how)
        assert ticket.wait(PATIENCE_S), "the fault stays waiting"
        return ticket.reply()

    def memory(self, slot: np.void) -> NDArray[np.uint8]:
        at = int(slot["offset"])
        return self.rig.host.pool_array(int(slot["pool"]), writable=True)[at : at + self.block]

    def write(self, sequence: int, numbers: dict[int, int], **how: Any) -> list[int]:
        """Write blocks: at block `b` the bytes of number `numbers[b]`. The states before."""
        reply = self.fault(sequence, numbers, True, **how)
        for slot, number in zip(reply.slots, numbers.values(), strict=True):
            self.memory(slot)[:] = content(number, self.block)
        return _listed(reply.states)

    def verify(self, reply: FaultReply, numbers: Iterable[int]) -> None:
        for slot, state, number in zip(reply.slots, reply.states.tolist(), numbers, strict=True):
            assert state in (READABLE, WRITABLE), PageState(state)
            assert np.array_equal(self.memory(slot), content(number, self.block)), f"other bytes than {number}'s"

    def read(self, sequence: int, numbers: dict[int, int]) -> FaultReply:
        """Fault blocks in; at block `b` lie the bytes of number `numbers[b]`."""
        reply = self.fault(sequence, numbers)
        self.verify(reply, numbers.values())
        return reply

    def publish(self, sequence: int, first: int, numbers: Iterable[int], **how: Any) -> list[int]:
        ticket = self.calls.publish(self.session, sequence, first, keys(numbers), **how)
        assert ticket.wait(PATIENCE_S)
        return _listed(ticket.reply())

    def states(self, sequence: int, blocks: Iterable[int]) -> list[int]:
        return _listed(self.calls.translate(self.session, sequence, np.array(list(blocks), np.int64)).states)

    def fork(self, sequence: int, count: int = 1) -> tuple[int, ...]:
        ticket = self.calls.fork(self.session, sequence, count)
        assert ticket.wait(PATIENCE_S)
        return ticket.reply()

    def suspend(self, *sequences: int) -> Any:
        ticket = self.calls.suspend(self.session, sequences)
        assert ticket.wait(PATIENCE_S), "the suspension stays waiting"
        return ticket.reply()

    def resume(self, *sequences: int) -> Any:
        ticket = self.calls.resume(self.session, sequences)
        assert ticket.wait(PATIENCE_S), "the resumption stays waiting"
        return ticket.reply()

    def resize(self, page_blocks: int, sequence: int | None = None) -> Any:
        session = None if sequence is None else self.session
        ticket = self.calls.adjust_page_size(page_blocks, session=session, sequence=sequence)
        assert ticket.wait(PATIENCE_S), "the change of the page size stays waiting"
        return ticket.reply()

    def info(self, sequence: int) -> Any:
        return self.calls.describe(self.session, sequence)


def _listed(states: NDArray[np.uint8]) -> list[int]:
    found: list[int] = states.tolist()
    return found


__all__ = ["BLOCK", "Pages", "Rig", "content", "keys"]
