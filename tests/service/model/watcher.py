"""A watcher of the model's host: what the event stream tells must be what the directory holds, after every step."""

import numpy as np

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.facade import Host
from hybridkv.service.mirror import Block, BlockMirror
from hybridkv.service.watching import Snapshot, event_to_wire, events_from_wire
from hybridkv.tiers.directory.blocks import NO_SLOT
from hybridkv.tiers.states import BlockState

READ_BYTES = 4096


def listed(host: Host) -> dict[Block, frozenset[str]]:
    """What the directory says by other means than the feed's: a walk over all rows."""
    found: dict[Block, frozenset[str]] = {}
    with host.directory.lock:
        blocks = host.directory.blocks
        for row in np.flatnonzero((blocks.state == BlockState.SEALED) & (blocks.private == 0)).tolist():
            space = host.directory.state.spaces[int(blocks.namespace[row])]
            pools = [str(book.id) for book in host.directory.books if blocks.slot[book.index][row] != NO_SLOT]
            found[space.fingerprint, blocks.keys[row]] = frozenset(pools)
    return found


class Watcher:
    """Begins with a snapshot of the host, then goes by events alone, as they travel."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.mirror = BlockMirror()
        host.feed.join(host.directory.lock)
        content = host.content()
        self.mirror.load(Snapshot(host.epoch, content.sequence, listed(host)))

    def verify(self) -> None:
        """Numbers follow one another, and what they tell is what there is. Lanes may go on meanwhile."""
        with self.host.directory.lock:
            self._catch_up()
            assert self.mirror.blocks == listed(self.host)

    def _catch_up(self) -> None:
        while (begin := self.mirror.next_sequence) != self.host.feed.next_sequence:
            news = self.host.feed.read(begin, READ_BYTES)
            assert news.gap_before is None
            wire = [event_to_wire(event, self.host.pool_names) for event in news.events]
            sent = pb.WatchReply.FromString(pb.WatchReply(epoch=self.host.epoch, events=wire).SerializeToString())
            events = events_from_wire(sent)
            assert [event.sequence for event in events] == list(range(begin, news.next_sequence))
            assert self.mirror.apply_all(events)
