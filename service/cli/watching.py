"""What `hybridkv watch` prints: one line an event."""

import json
from collections.abc import Iterable, Iterator, Sequence

from hybridkv.service.cli.failures import fail
from hybridkv.service.watching import WatchEvent, WatchKind
from hybridkv.tiers.directory.feed import EventKind
from hybridkv.tiers.namespace import FINGERPRINT_BYTES

SHOWN_KEYS = 2
SHOWN_FINGERPRINT = 16


def kinds_named(names: Sequence[str]) -> list[WatchKind]:
    """From the command line; fails with the names there are."""
    known = {kind.name.lower(): WatchKind(kind) for kind in EventKind}
    for name in names:
        if name not in known:
            fail(f"--kind: {name!r} is none; known: {', '.join(known)}")
    return [known[name] for name in names]


def whole(beginnings: Sequence[bytes]) -> list[bytes]:
    """What the daemon can filter by: the fingerprints, where all of them are whole, else none."""
    return list(beginnings) if all(len(one) == FINGERPRINT_BYTES for one in beginnings) else []


def of_namespaces(events: Iterable[WatchEvent], beginnings: Sequence[bytes]) -> Iterator[WatchEvent]:
    """Events of namespaces whose fingerprint begins so (none given: of all), and what is of no namespace."""
    for event in events:
        if not beginnings or not event.fingerprint or event.fingerprint.startswith(tuple(beginnings)):
            yield event


def print_events(events: Iterable[WatchEvent], count: int | None, *, as_json: bool) -> None:
    """Until the stream ends, or `count` events were printed."""
    for number, event in enumerate(events, 1):
        print(json.dumps(event.as_dict()) if as_json else line(event), flush=True)
        if number == count:
            return


def line(event: WatchEvent) -> str:
    """For people: number, what, where, why, whose, which. Keys are whole, for `explain`."""
    if event.kind is WatchKind.EPOCH:
        return f"{event.sequence} epoch {event.epoch}"
    if event.kind is WatchKind.GAP:
        return f"{event.sequence} gap: events before this number are missing"
    parts = [str(event.sequence), event.kind.name.lower(), _way(event), f"{event.count} blocks"]
    if event.reason:
        parts.append(f"({event.reason}{', last copy' if event.last else ''}{', kept' if event.kept else ''})")
    parts.append(f"of {event.fingerprint.hex()[:SHOWN_FINGERPRINT]}")
    if event.keys:
        more = [f"and {len(event.keys) - SHOWN_KEYS} more"] if len(event.keys) > SHOWN_KEYS else []
        parts.append(": " + " ".join([*(key.hex() for key in event.keys[:SHOWN_KEYS]), *more]))
    return " ".join(part for part in parts if part).replace(" : ", ": ")


def _way(event: WatchEvent) -> str:
    if event.source and event.target:
        return f"{event.source} → {event.target}"
    return event.source or event.target or ""
