"""What runs beside an asyncio session: a task that renews what is held, and one that tells of reads without a call."""

import asyncio
import contextlib
import time

from hybridkv.service.client.aio.transport import AsyncTransport
from hybridkv.service.client.hold import Hold
from hybridkv.service.client.renewal import RENEW_TIMEOUT_S
from hybridkv.service.client.reports import FLUSH_TIMEOUT_S, REPORT_S, ReportLog, kept_after
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys


class AsyncRenewer:
    """The holds and requests of one session, renewed together at a third of the shortest life. See `Renewer`."""

    def __init__(self, transport: AsyncTransport) -> None:
        limits = transport.attached.limits
        self._transport = transport
        self._limit = limits.keys_per_call_count
        self._period_s = min(limits.lease_s, limits.reservation_s) / 3
        self._holds: dict[int, Hold] = {}
        self._requests: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, hold: Hold) -> None:
        """Renew `hold` from now on. On a session that ended it lapses at once."""
        if self._closed:
            hold.lapse()
            return
        self._holds[hold.hold_id] = hold
        self._wake()

    def discard(self, hold_id: int) -> None:
        """Renew it no more."""
        self._holds.pop(hold_id, None)

    def add_request(self, request: int) -> None:
        """Keep the request open from now on."""
        if not self._closed:
            self._requests.add(request)
            self._wake()

    def discard_request(self, request: int) -> None:
        """It ends."""
        self._requests.discard(request)

    def close(self) -> None:
        """The session ends: everything still held lapses. May be called again."""
        self._closed = True
        for hold in self._holds.values():
            hold.lapse()
        self._holds.clear()
        if self._task is not None:
            self._task.cancel()

    async def renew_now(self) -> None:
        """One round. Raises LostError; when the daemon does not answer otherwise, the holds stay as they are."""
        kept: list[Hold | int] = [*self._holds.values(), *sorted(self._requests)]
        for start in range(0, len(kept), self._limit):
            await self._renew(kept[start : start + self._limit])

    async def _renew(self, kept: list[Hold | int]) -> None:
        holds = [hold for hold in kept if isinstance(hold, Hold)]
        requests = [request for request in kept if isinstance(request, int)]
        asked_at = time.monotonic()
        numbers = [hold.hold_id for hold in holds]
        alive = await self._transport.renew(numbers, requests, timeout_s=RENEW_TIMEOUT_S)
        for hold, lives in zip(holds, alive[: len(holds)], strict=True):
            if lives:
                hold.renewed(asked_at)
            else:
                self.discard(hold.hold_id)
                hold.lapse()

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Ends when there is nothing to renew."""
        while self._holds or self._requests:
            await asyncio.sleep(self._period_s)
            try:
                await self.renew_now()
            except LostError:
                self.close()
                return
            except HybridKVError:
                continue  # not lost, but slow or refused: each hold's own clock runs on, and the next turn tries again


class AsyncReports:
    """The reports of one session. See `AccessReports`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._limit = transport.attached.limits.keys_per_call_count
        self._log = ReportLog()
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """See `ReportLog.full`."""
        return self._log.full

    def note(self, keys: Keys) -> None:
        """One read of these keys, a request of its own."""
        self._log.note(keys)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def flush(self, within_s: float = FLUSH_TIMEOUT_S) -> None:
        """See `AccessReports.flush`."""
        async with self._sending:
            keys, counts = self._log.take()
            until, end = time.monotonic() + within_s, len(keys)
            try:
                while end and (left_s := until - time.monotonic()) > 0:
                    part = slice(max(0, end - self._limit), end)
                    await self._transport.touch(keys[part], counts[part], timeout_s=left_s)
                    end = part.start
            except HybridKVError as error:
                end = kept_after(error, end, self._limit)
                raise
            finally:
                self._log.put_back(keys[:end], counts[:end])

    async def close(self, *, tell: bool) -> None:
        """No more task; with `tell`, what is left is told first. Never raises; may be called again."""
        if tell:
            with contextlib.suppress(HybridKVError):  # the history of some blocks is then a little older than it was
                await self.flush()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Ends when there is nothing to tell."""
        while len(self._log):
            await asyncio.sleep(REPORT_S)
            try:
                await self.flush()
            except LostError:
                return
            except HybridKVError:
                continue  # busy or refused: they are kept, and told the next time
