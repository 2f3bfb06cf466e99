"""`AsyncKV`: the asyncio client's handle on a daemon's blocks."""

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hybridkv.service.client.aio.link import AsyncAttachment, AsyncLink
from hybridkv.service.client.aio.transport import dial
from hybridkv.service.client.aio.verbs import AsyncRequest, AsyncVerbs
from hybridkv.service.client.connecting import DEFAULT_TIMEOUT_S, check_address
from hybridkv.service.client.core import Budget, Found, batches, prefix_of, tier_of
from hybridkv.service.client.link import EpochChanged
from hybridkv.service.client.proofs import PathLike, proofs
from hybridkv.service.client.translations import (
    MAX_TRANSLATIONS_COUNT,
    TRANSLATIONS_COUNT,
    TranslationCounts,
)
from hybridkv.service.client.verbs import KeysLike, TierLike
from hybridkv.tiers.checks import checked_int
from hybridkv.tiers.hints import Hints, Importance
from hybridkv.tiers.keys import Keys, chain
from hybridkv.tiers.namespace import Namespace

if TYPE_CHECKING:
    import grpc


def connect_async(
    address: str,
    space: Namespace,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    token: str | None = None,
    token_file: PathLike | None = None,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    credentials: "grpc.ChannelCredentials | None" = None,
    on_epoch_change: EpochChanged | None = None,
    translations_count: int = TRANSLATIONS_COUNT,
) -> "AsyncKV":
    """`async with connect_async(address, space) as kv`: as `connect`, for one event loop.

    It attaches when it is entered, or with its first call.
    """
    check_address(address, timeout_s)
    checked_int("translations_count", translations_count, 0, MAX_TRANSLATIONS_COUNT)
    ours = proofs(token=token, token_file=token_file, ca=ca, cert=cert, key=key, credentials=credentials)
    attach = partial(dial, address, space, ours)
    return AsyncKV(space, AsyncLink(attach, timeout_s, on_epoch_change, translations_count))


class AsyncKV(AsyncVerbs):
    """A handle on the blocks of one namespace, as `KV`, of one event loop and not thread-safe.

    Whoever is cancelled in a call leaves nothing held behind. Unlike a `KV` it does not outlive a fork: connect anew in
    the child.
    """

    def __init__(self, space: Namespace, link: AsyncLink) -> None:
        """Made by `connect_async`."""
        super().__init__(space, link, None)
        self._request_ids = itertools.count(1)

    async def attach(self) -> AsyncAttachment:
        """The session now; attaches when there is none. It has `attached.session`, `attached.epoch` and more."""
        return await self._link.current(Budget(0.0, self._link.timeout_s))

    @property
    def epoch_changes(self) -> int:
        """How often this handle found another daemon than before."""
        return self._link.epoch_changes

    async def mapped(self) -> bool:
        """Whether blocks are read and written in place; otherwise they are copied over streams."""
        return (await self.attach()).memory is not None

    async def translations(self) -> TranslationCounts | None:
        """What came of this session's translations; None where every read asks the daemon."""
        known = (await self.attach()).translations
        return None if known is None else known.counts

    def keys(self, tokens: Any, parent: bytes | None = None) -> Keys:
        """The chain of keys of the full blocks of `tokens`; `parent` is the key before them. See `tiers.keys.chain`."""
        return chain(self.space, tokens, parent)

    async def lookup(self, keys: KeysLike) -> Found:
        """What is where now. Promises nothing: to read, acquire. Any number of keys."""
        wanted = self._keys(keys)

        async def call(attachment: AsyncAttachment, budget: Budget) -> Found:
            limit = attachment.attached.limits.keys_per_call_count
            replies = [
                await attachment.transport.lookup(part, timeout_s=budget.left_s()) for _, part in batches(wanted, limit)
            ]
            states = np.concatenate([reply.states for reply in replies])
            return Found(prefix_of(states), states, np.concatenate([reply.tiers for reply in replies]))

        return await self._link.run(call)

    def request(
        self,
        *,
        priority: Importance | int | None = None,
        expected_next_use_s: float | None = None,
        request_class: int | None = None,
    ) -> AsyncRequest:
        """See `KV.request`."""
        hints = Hints(priority, expected_next_use_s, request_class)  # type: ignore[arg-type]  # checked there
        return AsyncRequest(self.space, self._link, next(self._request_ids), hints)

    async def prefetch(
        self, keys: KeysLike, tier: TierLike = "cpu", device: int | None = None, deadline_s: float | None = None
    ) -> int:
        """See `KV.prefetch`."""
        wanted = tier_of(tier)

        def verb(attachment: AsyncAttachment, part: Keys, left_s: float) -> Awaitable[int]:
            return attachment.transport.prefetch(
                part, tier=wanted, device=device, deadline_s=deadline_s, timeout_s=left_s
            )

        return await self._counted(keys, verb)

    async def touch(self, keys: KeysLike) -> int:
        """Note an access to each block; how many there were. Any number of keys."""
        return await self._counted(
            keys, lambda attached, part, left_s: attached.transport.touch(part, timeout_s=left_s)
        )

    async def remove(self, keys: KeysLike) -> int:
        """Drop blocks from every tier; how many there were. Any number of keys."""
        return await self._counted(
            keys, lambda attached, part, left_s: attached.transport.remove(part, timeout_s=left_s)
        )

    async def stats(self) -> dict[str, Any]:
        """The daemon's figures: what `hybridkv stats --json` prints."""
        return await self._link.run(lambda attached, budget: attached.transport.stats(timeout_s=budget.left_s()))

    async def close(self) -> None:
        """Detach: everything this handle holds ends at once, so nobody may still write to a slot. May be repeated."""
        await self._link.close()

    async def _counted(self, keys: KeysLike, verb: Callable[[AsyncAttachment, Keys, float], Awaitable[int]]) -> int:
        """Run `verb` in batches and add up; batches that were answered are not repeated when the daemon is lost."""
        wanted, done, total = self._keys(keys), 0, 0

        async def call(attachment: AsyncAttachment, budget: Budget) -> None:
            nonlocal done, total
            for chosen, part in batches(wanted[done:], attachment.attached.limits.keys_per_call_count):
                total += await verb(attachment, part, budget.left_s())
                done += chosen.stop - chosen.start

        await self._link.run(call)
        return total

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncKV({self.space.model}, rank {self.space.rank}/{self.space.world}, {self._link!r})"
