"""Explains one block: where its copies are, what became of it, what would happen next and what keeps it where it is."""

from typing import Any

import numpy as np

from hybridkv.migration.history import MoveHistory
from hybridkv.migration.migrator import Migrator
from hybridkv.migration.verdicts import Grip, next_move, what_keeps
from hybridkv.migration.view import Thresholds
from hybridkv.tiers.decay import decayed
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.directory.books import Book
from hybridkv.tiers.directory.state import Space
from hybridkv.tiers.replacement import NO_ROW
from hybridkv.tiers.states import BlockState, Tier


class Explainer:
    """Answers from the directory, the planner's own view and the history of moves. Thread-safe; changes nothing."""

    def __init__(self, migrator: Migrator) -> None:
        self._migrator = migrator
        self._directory: Directory = migrator.directory
        self._history: MoveHistory = migrator.moves.history

    def explain(self, key: bytes, prefix: bytes = b"") -> list[dict[str, Any]]:
        """One account for each namespace, of those whose fingerprint begins with `prefix`, that has or had a block of this
        key; JSON-serialisable. `docs/guide.md` lists the fields. Empty: nothing is known of it."""
        moved = self._history.spaces_of(key)
        with self._directory.lock:
            spaces = [space for space in self._directory.state.spaces if space.fingerprint.startswith(prefix)]
            accounts = [
                (space, self._account(space, key))
                for space in spaces
                if space.index in moved or self._directory.blocks.find_one(space.index, key) != NO_ROW
            ]
            now = self._directory.state.clock.now()
        return [
            {**account, "history": [move.as_dict(now) for move in self._history.of(space.index, key)]}
            for space, account in accounts
        ]

    # ------------------------------------------------------------------------------------------------ one block

    def _account(self, space: Space, key: bytes) -> dict[str, Any]:
        blocks = self._directory.blocks
        named = {"fingerprint": space.fingerprint.hex(), "key": key.hex(), "block_bytes": space.block_bytes}
        row = blocks.find_one(space.index, key)
        if row == NO_ROW:
            return {**named, "state": "gone", "copies": []}
        state = BlockState(int(blocks.state[row]))
        if state is not BlockState.SEALED:
            return {**named, "state": state.name.lower(), "copies": []}
        copies = [self._copy(book, row) for book in self._directory.books if blocks.slot[book.index][row] != NO_SLOT]
        return {
            **named,
            "state": "sealed",
            "parent": blocks.parent_keys[row].hex(),
            **self._use(row),
            "moving": self._moving(row),
            "copies": copies,
        }

    def _use(self, row: int) -> dict[str, Any]:
        state, blocks = self._directory.state, self._directory.blocks
        now = state.clock.now()
        rows = np.array([row], np.int64)
        accesses = decayed(blocks.accesses[rows].astype(np.float64), blocks.last_access[rows], now, state.half_life_s)
        return {
            "accesses": float(accesses[0]),
            "window_accesses": int(blocks.window_count[row]),
            "idle_s": max(0.0, now - float(blocks.last_access[row])),
            "age_s": max(0.0, now - float(blocks.sealed_at[row])),
            "children": int(blocks.children_from(rows, Tier.DISK)[0]),
            "orphan": bool(blocks.is_orphan(rows)[0]),
            "holders": int(blocks.holds[row]),
        }

    def _moving(self, row: int) -> dict[str, Any] | None:
        transfer = self._directory.state.transfers.get(row)
        if transfer is None:
            return None
        books = self._directory.books
        return {
            "from": str(books[transfer.source].id),
            "to": str(books[transfer.target].id),
            "reason": str(transfer.reason),
            "priority": transfer.priority.name.lower(),
            "stage": transfer.stage.name.lower(),
            "for_s": max(0.0, self._directory.state.clock.now() - transfer.decided_at),
        }

    # ------------------------------------------------------------------------------------------------ one copy

    def _copy(self, book: Book, row: int) -> dict[str, Any]:
        blocks, background = self._directory.blocks, self._migrator.background
        now = self._directory.state.clock.now()
        thresholds = background.rules.thresholds.get(book.id.tier, Thresholds())
        view = background.view(book, now)
        place = np.flatnonzero(view.rows == row)
        order = int(place[0]) if len(place) else None
        if order is None:  # not among the coldest that a pass looks at: it is judged as the last of them
            view = background.view(book, now, np.append(view.rows, row))
        at = len(view.rows) - 1 if order is None else order
        upwards = background.view(book, now, np.array([row], np.int64), upwards=True)
        move = next_move(view, upwards, thresholds, now, row, background.room_above(book))
        grip = Grip(int(blocks.leases[book.index][row]), int(blocks.holds[row]), bool(blocks.busy[row]))
        return {
            "pool": str(book.id),
            "slot": int(blocks.slot[book.index][row]),
            "here_s": max(0.0, now - float(blocks.arrived_at[book.index][row])),
            "leases": grip.leases,
            "leased_by": self._lessees(book.index, row) if grip.leases else [],
            "order": order,
            "of": len(book.policy),
            "next": None if move is None else {"move": str(move.direction), "reason": str(move.reason),
                                               "figures": dict(move.figures)},
            "kept_by": [] if move else [verdict.as_dict() for verdict in what_keeps(view, at, thresholds, now, grip)],
        }  # fmt: skip

    def _lessees(self, pool: int, row: int) -> list[int]:
        """Sessions that lease the copy."""
        leases = self._directory.state.ledger.leases.values()
        return sorted({x.session for x in leases if ((x.rows == row) & (x.pools == pool) & x.held).any()})
