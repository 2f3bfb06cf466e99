"""A mirror of a daemon's directory: a snapshot, and the events after it. For routers that ask which host has what."""

from collections.abc import Iterable

from hybridkv.service.watching import Snapshot, WatchEvent, WatchKind

Block = tuple[bytes, bytes]
"""(fingerprint, key)."""


class BlockMirror:
    """Pools of each block, as far as the events that were applied say. Not thread-safe.

        events = client.watch()
        mirror = BlockMirror()
        for event in events:
            if not mirror.apply(event):
                mirror.load(client.snapshot())

    `apply` answers False when what it has is not what the daemon has: at a stream's begin, and after a gap.
    """

    def __init__(self) -> None:
        self.blocks: dict[Block, frozenset[str]] = {}
        self.epoch = 0
        self.next_sequence = 0
        """Everything before it is in."""
        self.stale = True

    def __repr__(self) -> str:
        return f"BlockMirror({len(self.blocks)} blocks before {self.next_sequence}{', stale' if self.stale else ''})"

    def load(self, snapshot: Snapshot) -> None:
        """Begin anew from a snapshot that was taken after the stream began, or after its gap."""
        self.blocks = dict(snapshot.blocks)
        self.epoch, self.next_sequence = snapshot.epoch, snapshot.sequence
        self.stale = False

    def apply_all(self, events: Iterable[WatchEvent]) -> bool:
        """All of them: False when a snapshot is needed now."""
        for event in events:
            self.apply(event)
        return not self.stale

    def apply(self, event: WatchEvent) -> bool:
        """One event, in the stream's order; those that the snapshot has already change nothing. False: `load` is needed."""
        if event.kind in (WatchKind.EPOCH, WatchKind.GAP):
            known = event.epoch == self.epoch and event.sequence <= self.next_sequence
            self.stale = self.stale or event.kind is WatchKind.GAP or not known
            return not self.stale
        if self.stale or event.sequence < self.next_sequence:
            return not self.stale
        self._change(event)
        self.next_sequence = event.sequence + 1
        return True

    def _change(self, event: WatchEvent) -> None:
        named: list[Block] = [(event.fingerprint, key) for key in event.keys]
        if event.kind is WatchKind.CLEARED:
            self.blocks = {block: at for block, at in self.blocks.items() if block[0] != event.fingerprint}
        elif event.kind is WatchKind.REMOVED:
            for block in named:
                self.blocks.pop(block, None)
        else:
            gone = set() if event.source is None or event.kept else {event.source}
            come = set() if event.target is None else {event.target}
            for block in named:
                pools = self.blocks.pop(block, frozenset()) - gone | come
                if pools:
                    self.blocks[block] = pools
