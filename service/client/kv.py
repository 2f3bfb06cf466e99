"""`KV`: the client's handle, the same over a daemon and over a host in this process."""

import itertools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np

from hybridkv.paging.replies import ResizeReply
from hybridkv.paging.windows import Window
from hybridkv.service.client.block_table import BlockTable
from hybridkv.service.client.core import Budget, Found, batches, check_follows, prefix_of, tier_of
from hybridkv.service.client.link import Attachment, EpochChanged, Link
from hybridkv.service.client.opening import SequenceOpening, opened
from hybridkv.service.client.outputs import flat_source
from hybridkv.service.client.publishing import PutCounts
from hybridkv.service.client.putting import Puts
from hybridkv.service.client.sequence import Sequence
from hybridkv.service.client.sequence_tokens import SequenceTokens
from hybridkv.service.client.tlb import ENTRIES_COUNT
from hybridkv.service.client.translations import TranslationCounts
from hybridkv.service.client.verbs import KeysLike, Request, TierLike, Verbs
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import Hints, Importance
from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.namespace import Namespace


class KV(Verbs):
    """A handle on the blocks of one namespace. Thread-safe; a context manager that detaches at its end.

    When the daemon is lost, the next call attaches to the one that is there, within its deadline; leases and
    reservations of the old session are dead then (`valid` is False, their blocks raise ExpiredError). In a forked
    child the handle attaches anew, and what the parent holds is dead there.
    Every call ends within its own `timeout_s` and the handle's, or raises DeadlineExceededError or UnavailableError.
    """

    def __init__(
        self,
        space: Namespace,
        link: Link,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Made by `connect` and `open`."""
        super().__init__(space, link, None)
        self._on_close = on_close
        self._puts = Puts(link, space.layout.block_bytes)
        self._request_ids = itertools.count(1)

    # -------------------------------------------------------------------------------------------------- who and where

    @property
    def session(self) -> int:
        """The number of the session now; attaches when there is none."""
        return self._attachment().attached.session

    @property
    def epoch(self) -> int:
        """The daemon's epoch; another daemon process has another."""
        return self._attachment().attached.epoch

    @property
    def epoch_changes(self) -> int:
        """How often this handle found another daemon than before."""
        return self._link.epoch_changes

    @property
    def on_epoch_change(self) -> EpochChanged | None:
        """Called with (old, new) epoch by the thread whose call found another daemon, before that call goes on."""
        return self._link.on_epoch_change

    @on_epoch_change.setter
    def on_epoch_change(self, callback: EpochChanged | None) -> None:
        self._link.on_epoch_change = callback

    @property
    def mapped(self) -> bool:
        """Whether blocks are read and written in place; otherwise they are copied over streams."""
        return self._attachment().memory is not None

    @property
    def unmapped_reason(self) -> str:
        """Why nothing is mapped; empty when it is."""
        return self._attachment().transport.unmapped_reason

    @property
    def keys_per_call(self) -> int:
        """How many keys one `acquire` or `reserve` takes (`limits.keys_per_call_count`)."""
        return self._attachment().attached.limits.keys_per_call_count

    @property
    def draining(self) -> bool:
        """Whether the daemon said that it is about to stop."""
        return self._attachment().transport.draining

    @property
    def translations(self) -> TranslationCounts | None:
        """What came of this session's translations; None where every read asks the daemon."""
        known = self._attachment().translations
        return None if known is None else known.counts

    def _attachment(self) -> Attachment:
        return self._link.current(Budget(0.0, self._link.timeout_s))

    # -------------------------------------------------------------------------------------------------------- verbs

    def keys(self, tokens: Any, parent: bytes | None = None) -> Keys:
        """The chain of keys of the full blocks of `tokens`; `parent` is the key before them. See `tiers.keys.chain`."""
        return chain(self.space, tokens, parent)

    def lookup(self, keys: KeysLike) -> Found:
        """What is where now. Promises nothing: to read, acquire. Any number of keys."""
        wanted = self._keys(keys)

        def call(attachment: Attachment, budget: Budget) -> Found:
            limit = attachment.attached.limits.keys_per_call_count
            replies = [
                attachment.transport.lookup(part, timeout_s=budget.left_s()) for _, part in batches(wanted, limit)
            ]
            states = np.concatenate([reply.states for reply in replies])
            return Found(prefix_of(states), states, np.concatenate([reply.tiers for reply in replies]))

        return self._link.run(call)

    def put(self, keys: KeysLike, blocks: Any, parent: bytes | None = None) -> None:
        """Store blocks in the CPU tier, soon: `blocks` is the caller's own again when this returns.

        `keys` are distinct and a chain that goes on from `parent` (None at its head), any number of them. `blocks`: a
        contiguous NumPy array or host tensor with a row of block_bytes bytes per key. A block is found once it is
        published, which `flush` waits for; until then it is a MISS here, too. The first block of a key stays.
        What cannot be stored is counted, not raised: see `flush`. Waits while too much is not yet published; raises
        DeadlineExceededError when that is still so at the handle's deadline, and InvalidArgumentError.
        """
        wanted = self._keys(keys)
        check_follows(wanted, parent)
        if len(wanted):
            flat = flat_source(blocks, len(wanted), self._block_bytes, "blocks")
            self._puts.put(wanted, flat.reshape(len(wanted), self._block_bytes), parent)

    def flush(self, timeout_s: float = 5.0) -> PutCounts:
        """Wait until all that was `put` before is published, or `timeout_s` is over; what became of the blocks that no
        flush reported before. Raises nothing for blocks that are lost: they are counted."""
        return self._puts.flush(timeout_s)

    def request(
        self,
        *,
        priority: Importance | int | None = None,
        expected_next_use_s: float | None = None,
        request_class: int | None = None,
    ) -> Request:
        """A request: `acquire`, `read` and `reserve` in it are protected until its end and touched together then.

        The hints are advice about its blocks after its end: see `tiers.hints.Hints`. Raises InvalidArgumentError.
        """
        hints = Hints(priority, expected_next_use_s, request_class)  # type: ignore[arg-type]  # checked there
        return Request(self.space, self._link, next(self._request_ids), hints)

    def prefetch(
        self, keys: KeysLike, tier: TierLike = "cpu", device: int | None = None, deadline_s: float | None = None
    ) -> int:
        """Start bringing blocks up to `tier`; how many moves that started. Any number of keys.

        What has not begun to move after `deadline_s` is given up. A prefetch never delays what somebody waits for.
        """
        wanted = tier_of(tier)
        return self._counted(
            keys,
            lambda attachment, part, left_s: attachment.transport.prefetch(
                part, tier=wanted, device=device, deadline_s=deadline_s, timeout_s=left_s
            ),
        )

    def touch(self, keys: KeysLike) -> int:
        """Note an access to each block; how many there were. Any number of keys."""
        return self._counted(keys, lambda attachment, part, left_s: attachment.transport.touch(part, timeout_s=left_s))

    def remove(self, keys: KeysLike) -> int:
        """Drop blocks from every tier; how many there were. Any number of keys."""
        return self._counted(keys, lambda attachment, part, left_s: attachment.transport.remove(part, timeout_s=left_s))

    def open_sequence(
        self,
        tokens: Any = (),
        *,
        tier: TierLike = None,
        device: int | None = None,
        page_blocks: int | None = None,
        tlb_entries: int = ENTRIES_COUNT,
    ) -> Sequence:
        """A virtual KV address space for `tokens` (any number, none is allowed); the longest cached prefix is attached.

        `tier` None: the highest there is. `page_blocks`: blocks of a page, a power of two; None: as the daemon is told.
        `tlb_entries`: translations it keeps. Needs mapped memory. Raises ResourceExhaustedError beyond the session's limit.
        """
        opening = SequenceOpening(
            SequenceTokens.none(self.space).following(tokens).after, tier_of(tier), device, page_blocks, tlb_entries
        )
        return self._link.run(lambda attachment, budget: opened(attachment, opening, budget, self._link.timeout_s))

    def block_table(
        self,
        sequences: Iterable[Sequence],
        *,
        write_from: Iterable[int] | None = None,
        window: Window | None = None,
        timeout_s: float = 1.0,
    ) -> BlockTable:
        """One table for a batch of sequences of one pool, faulted in by as few calls as there can be and held until it is
        released. `write_from`: for each the position from which on it will be written. With `window` only what attention at
        each one's last position looks at."""
        chosen = list(sequences)
        starts: list[int | None] = [None] * len(chosen) if write_from is None else list(write_from)
        if len(starts) != len(chosen):
            raise InvalidArgumentError("write_from", f"{len(starts)} given for {len(chosen)} sequences")
        rows = [one.table_row(at, window) for one, at in zip(chosen, starts, strict=True)]
        return BlockTable(rows, self.space.layout, Budget(timeout_s, self._link.timeout_s), self._link.timeout_s)

    def adjust_page_size(self, page_blocks: int, *, timeout_s: float = 1.0) -> ResizeReply:
        """Change the page size of every sequence of the daemon, and of those that are opened later."""

        def call(attachment: Attachment, budget: Budget) -> ResizeReply:
            calls = attachment.transport.sequences
            return calls.adjust_page_size(page_blocks, None, wait_s=budget.wait_s(), timeout_s=budget.left_s())

        return self._link.run(call, timeout_s)

    def stats(self) -> dict[str, Any]:
        """The daemon's figures: what `hybridkv stats --json` prints."""
        return self._link.run(lambda attachment, budget: attachment.transport.stats(timeout_s=budget.left_s()))

    def close(self) -> None:
        """Detach: everything this handle holds ends at once, so nobody may still write to a slot. May be repeated.

        What was `put` is published first, as far as the handle's deadline allows."""
        self._puts.close(self._link.timeout_s)
        self._link.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    def _counted(self, keys: KeysLike, verb: Callable[[Attachment, Keys, float], int]) -> int:
        """Run `verb` in batches and add up; batches that were answered are not repeated when the daemon is lost."""
        wanted, done, total = self._keys(keys), 0, 0

        def call(attachment: Attachment, budget: Budget) -> None:
            nonlocal done, total
            for chosen, part in batches(wanted[done:], attachment.attached.limits.keys_per_call_count):
                total += verb(attachment, part, budget.left_s())
                done += chosen.stop - chosen.start

        self._link.run(call)
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KV({self.space.model}, rank {self.space.rank}/{self.space.world}, {self._link!r})"
