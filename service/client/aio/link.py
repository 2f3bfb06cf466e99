"""The asyncio client's connection over its life: attaches, and attaches again when the session is lost."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hybridkv.service.client.aio.keeping import AsyncRenewer, AsyncReports
from hybridkv.service.client.aio.tasks import Background
from hybridkv.service.client.aio.transport import AsyncTransport
from hybridkv.service.client.core import Budget
from hybridkv.service.client.formers import Formers
from hybridkv.service.client.link import FIRST_BACKOFF_S, MAX_BACKOFF_S, EpochChanged
from hybridkv.service.client.translations import CALL_FREE, Translations
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError

T = TypeVar("T")
AsyncDial = Callable[[float], Awaitable[AsyncTransport]]


class AsyncAttachment:
    """One session of this process, with what it holds. Dead for good once lost or closed, and in a forked child."""

    def __init__(self, transport: AsyncTransport, translations_count: int) -> None:
        self.transport = transport
        self.attached = transport.attached
        self.memory = transport.memory
        self.renewer = AsyncRenewer(transport)
        self.reports = AsyncReports(transport)
        self.background = Background()
        self.translations: Translations | None = None
        if self.memory is not None and CALL_FREE:
            self.translations = Translations(self.memory.valid, translations_count)
        self._pid = os.getpid()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed and not self.transport.lost and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that attached: nothing of the session may be touched here."""
        return os.getpid() != self._pid

    async def close(self, *, detach: bool) -> None:
        """End the session; views that exist keep their memory mapped. Never raises; may be called again."""
        if self.forked or self._closed:
            return
        if detach:
            await self.background.settle()
        self._closed = True
        self.renewer.close()
        await self.reports.close(tell=detach)
        await self.transport.close(detach=detach)


class AsyncLink:
    """Runs calls on the current session. One event loop; one task at a time attaches, the others wait for it."""

    def __init__(
        self, dial: AsyncDial, timeout_s: float, on_epoch_change: EpochChanged | None, translations_count: int
    ) -> None:
        """As `Link`."""
        self._dial = dial
        self.timeout_s = timeout_s
        self.on_epoch_change = on_epoch_change
        self.epoch_changes = 0
        self._translations_count = translations_count
        self._epoch: int | None = None
        self._attachment: AsyncAttachment | None = None
        self._closed = False
        self._lock = asyncio.Lock()
        self._formers = Formers()
        self._pid = os.getpid()

    async def run(self, call: Callable[[AsyncAttachment, Budget], Awaitable[T]], wait_s: float = 0.0) -> T:
        """See `Link.run`."""
        budget = Budget(wait_s, self.timeout_s)
        while True:
            attachment = await self.current(budget)
            try:
                return await call(attachment, budget)
            except LostError as error:
                await attachment.close(detach=False)
                if budget.left_s() <= 0:
                    raise UnavailableError(f"the daemon was lost: {error}") from error

    async def current(self, budget: Budget) -> AsyncAttachment:
        """A live session. Raises FailedPreconditionError once closed, UnavailableError, and what attach raises."""
        if os.getpid() != self._pid:
            raise FailedPreconditionError("an asyncio client does not outlive a fork; connect in the child")
        attachment = self._attachment
        if attachment is not None and attachment.alive:
            return attachment
        async with self._lock:
            if self._closed:
                raise FailedPreconditionError("this AsyncKV is closed")
            if self._attachment is None or not self._attachment.alive:
                await self._drop()
                self._attachment = AsyncAttachment(await self._dial_within(budget), self._translations_count)
                transport = self._attachment.transport
                self._formers.follow(transport.attached, transport.memory, transport.tell_unmapped)
            attachment = self._attachment
            before, self._epoch = self._epoch, attachment.attached.epoch
        if before is not None and before != attachment.attached.epoch:
            self.epoch_changes += 1
            if self.on_epoch_change is not None:
                self.on_epoch_change(before, attachment.attached.epoch)
        return attachment

    async def close(self) -> None:
        """Detach and refuse further calls. May be called again."""
        self._closed = True
        async with self._lock:
            attachment, self._attachment = self._attachment, None
        if attachment is not None:
            await attachment.close(detach=True)

    def __repr__(self) -> str:
        attachment = self._attachment
        if attachment is None:
            return "closed" if self._closed else "not attached"
        state = "attached" if attachment.alive else "lost"
        return f"session {attachment.attached.session}, epoch {attachment.attached.epoch}, {state}"

    async def _drop(self) -> None:
        if self._attachment is not None:
            await self._attachment.close(detach=False)
            self._attachment = None

    async def _dial_within(self, budget: Budget) -> AsyncTransport:
        """Attach, trying again while nobody answers."""
        backoff_s = FIRST_BACKOFF_S
        unanswered: UnavailableError | None = None
        while True:
            try:
                return await self._dial(budget.left_s())
            except DeadlineExceededError as late:
                if unanswered is None:
                    raise
                raise UnavailableError(f"cannot attach: {unanswered}") from late
            except UnavailableError as error:
                unanswered = error
                if budget.left_s() <= backoff_s:
                    raise UnavailableError(f"cannot attach: {error}") from error
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
