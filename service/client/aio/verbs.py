"""Reading and writing with asyncio: the verbs that a handle and a request have in common."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from hybridkv.service.client.aio.lease import AsyncLease, take_lease
from hybridkv.service.client.aio.link import AsyncAttachment, AsyncLink
from hybridkv.service.client.aio.reading import read_all
from hybridkv.service.client.aio.reservation import AsyncReservation, take_reservation
from hybridkv.service.client.aio.tasks import Awaited
from hybridkv.service.client.core import Budget, States, Wish, as_keys, one_call, tier_of
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.verbs import KeysLike, TierLike
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, NotFoundError
from hybridkv.tiers.hints import NO_HINTS, Hints
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace

T = TypeVar("T")


class AsyncVerbs:
    """What reads and writes, for a handle (each call a request of its own) or for one request."""

    def __init__(self, space: Namespace, link: AsyncLink, request: int | None, hints: Hints = NO_HINTS) -> None:
        self.space = space
        self._link = link
        self._request = request
        self._hints = hints

    def acquire(
        self,
        keys: KeysLike,
        tier: TierLike = None,
        device: int | None = None,
        timeout_s: float = 0.0,
        views: bool = True,
        independent: bool = False,
        recompute_s: float | None = None,
    ) -> Awaited[AsyncLease]:
        """`async with kv.acquire(keys) as lease`, or `lease = await kv.acquire(keys)`: see `Verbs.acquire`.

        Whoever is cancelled meanwhile leaves no lease behind.
        """
        wish = Wish(
            self._keys(keys), tier_of(tier), device, views, independent, self._request, recompute_s, self._hints
        )

        async def call(attachment: AsyncAttachment, budget: Budget) -> AsyncLease:
            one_call(wish.keys, attachment.attached.limits.keys_per_call_count)
            return await take_lease(attachment, wish, budget, self._link.timeout_s)

        return Awaited(lambda: self._run(call, timeout_s))

    async def read(self, keys: KeysLike, out: Any, *, timeout_s: float = 0.0) -> States:
        """Copy blocks to the rows of `out`; an Outcome per key: see `Verbs.read`.

        More than 1 MiB is copied on another thread, while the event loop goes on. Whoever is cancelled is so when that
        thread has done with `out`.
        """
        wish = Wish(self._keys(keys), views=False, independent=True, request=self._request, hints=self._hints)
        target = rows_of(out, len(wish.keys), self.space.layout.block_bytes)

        async def call(attachment: AsyncAttachment, budget: Budget) -> States:
            return await read_all(attachment, wish, budget, target, self._link.timeout_s)

        return await self._run(call, timeout_s)

    def reserve(
        self,
        keys: KeysLike,
        parent: bytes | None = None,
        tier: TierLike = None,
        device: int | None = None,
        timeout_s: float = 1.0,
    ) -> Awaited[AsyncReservation]:
        """`async with kv.reserve(keys) as slots`, or `slots = await kv.reserve(keys)`: see `Verbs.reserve`.

        Whoever is cancelled meanwhile leaves no reservation behind.
        """
        wish = Wish(self._keys(keys), tier_of(tier), device, request=self._request, hints=self._hints)
        if parent is not None and len(parent) != self.space.key_bytes:
            raise InvalidArgumentError("parent", f"has {len(parent)} bytes; keys here have {self.space.key_bytes}")

        async def call(attachment: AsyncAttachment, budget: Budget) -> AsyncReservation:
            one_call(wish.keys, attachment.attached.limits.keys_per_call_count)
            return await take_reservation(attachment, wish, parent, budget, self._link.timeout_s)

        return Awaited(lambda: self._run(call, timeout_s))

    async def _run(self, call: Callable[[AsyncAttachment, Budget], Awaitable[T]], wait_s: float) -> T:
        """Run a call; the session's renewer keeps the request open from then on."""
        request = self._request

        async def in_request(attachment: AsyncAttachment, budget: Budget) -> T:
            if request is not None:
                attachment.renewer.add_request(request)
            return await call(attachment, budget)

        return await self._link.run(in_request, wait_s)

    def _keys(self, keys: KeysLike) -> Keys:
        return as_keys(keys, self.space.key_bytes)


class AsyncRequest(AsyncVerbs):
    """One use of a chain, as `Request`. An async context manager."""

    async def end(self, *, end_of_session: bool = False, expected_next_use_s: float | None = None) -> None:
        """See `Request.end`."""
        request, link = self._request, self._link
        hints = Hints(expected_next_use_s=expected_next_use_s, end_of_session=end_of_session).over(self._hints)

        async def call(attachment: AsyncAttachment, budget: Budget) -> None:
            if request is not None:
                attachment.renewer.discard_request(request)
                await attachment.transport.end_request(request, hints=hints, timeout_s=budget.left_s())

        try:
            await link.run(call)
        except NotFoundError:
            return  # nothing was asked for in its name, or it ended with its session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.end()
        except HybridKVError:
            if error is None:
                raise
