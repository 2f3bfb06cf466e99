"""The pages of one open sequence, as its client reaches them: translations, faults, and copies of no other block."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybridkv.paging.entries import MAPPED, Words
from hybridkv.paging.replies import FaultReply, TranslateReply, Want
from hybridkv.paging.states import PageState
from hybridkv.service.client.core import Budget
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.outputs import Rows
from hybridkv.service.client.tlb import Blocks, Slots, Tlb, entries_of
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError, InternalError, NotFoundError
from hybridkv.tiers.pools import SLOT_DTYPE

T = TypeVar("T")
States = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

IN_PLACE = (PageState.READABLE, PageState.WRITABLE, PageState.FRESH)


class Located(NamedTuple):
    """A position's place: token `token` of the block whose slot starts at `offset` bytes of `pool`. It held at the moment
    of the look."""

    pool: int
    offset: int
    token: int


@dataclass(frozen=True, slots=True)
class Faulted:
    """States and slots of the blocks that were asked for, and the leases that were taken."""

    states: States
    slots: Slots
    leases: tuple[int, ...]
    expires_in_s: float


class Pages:
    """Thread-safe. Belongs to one session: when that has ended, ExpiredError; after a close, FailedPreconditionError."""

    def __init__(self, attachment: Attachment, sequence: int, pool: int, tlb: Tlb) -> None:
        if attachment.memory is None:
            raise FailedPreconditionError(
                f"sequences need mapped memory: {attachment.transport.unmapped_reason or 'there is none'}"
            )
        self.attachment = attachment
        self.memory: Memory = attachment.memory
        self.sequence = sequence
        self.pool = pool
        self.tlb = tlb
        self.closed = False
        self._pid = os.getpid()
        self._calls = attachment.transport.sequences
        self._limit = attachment.attached.limits.keys_per_call_count
        self._unchanged = self.memory.headers(pool).unchanged
        self._counters = self.memory.headers(pool).counters

    # ------------------------------------------------------------------------------------------------ looking

    def locate(self, block: int, token: int) -> Located | None:
        """Where a block lies by the TLB, checked now; None when that is not known or holds no longer. Makes no call."""
        if self.closed or os.getpid() != self._pid:
            self.check_open()
        one = self.tlb.known(block)
        if one is None:
            return None
        offset, generation, epoch, header, extent, pool = one
        if self._unchanged(header, generation, extent, epoch):
            return tuple.__new__(Located, (pool, offset, token))  # half the time of a call of the class
        self.tlb.disproved(np.array([block], np.int64))
        return None

    def find(self, blocks: Blocks) -> Slots:
        """Translations that are known and hold now; all zero elsewhere. Makes no call."""
        slots = self.tlb.find(blocks)
        told = slots["generation"] != 0
        if told.any():
            held = self.memory.headers(self.pool).unchanged_slots(slots)
            if (wrong := told & ~held).any():
                self.tlb.disproved(blocks[wrong])
                slots[wrong] = np.zeros(1, SLOT_DTYPE)[0]
        return slots

    def looker(self, budget: Budget) -> Callable[[Blocks], Words]:
        """Looks entries of blocks up (`paging.entries`), any block any number of times: by the TLB as it holds now or, for what
        it does not know, by one call; nothing is faulted in. The word of a block that is not in the pool is 0, or one
        without RESIDENT where it lies elsewhere."""
        self.check_open()
        checked = self.tlb.checked(*self._counters)

        def words(blocks: Blocks) -> Words:
            nonlocal checked
            found, known = checked.words(blocks)
            if not known.all():
                absent, where = np.unique(blocks[~known], return_inverse=True)
                found[~known] = self._asked(absent, budget)[where]
                checked = self.tlb.checked(*self._counters)  # with what it has learned
            return found

        return words

    def _asked(self, blocks: Blocks, budget: Budget) -> Words:
        """What the daemon says of blocks; the TLB learns it."""
        words = np.zeros(len(blocks), np.int64)
        for start in range(0, len(blocks), self._limit):
            part = blocks[start : start + self._limit]
            reply = self._look(part, budget)
            self.tlb.learn(part, reply.slots)
            elsewhere = np.where(reply.states == PageState.ELSEWHERE, MAPPED, 0)
            words[start : start + self._limit] = np.where(
                reply.slots["generation"] != 0, entries_of(reply.slots), elsewhere
            )
        return words

    def _look(self, blocks: Blocks, budget: Budget) -> TranslateReply:
        return self._told(lambda: self._calls.translate(self.sequence, blocks, timeout_s=budget.left_s()))

    # ------------------------------------------------------------------------------------------------ faulting

    def fault(self, blocks: Blocks, budget: Budget, *, write: bool = False, hold: bool = False) -> Faulted:
        """Fault blocks of this sequence in, in calls of at most as many blocks as one takes. Raises what a fault does;
        leases that were taken by then are released."""
        states, slots = np.zeros(len(blocks), np.uint8), np.zeros(len(blocks), SLOT_DTYPE)
        leases: list[int] = []
        expires_in_s = self.attachment.attached.limits.lease_s
        try:
            for start in range(0, len(blocks), self._limit):
                part = slice(start, start + self._limit)
                reply = self.fault_wants([Want(self.sequence, blocks[part], write)], budget, hold=hold)
                states[part], slots[part] = reply.states, reply.slots
                leases.extend(lease for lease in reply.leases if lease)
                expires_in_s = min(expires_in_s, reply.expires_in_s) if reply.leases else expires_in_s
        except BaseException:
            self.release(leases, budget)
            raise
        self.tlb.learn(blocks, slots)
        return Faulted(states, slots, tuple(leases), expires_in_s)

    def fault_wants(self, wants: list[Want], budget: Budget, *, hold: bool) -> FaultReply:
        """One call, of several sequences of the session if wanted. Teaches no TLB."""
        return self._told(
            lambda: self._calls.fault(wants, hold=hold, wait_s=budget.wait_s(), timeout_s=budget.left_s())
        )

    def release(self, leases: "list[int] | tuple[int, ...]", budget: Budget) -> None:
        """Give leases back; that they are gone by now is no loss."""
        for lease in leases:
            try:
                self.attachment.transport.release(lease, timeout_s=max(budget.left_s(), 1.0))
            except (LostError, NotFoundError, ExpiredError):
                continue

    # ------------------------------------------------------------------------------------------------ copying

    def copy_out(self, blocks: Blocks, target: Rows, budget: Budget) -> States:
        """Copy blocks to the rows of `target`, faulting in what is not known: PageState of each. Rows whose state is none of
        READABLE, WRITABLE and FRESH hold anything.

        Without a call where every translation holds from before its copy until after it. What moved in the middle is copied
        once more, held this time.
        """
        slots, states = self.find(blocks), np.full(len(blocks), PageState.READABLE, np.uint8)
        absent = np.flatnonzero(slots["generation"] == 0)
        if len(absent):
            found = self.fault(blocks[absent], budget)
            slots[absent], states[absent] = found.slots, found.states
        moved = self._copied(blocks, slots, np.arange(len(blocks)), target)
        if len(moved):
            states[moved] = self._copy_held(blocks, moved, target, budget)
        writable = (states == PageState.READABLE) & (slots["generation"] % 2 == 1)
        states[writable] = PageState.WRITABLE
        return states

    def _copied(self, blocks: Blocks, slots: Slots, rows: npt.NDArray[np.int64], target: Rows) -> npt.NDArray[np.int64]:
        """Copy what has a slot; the rows whose block moved meanwhile."""
        there = np.flatnonzero(slots["generation"] != 0)
        if not len(there):
            return there
        unchanged = self.memory.copy_pages(slots[there], rows[there], target)
        moved = there[~unchanged]
        if len(moved):
            self.tlb.disproved(blocks[moved])
        return moved

    def _copy_held(self, blocks: Blocks, rows: npt.NDArray[np.int64], target: Rows, budget: Budget) -> States:
        held = self.fault(blocks[rows], budget, hold=True)
        try:
            there = np.flatnonzero(held.slots["generation"] != 0)
            if len(there) and not self.memory.copy_pages(held.slots[there], rows[there], target).all():
                raise InternalError("sequence: a block that is held has moved")
        finally:
            self.release(held.leases, budget)
        return held.states

    def writable(self, blocks: Blocks, budget: Budget) -> Slots:
        """Slots of the sequence's own that may be written in place, until fork, suspend, publish or close."""
        slots = self.find(blocks)
        missing = np.flatnonzero(slots["generation"] % 2 == 0)
        if len(missing):
            found = self.fault(blocks[missing], budget, write=True)
            slots[missing] = found.slots
        return slots

    # ------------------------------------------------------------------------------------------------ life

    def check_open(self) -> None:
        """Raises FailedPreconditionError once closed, ExpiredError when the session is another process's."""
        if self.closed:
            raise FailedPreconditionError("the sequence is closed")
        if self.attachment.forked:
            raise ExpiredError("the sequence belongs to the parent of this process")

    def told(self, call: Callable[[], T]) -> T:
        """`call` for this sequence, with what its errors mean here."""
        return self._told(call)

    def _told(self, call: Callable[[], T]) -> T:
        self.check_open()
        try:
            return call()
        except LostError as error:
            raise ExpiredError(f"the sequence ended with its session: {error}") from error
        except NotFoundError as error:
            raise ExpiredError(f"the daemon does not know the sequence any more: {error}") from error
