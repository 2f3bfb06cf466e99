"""The life of an asyncio session: renewal, reports, the daemon's end, a fork."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from hybridkv.service.client.aio import AsyncKV, connect_async, keeping
from hybridkv.service.client.translations import CALL_FREE
from hybridkv.tiers.errors import ExpiredError, InvalidArgumentError, UnavailableError
from hybridkv.tiers.states import Outcome
from tests.service.client.aio.conftest import Server, chain_of, store
from tests.service.client.conftest import BLOCK_BYTES, check_content, make_config, make_space
from tests.service.client.processes import daemon_process, kill

HIT = Outcome.HIT


def test_what_is_held_is_renewed(mapped: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        attachment = await kv.attach()
        async with kv.acquire(keys) as lease, kv.reserve(chain_of(kv, 1, 9000)) as slots:
            lease._expires_at = slots._expires_at = 0.0
            assert not lease.valid
            await attachment.renewer.renew_now()
            assert lease.valid
            assert slots.valid

    mapped.run(scenario)


def test_what_the_daemon_does_not_know_lapses(mapped: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        attachment, lease = await kv.attach(), await kv.acquire(keys)
        mapped.host.release(attachment.attached.session, lease.hold_id)
        await attachment.renewer.renew_now()
        with pytest.raises(ExpiredError, match="lapsed"):
            lease.array(0)
        await lease.release()

    mapped.run(scenario)


@pytest.mark.skipif(not CALL_FREE, reason="every read asks the daemon here")
def test_reads_of_known_blocks_make_no_call_and_are_told(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "REPORT_S", 3600.0)

    async def scenario(kv: AsyncKV) -> None:
        keys, out = chain_of(kv, 3), np.zeros((3, BLOCK_BYTES), np.uint8)
        await store(kv, keys)
        hits = mapped.host.migrator.demand.acquires.outcomes
        for _ in range(4):
            assert (await kv.read(keys, out) == HIT).all()
        check_content(keys, out)
        counts = await kv.translations()
        assert counts is not None
        assert (counts.hits, counts.misses) == (12, 0)
        assert hits[HIT] == 0
        await (await kv.attach()).reports.flush()
        assert hits[HIT] == 12
        await kv.read(keys, out)

    mapped.run(scenario)
    assert mapped.host.migrator.demand.acquires.outcomes[HIT] == 15


def test_the_task_tells_by_itself(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "REPORT_S", 0.001)

    async def scenario(kv: AsyncKV) -> None:
        keys, out = chain_of(kv, 1), np.zeros((1, BLOCK_BYTES), np.uint8)
        await store(kv, keys)
        told = asyncio.Event()
        attachment = await kv.attach()
        honest = attachment.transport.touch

        async def touch(*args: object, **given: object) -> int:
            told.set()
            return await honest(*args, **given)  # type: ignore[arg-type]

        monkeypatch.setattr(attachment.transport, "touch", touch)
        for _ in range(2):
            told.clear()
            await kv.read(keys, out)
            await told.wait()

    mapped.run(scenario)


def test_kill_and_restart(tmp_path: Path) -> None:
    address = make_config(tmp_path).daemon.socket
    told: list[tuple[int, int]] = []

    async def main() -> None:
        kv = connect_async(
            address, make_space(), timeout_s=20.0, on_epoch_change=lambda old, new: told.append((old, new))
        )
        with daemon_process(tmp_path) as first:
            keys = chain_of(kv, 3)
            await store(kv, keys)
            before = (await kv.attach()).attached.epoch
            lease, slots = await kv.acquire(keys), await kv.reserve(chain_of(kv, 2, 9000))
            kill(first)
        with daemon_process(tmp_path):
            assert (await kv.lookup(keys)).prefix == 0
            epoch = (await kv.attach()).attached.epoch
            assert (told, kv.epoch_changes) == ([(before, epoch)], 1)
            counts = await kv.translations()
            assert counts is None or counts.entries == 0
            with pytest.raises(ExpiredError):
                lease.array(0)
            with pytest.raises(ExpiredError):
                await slots.seal()
            await lease.release()
            await slots.abort()
            await store(kv, keys)
            out = np.zeros((3, BLOCK_BYTES), np.uint8)
            assert (await kv.read(keys, out) == HIT).all()
            check_content(keys, out)
            await kv.close()

    asyncio.run(main())


def test_nobody_there_is_said_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with connect_async(f"unix://{tmp_path}/none.sock", make_space(), timeout_s=0.2):
            raise AssertionError("it was attached")

    with pytest.raises(UnavailableError):
        asyncio.run(main())


def test_a_forked_child_is_refused(mapped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 1)
        await store(kv, keys)
        async with kv.acquire(keys) as lease:
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: -1)
                with pytest.raises(Exception, match="fork"):
                    await kv.lookup(keys)
                with pytest.raises(ExpiredError, match="parent"):
                    lease.array(0)

    mapped.run(scenario)


@pytest.mark.parametrize(
    ("address", "given", "named"),
    [("", {}, "address"), ("a/b", {}, "address"), ("unix:///x", {"timeout_s": 0}, "timeout_s"),
     ("unix:///x", {"translations_count": -1}, "translations_count")],
)  # fmt: skip
def test_bad_input_is_named_at_once(address: str, given: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        connect_async(address, make_space(), **given)  # type: ignore[arg-type]
