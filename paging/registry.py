"""The sequences there are: making them, finding them, and the limits they are held to.

Called under the directory's lock, but for `check_length`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hybridkv.paging.mappings import Mappings
from hybridkv.paging.page_table import PageTable
from hybridkv.paging.sequence import Sequence
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.holds import Session
from hybridkv.tiers.errors import ForeignHoldError, InvalidArgumentError, NotFoundError, ResourceExhaustedError


@dataclass(frozen=True, slots=True)
class PagingRules:
    """`page_blocks`: of new sequences. `idle_timeout_s`: after which a sequence suspends by itself; None: never.
    `sticky_limit`: fraction of a pool that may be sticky, and likewise protected for windows. The counts are limits."""

    page_blocks: int = 1
    idle_timeout_s: float | None = None
    sticky_limit: float = 0.25
    sequences_per_session_count: int = 4096
    positions_count: int = 1 << 24


class Registry:
    """Sequences by number; a number is never used twice in one daemon's life."""

    def __init__(self, directory: Directory, rules: PagingRules) -> None:
        self._directory = directory
        self.rules = rules
        self.mappings = Mappings(directory)
        self._last = 0
        self._counts: Counter[int] = Counter()
        """How many sequences each session has."""

    def make(self, session: Session, tokens: int, block_tokens: int, pool: int, page_blocks: int) -> Sequence:
        """A sequence with nothing in it."""
        block_bytes = self._directory.state.spaces[session.namespace].block_bytes
        extents = {pool: self._directory.state.mapped(pool).table.extent_bytes}
        self._last += 1
        table = PageTable(block_tokens, block_bytes, page_blocks, extents)
        now = self._directory.state.clock.now()
        sequence = Sequence(self._last, session, pool, block_bytes, tokens, table, now)
        self.mappings.sequences[sequence.id] = sequence
        self._counts[session.id] += 1
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """It is closed, and nothing is in it any more."""
        sequence.closed = True
        del self.mappings.sequences[sequence.id]
        self._counts[sequence.session.id] -= 1
        if not self._counts[sequence.session.id]:
            del self._counts[sequence.session.id]

    def check_length(self, tokens: int) -> None:
        """Raises InvalidArgumentError."""
        limit = self.rules.positions_count
        if not 0 <= tokens <= limit:
            raise InvalidArgumentError("tokens", f"{tokens}: must be within 0 and {limit} (paging.positions_count)")

    def check_count(self, session: Session, more: int) -> None:
        """Raises ResourceExhaustedError when the session has too many with `more`."""
        there = self._counts[session.id]
        limit = self.rules.sequences_per_session_count
        if there + more > limit:
            raise ResourceExhaustedError(
                "paging.sequences_per_session_count",
                f"this session has {there} sequences and asks for {more} more; the limit is {limit}",
            )

    def of(self, session: Session, number: int) -> Sequence:
        """The session's own sequence. Raises NotFoundError, ForeignHoldError."""
        sequence = self.mappings.sequences.get(number)
        if sequence is None:
            raise NotFoundError(f"sequence: {number} is not open")
        if sequence.session is not session:
            raise ForeignHoldError(f"sequence: {number} belongs to another session")
        return sequence

    def all_of(self, session: Session, numbers: Iterable[int]) -> list[Sequence]:
        """Likewise; each once, in the order of first mention."""
        return [self.of(session, number) for number in dict.fromkeys(numbers)]

    def used(self, sequence: Sequence) -> Sequence:
        """It was asked for something: it is not idle."""
        sequence.last_used = self._directory.state.clock.now()
        return sequence

    def idle(self) -> list[Sequence]:
        """Sequences that were asked for nothing for long, are not suspended, and have no lease."""
        timeout_s, leases = self.rules.idle_timeout_s, self._directory.state.ledger.leases
        if timeout_s is None:
            return []
        due = self._directory.state.clock.now() - timeout_s
        return [
            sequence
            for sequence in self.mappings.sequences.values()
            if sequence.last_used <= due and not sequence.suspended and sequence.leases.isdisjoint(leases)
        ]
