"""The event stream as plain values: what a watcher is told, and how that travels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.tiers.directory.feed import Event, EventKind, SpaceContent
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.namespace import FINGERPRINT_BYTES

MAX_FINGERPRINTS = 256


class WatchKind(IntEnum):
    """Kinds of `WatchEvent`: those of the feed, and two that belong to a stream."""

    SEALED = EventKind.SEALED
    MOVED = EventKind.MOVED
    EVICTED = EventKind.EVICTED
    REMOVED = EventKind.REMOVED
    CLEARED = EventKind.CLEARED
    EPOCH = 6
    GAP = 7


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event, as docs/watch.md describes it. Pools by name, None where it has none; `reason` "" likewise."""

    epoch: int
    sequence: int
    kind: WatchKind
    fingerprint: bytes = b""
    keys: tuple[bytes, ...] = ()
    count: int = 0
    source: str | None = None
    target: str | None = None
    reason: str = ""
    kept: bool = False
    last: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON; keys in hex."""
        return {
            "epoch": self.epoch,
            "sequence": self.sequence,
            "event": self.kind.name.lower(),
            "fingerprint": self.fingerprint.hex(),
            "from": self.source,
            "to": self.target,
            "reason": self.reason or None,
            "kept": self.kept,
            "last": self.last,
            "count": self.count,
            "keys": [key.hex() for key in self.keys],
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there was before the event `sequence`: pools of each block, by (fingerprint, key)."""

    epoch: int
    sequence: int
    blocks: dict[tuple[bytes, bytes], frozenset[str]]


# ------------------------------------------------------------------------------------------------------------ events

_TO_WIRE: dict[int, pb.EventKind] = {
    WatchKind.SEALED: pb.EVENT_SEALED,
    WatchKind.MOVED: pb.EVENT_MOVED,
    WatchKind.EVICTED: pb.EVENT_EVICTED,
    WatchKind.REMOVED: pb.EVENT_REMOVED,
    WatchKind.CLEARED: pb.EVENT_CLEARED,
    WatchKind.EPOCH: pb.EVENT_EPOCH,
    WatchKind.GAP: pb.EVENT_GAP,
}


def kind_to_wire(kind: WatchKind | EventKind) -> pb.EventKind:
    """The wire's name of it."""
    return _TO_WIRE[kind]


def event_to_wire(event: Event, pools: Sequence[str]) -> pb.Event:
    """`pools`: names by index."""
    return pb.Event(
        sequence=event.sequence,
        kind=kind_to_wire(event.kind),
        fingerprint=event.fingerprint,
        keys=event.keys,
        key_bytes=event.key_bytes,
        count=event.count,
        source="" if event.source is None else pools[event.source],
        target="" if event.target is None else pools[event.target],
        reason=str(event.reason or ""),
        kept=event.kept,
        last=event.last,
    )


def events_from_wire(reply: pb.WatchReply) -> list[WatchEvent]:
    """Kinds of a later version are left out: to who does not know them they say nothing."""
    known = {int(kind) for kind in WatchKind}
    return [
        WatchEvent(
            reply.epoch,
            event.sequence,
            WatchKind(event.kind),
            event.fingerprint,
            split_keys(event.keys, event.key_bytes),
            event.count,
            event.source or None,
            event.target or None,
            event.reason,
            event.kept,
            event.last,
        )
        for event in reply.events
        if event.kind in known
    ]


def split_keys(packed: bytes, key_bytes: int) -> tuple[bytes, ...]:
    """Keys that lie back to back."""
    if not packed:
        return ()
    return tuple(packed[at : at + key_bytes] for at in range(0, len(packed), key_bytes))


def kinds_from_wire(kinds: Iterable[int]) -> frozenset[EventKind]:
    """Raises InvalidArgumentError for a number that is no kind one can ask for: EPOCH and GAP come in any case."""
    asked = list(dict.fromkeys(kinds))
    for kind in asked:
        if kind not in set(EventKind):
            raise InvalidArgumentError("kinds", f"{kind} cannot be asked for; known: 1 to {int(max(EventKind))}")
    return frozenset(map(EventKind, asked))


def fingerprints_from_wire(fingerprints: Sequence[bytes]) -> frozenset[bytes]:
    """Raises InvalidArgumentError when they are too many, or one is none."""
    if len(fingerprints) > MAX_FINGERPRINTS:
        raise InvalidArgumentError("fingerprints", f"{len(fingerprints)} are given; at most {MAX_FINGERPRINTS}")
    for fingerprint in fingerprints:
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise InvalidArgumentError("fingerprints", f"one has {len(fingerprint)} bytes, not {FINGERPRINT_BYTES}")
    return frozenset(fingerprints)


# ------------------------------------------------------------------------------------------------------------ content


def part_to_wire(
    epoch: int, sequence: int, pools: Sequence[str], content: SpaceContent, start: int, stop: int
) -> pb.SnapshotPart:
    """The blocks [start, stop) of a namespace."""
    width = content.key_bytes
    return pb.SnapshotPart(
        epoch=epoch,
        sequence=sequence,
        pools=pools,
        fingerprint=content.fingerprint,
        key_bytes=width,
        keys=content.keys[start * width : stop * width],
        copies=content.pools[start:stop].astype("<u4").tobytes(),
    )


def snapshot_from_wire(parts: Iterable[pb.SnapshotPart]) -> Snapshot:
    """All parts of one stream."""
    blocks: dict[tuple[bytes, bytes], frozenset[str]] = {}
    epoch = sequence = 0
    for part in parts:
        epoch, sequence = part.epoch, part.sequence
        names: dict[int, frozenset[str]] = {}
        masks = np.frombuffer(part.copies, "<u4").tolist()
        for key, mask in zip(split_keys(part.keys, part.key_bytes), masks, strict=True):
            if mask not in names:
                names[mask] = frozenset(name for bit, name in enumerate(part.pools) if mask >> bit & 1)
            blocks[part.fingerprint, key] = names[mask]
    return Snapshot(epoch, sequence, blocks)
