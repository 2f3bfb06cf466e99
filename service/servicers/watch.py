"""Watch and Snapshot: the event stream, and what there is at one of its events."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import fingerprint_from_wire
from hybridkv.service.facade import Host
from hybridkv.service.watching import event_to_wire, fingerprints_from_wire, kinds_from_wire, part_to_wire
from hybridkv.tiers.directory.feed import Content, News
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from hybridkv.tiers.loops import Pulse

LOOK_EVERY_S = 0.02
"""How often the feed is looked at while somebody watches. Whoever notes an event wakes nobody: it holds the lock."""

PROGRESS_EVERY_S = 1.0
"""How often a watcher whose filter lets nothing through hears how far the feed is."""

REPLY_BYTES = 32 << 10
"""Events of one message, about; below `limits.message_bytes` whatever that is."""

PATIENCE_S = 60.0
"""How long a peer may leave a message unread before its stream ends."""

SNAPSHOTS = 4
"""Under way at a time; each holds its keys in memory until they are sent."""


class Watchers:
    """The open event streams. All of it belongs to the event loop's thread."""

    def __init__(self, host: Host, pulse: Pulse) -> None:
        """`pulse` tells of `run`."""
        self.patience_s = PATIENCE_S
        self._pulse = pulse
        self._host = host
        self._changed = asyncio.Event()
        self._somebody = asyncio.Event()
        self._open = 0
        self._seen = 0
        self._snapshots = 0
        self._closing = False

    def __len__(self) -> int:
        return self._open

    def close(self) -> None:
        """End every stream, once it has told what there is."""
        self._closing = True
        self._wake()

    # ------------------------------------------------------------------------------------------------ news

    async def run(self) -> None:
        """Wakes those who wait when there is news, until it is cancelled."""
        while True:
            await self._somebody.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            self._pulse.begin()
            self.look()
            self._pulse.end()
            self._pulse.well()

    def look(self) -> None:
        """Wake the watchers when the feed went on since the last look."""
        if (now := self._host.feed.next_sequence) != self._seen:
            self._seen = now
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ------------------------------------------------------------------------------------------------ Watch

    async def watch(self, request: pb.WatchRequest, context: Any) -> None:
        fingerprints = fingerprints_from_wire(request.fingerprints)
        kinds = kinds_from_wire(request.kinds)
        with self._watching() as begin:
            cursor, foreign = self._start(request, begin)
            events = [pb.Event(kind=pb.EVENT_EPOCH, sequence=cursor)]
            if foreign:
                events.append(pb.Event(kind=pb.EVENT_GAP, sequence=cursor))
            await self._write(context, pb.WatchReply(epoch=self._host.epoch, events=events, next_sequence=cursor))
            told = cursor
            while True:
                changed, closing = self._changed, self._closing
                news = self._host.feed.read(cursor, REPLY_BYTES, fingerprints, kinds)
                cursor = news.next_sequence
                if news.events or news.gap_before is not None:
                    await self._write(context, self._reply(news))
                    told = cursor
                elif closing:
                    raise UnavailableError("the daemon is stopping")
                elif not await self._changed_within(changed) and cursor != told:
                    await self._write(context, self._reply(news))
                    told = cursor

    @contextmanager
    def _watching(self) -> Iterator[int]:
        """Counts a watcher; gives the number of the event that comes next."""
        limit = self._host.config.limits.watchers_count
        if self._open >= limit:
            raise ResourceExhaustedError("limits.watchers_count", f"{self._open} are open, {limit} are allowed")
        begin = self._host.feed.join(self._host.directory.lock)
        self._open += 1
        self._somebody.set()
        try:
            yield begin
        finally:
            self._host.feed.leave()
            self._open -= 1
            if not self._open:
                self._somebody.clear()

    def _start(self, request: pb.WatchRequest, begin: int) -> tuple[int, bool]:
        """The event to begin with, and whether what was asked for is another daemon's to tell."""
        if not request.HasField("from_sequence"):
            return begin, False
        if request.epoch not in (0, self._host.epoch):
            return begin, True
        if request.from_sequence > begin:
            raise InvalidArgumentError("from_sequence", f"{request.from_sequence} is to come; the next is {begin}")
        return request.from_sequence, False

    def _reply(self, news: News) -> pb.WatchReply:
        gap = [pb.Event(kind=pb.EVENT_GAP, sequence=news.gap_before)] if news.gap_before is not None else []
        pools = self._host.pool_names
        events = [*gap, *(event_to_wire(event, pools) for event in news.events)]
        return pb.WatchReply(epoch=self._host.epoch, events=events, next_sequence=news.next_sequence)

    async def _changed_within(self, changed: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(PROGRESS_EVERY_S):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------ Snapshot

    async def snapshot(self, request: pb.SnapshotRequest, context: Any, content: Any) -> None:
        """`content` looks, on a thread: the walk over the directory holds its lock."""
        fingerprint = fingerprint_from_wire(request.fingerprint)
        if self._snapshots >= SNAPSHOTS:
            raise ResourceExhaustedError("snapshots", f"{self._snapshots} are being sent, {SNAPSHOTS} are allowed")
        self._snapshots += 1
        try:
            found = await content(lambda: self._host.content(fingerprint))
            for part in self._parts(found):
                await self._write(context, part)
        finally:
            self._snapshots -= 1

    def _parts(self, found: Content) -> Iterator[pb.SnapshotPart]:
        """At least one, that tells the number."""
        epoch, pools = self._host.epoch, self._host.pool_names
        yield pb.SnapshotPart(epoch=epoch, sequence=found.sequence, pools=pools)
        for content in found.spaces:
            keys = REPLY_BYTES // content.key_bytes
            for start in range(0, len(content.pools), keys):
                yield part_to_wire(epoch, found.sequence, pools, content, start, start + keys)

    async def _write(self, context: Any, message: Any) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                await context.write(message)
        except TimeoutError:
            raise DeadlineExceededError(f"a message was not read within {self.patience_s:g} s") from None
