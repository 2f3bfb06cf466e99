"""Whoever is cancelled leaves nothing held behind, and nothing writes to its memory afterwards."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridkv.service.client.aio import AsyncKV, tasks
from hybridkv.service.client.aio.tasks import Background, off_loop
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.states import Outcome
from tests.service.client.aio.conftest import Server, chain_of, store
from tests.service.client.conftest import BLOCK_BYTES, check_content


class Gate:
    """Holds a coroutine function back: tells when it is there, and lets it go on."""

    def __init__(self, inner: Callable[..., Any], *, after: bool) -> None:
        self._inner = inner
        self._after = after
        self.there = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, *args: Any, **given: Any) -> Any:
        if self._after:
            found = await self._inner(*args, **given)
            self.there.set()
            await self.go_on.wait()
            return found
        self.there.set()
        await self.go_on.wait()
        return await self._inner(*args, **given)


async def cancelled_at(gate: Gate, call: Any) -> None:
    """Cancel `call` while it stands at the gate; then let the gate's inside go on."""
    task = asyncio.ensure_future(call)
    await gate.there.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.go_on.set()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["acquire", "read", "reserve"])
def test_a_call_that_is_cancelled_leaves_nothing(
    mapped: Server, verb: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the call reached the daemon, and when its answer was on its way."""

    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 2)
        if verb != "reserve":
            await store(kv, keys)
        attachment = await kv.attach()
        assert attachment.translations is not None
        attachment.translations.clear()
        name = "reserve" if verb == "reserve" else "acquire"
        gate = Gate(getattr(attachment.transport, name), after=after)
        monkeypatch.setattr(attachment.transport, name, gate)

        async def call() -> None:
            if verb == "read":
                await kv.read(keys, np.zeros((2, BLOCK_BYTES), np.uint8))
            else:
                await (kv.reserve(keys) if verb == "reserve" else kv.acquire(keys))

        await cancelled_at(gate, call())
        await attachment.background.settle()
        stats = await kv.stats()
        assert (stats["leases"], stats["reservations"]) == (0, 0)

    mapped.run(scenario)


def test_a_release_that_is_cancelled_is_carried_out(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        lease = await kv.acquire(keys)
        attachment = await kv.attach()
        gate = Gate(attachment.transport.release, after=False)
        monkeypatch.setattr(attachment.transport, "release", gate)
        await cancelled_at(gate, lease.release())
        await attachment.background.settle()
        assert (await kv.stats())["leases"] == 0

    mapped.run(scenario)


def test_a_waiting_acquire_that_is_cancelled_gives_its_lease_back(
    mapped: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is PENDING, as one that comes from disk; the second question waits for it."""

    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        attachment = await kv.attach()
        honest, waiting = attachment.transport.acquire, asyncio.Event()

        async def acquire(wish: Any, tier: Any, device: Any, **given: Any) -> Any:
            if given.get("lease"):
                waiting.set()
                await asyncio.Event().wait()
            reply = await honest(wish, tier, device, **given)
            return type(reply)(reply.lease, np.full(1, Outcome.PENDING, np.uint8), reply.slots, reply.expires_in_s)

        monkeypatch.setattr(attachment.transport, "acquire", acquire)
        task = asyncio.ensure_future(_acquired(kv, keys))
        await waiting.wait()
        assert (await kv.stats())["leases"] == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await attachment.background.settle()
        assert (await kv.stats())["leases"] == 0

    mapped.run(scenario)


async def _acquired(kv: AsyncKV, keys: Any) -> None:
    await kv.acquire(keys, timeout_s=30.0)


def test_closing_waits_for_what_is_given_back(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        attachment = await kv.attach()
        gate = Gate(attachment.transport.acquire, after=True)
        monkeypatch.setattr(attachment.transport, "acquire", gate)
        await cancelled_at(gate, _acquired(kv, keys))

    mapped.run(scenario)


def test_off_the_loop_a_cancelled_copy_is_waited_for() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        there, go_on, ended = asyncio.Event(), threading.Event(), []

        def work() -> None:
            loop.call_soon_threadsafe(there.set)
            assert go_on.wait(30)
            ended.append(True)

        task = asyncio.ensure_future(off_loop(tasks.INLINE_BYTES + 1, work))
        await there.wait()  # the loop runs while the thread works
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    asyncio.run(main())


def test_little_is_done_at_once_and_much_on_another_thread() -> None:
    async def main() -> None:
        here = threading.get_ident()
        assert await off_loop(tasks.INLINE_BYTES, threading.get_ident) == here
        assert await off_loop(tasks.INLINE_BYTES + 1, threading.get_ident) != here

    asyncio.run(main())


def test_what_failed_is_not_given_back() -> None:
    async def main() -> None:
        background, gate = Background(), asyncio.Event()
        undone: list[int] = []

        async def failing() -> int:
            await gate.wait()
            raise UnavailableError("refused")

        async def undo(found: int) -> None:
            undone.append(found)

        task = asyncio.ensure_future(background.whole(failing(), undo))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await background.settle()
        assert undone == []

    asyncio.run(main())


def test_large_reads_let_the_loop_go_on(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "INLINE_BYTES", BLOCK_BYTES)

    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 4)
        await store(kv, keys)
        for _ in range(2):
            out = np.zeros((4, BLOCK_BYTES), np.uint8)
            assert (await kv.read(keys, out) == Outcome.HIT).all()
            check_content(keys, out)
            (await kv.attach()).translations.clear()  # type: ignore[union-attr]

    mapped.run(scenario)
