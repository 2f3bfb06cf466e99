"""The client's connection over its life: attaches, and attaches again when the session is lost or the process forked."""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from hybridkv.service.client.core import Budget
from hybridkv.service.client.formers import Formers
from hybridkv.service.client.renewal import Renewer
from hybridkv.service.client.reports import AccessReports
from hybridkv.service.client.translations import CALL_FREE, MAX_TRANSLATIONS_COUNT, TRANSLATIONS_COUNT, Translations
from hybridkv.service.client.transport import Dial, LostError, Transport
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError

T = TypeVar("T")
EpochChanged = Callable[[int, int], None]

FIRST_BACKOFF_S = 0.02
MAX_BACKOFF_S = 0.5


class Attachment:
    """One session of this process, with what it holds. Dead for good once lost, closed, or seen from a forked child."""

    def __init__(self, transport: Transport, translations_count: int = TRANSLATIONS_COUNT) -> None:
        """`translations_count`: how many translations to remember; 0: blocks are never read without a call."""
        self.transport = transport
        self.attached = transport.attached
        self.memory = transport.memory
        self.renewer = Renewer(transport)
        self.reports = AccessReports(transport.touch, self.attached.limits.keys_per_call_count)
        self.translations: Translations | None = None
        """None where every block is asked for: nothing is mapped, or this processor orders loads otherwise."""
        if self.memory is not None and CALL_FREE:
            self.translations = Translations(self.memory.valid, translations_count)
        self._pid = os.getpid()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed and not self.transport.lost and os.getpid() == self._pid

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that attached: nothing of the session may be touched here."""
        return os.getpid() != self._pid

    def close(self, *, detach: bool) -> None:
        """End the session; views that exist keep their memory mapped. Never raises; may be called again."""
        if self.forked or self._closed:
            return
        self._closed = True
        self.renewer.close()
        self.reports.close(tell=detach)
        self.transport.close(detach=detach)


class Link:
    """Runs calls on the current session. Thread-safe; one thread at a time attaches, the others wait for it."""

    def __init__(
        self,
        dial: Dial,
        timeout_s: float,
        on_epoch_change: EpochChanged | None,
        translations_count: int = TRANSLATIONS_COUNT,
    ) -> None:
        """`timeout_s`: what each call may take, attaching anew included. `translations_count`: see `Attachment`."""
        self._translations_count = checked_int("translations_count", translations_count, 0, MAX_TRANSLATIONS_COUNT)
        self._dial = dial
        self.timeout_s = timeout_s
        self.on_epoch_change = on_epoch_change
        self.epoch_changes = 0
        self._epoch: int | None = None
        self._attachment: Attachment | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._formers = Formers()
        _links.add(self)

    def run(self, call: Callable[[Attachment, Budget], T], wait_s: float = 0.0) -> T:
        """`call` on the current session; on a new one when that was lost, for as long as the budget lasts.

        `call` must be one that may be carried out twice. Raises UnavailableError when no daemon came in time.
        """
        budget = Budget(wait_s, self.timeout_s)
        while True:
            attachment = self.current(budget)
            try:
                return call(attachment, budget)
            except LostError as error:
                attachment.close(detach=False)
                if budget.left_s() <= 0:
                    raise UnavailableError(f"the daemon was lost: {error}") from error

    @property
    def live(self) -> Attachment | None:
        """The session, if there is one that lives: what needs no call goes by it."""
        attachment = self._attachment
        return attachment if attachment is not None and attachment.alive else None

    def current(self, budget: Budget) -> Attachment:
        """A live session. Raises FailedPreconditionError once closed, UnavailableError, and what attach raises."""
        attachment = self._attachment
        if attachment is not None and attachment.alive:
            return attachment
        if not self._lock.acquire(timeout=max(budget.left_s(), 0.001)):
            raise UnavailableError("another thread is still attaching")
        try:
            if self._closed:
                raise FailedPreconditionError("this KV is closed")
            if self._attachment is None or not self._attachment.alive:
                self._drop()
                self._attachment = Attachment(self._dial_within(budget), self._translations_count)
                transport = self._attachment.transport
                self._formers.follow(transport.attached, transport.memory, transport.tell_unmapped)
            attachment = self._attachment
            before, self._epoch = self._epoch, attachment.attached.epoch
            changed = before is not None and before != self._epoch
            self.epoch_changes += changed
        finally:
            self._lock.release()
        if changed and before is not None and self.on_epoch_change is not None:
            self.on_epoch_change(before, attachment.attached.epoch)
        return attachment

    def close(self) -> None:
        """Detach and refuse further calls. May be called again."""
        with self._lock:
            self._closed = True
            attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.close(detach=True)

    def __repr__(self) -> str:
        attachment = self._attachment
        if attachment is None:
            return "closed" if self._closed else "not attached"
        state = "attached" if attachment.alive else "lost"
        return f"session {attachment.attached.session}, epoch {attachment.attached.epoch}, {state}"

    def _drop(self) -> None:
        if self._attachment is not None:
            self._attachment.close(detach=False)
            self._attachment = None

    def _dial_within(self, budget: Budget) -> Transport:
        """Attach, trying again while nobody answers."""
        backoff_s = FIRST_BACKOFF_S
        unanswered: UnavailableError | None = None
        while True:
            try:
                return self._dial(budget.left_s())
            except DeadlineExceededError as late:
                if unanswered is None:
                    raise
                raise UnavailableError(f"cannot attach: {unanswered}") from late
            except UnavailableError as error:
                unanswered = error
                if budget.left_s() <= backoff_s:
                    raise UnavailableError(f"cannot attach: {error}") from error
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _forget_parent(self) -> None:
        """In a forked child: the parent's session is not ours, its lock may be held by a thread that is not here."""
        self._lock = threading.Lock()
        self._formers = Formers()
        if self._attachment is not None:
            _inherited.append(self._attachment)
            self._attachment = None


_links: "weakref.WeakSet[Link]" = weakref.WeakSet()
_inherited: list[Attachment] = []  # never closed nor collected in a child: that would act on the parent's connection


def _forget_parents() -> None:
    for link in list(_links):
        link._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
