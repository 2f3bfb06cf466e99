"""The asyncio client does what the sync one does: its conformance cases, over regions and over streams."""

import numpy as np
import pytest
import torch

from hybridkv.service.client import attaching
from hybridkv.service.client.aio import AsyncKV
from hybridkv.tiers.errors import ExpiredError, FailedPreconditionError, InvalidArgumentError, NamespaceMismatchError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier
from tests.service.client.aio.conftest import Server, chain_of, store
from tests.service.client.conftest import BLOCK_BYTES, LIMIT, check_content, content

HIT, MISS = Outcome.HIT, Outcome.MISS


def test_what_was_sealed_is_found_and_read(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 5)
        assert (await kv.lookup(keys)).prefix == 0
        async with kv.reserve(keys) as slots:
            assert slots.new == [0, 1, 2, 3, 4]
            for i in slots.new:
                slots.view(i).copy_(torch.from_numpy(content(keys[i])))
            assert (await slots.seal()).tolist() == [SealOutcome.SEALED] * 5
        found = await kv.lookup(keys)
        assert (found.prefix, found.states.tolist(), found.tiers.tolist()) == (5, [HIT] * 5, [Tier.CPU] * 5)
        async with kv.acquire(keys, tier="cpu") as lease:
            assert lease.prefix == 5
            check_content(keys, np.stack([lease.array(i) for i in range(5)]))
            out = np.zeros((5, BLOCK_BYTES), np.uint8)
            assert (await lease.read_into(out)).tolist() == [HIT] * 5
            check_content(keys, out)
        assert await kv.mapped() is server.mapped

    server.run(scenario)


def test_read_copies_hits_and_leaves_other_rows(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 3)
        await store(kv, keys)
        wanted = Keys.of([keys[2], chain_of(kv, 1, first_token=5000)[0], keys[0]])
        for _ in range(2):
            out = np.full((3, BLOCK_BYTES), 7, np.uint8)
            assert (await kv.read(wanted, out)).tolist() == [HIT, MISS, HIT]
            check_content(wanted.at(np.array([0, 2])), out[[0, 2]])
            assert (out[1] == 7).all()

    server.run(scenario)


def test_a_lease_can_be_awaited_and_released(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 2)
        await store(kv, keys)
        lease = await kv.acquire(keys)
        assert (await lease.wait(0.0)).tolist() == [HIT, HIT]
        await lease.release()
        await lease.release()
        with pytest.raises(FailedPreconditionError, match="given back"):
            lease.array(0)

    server.run(scenario)


def test_unsealed_blocks_are_given_up_at_the_end(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 3)

        async def broken() -> None:
            async with kv.reserve(keys) as slots:
                slots.array(0)[:] = content(keys[0])
                assert (await slots.seal([0])).tolist() == [SealOutcome.SEALED]
                raise RuntimeError("the model broke")

        with pytest.raises(RuntimeError, match="broke"):
            await broken()
        assert (await kv.lookup(keys)).states.tolist() == [HIT, MISS, MISS]
        slots = await kv.reserve(keys)
        assert slots.outcomes.tolist() == [ReserveOutcome.PRESENT, ReserveOutcome.NEW, ReserveOutcome.NEW]
        await slots.abort()
        await slots.abort()

    server.run(scenario)


def test_more_keys_than_one_call_takes(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        count = LIMIT * 2 + 3
        keys = chain_of(kv, count)
        for start in range(0, count, LIMIT):
            await store(kv, keys[start : start + LIMIT], parent=keys[start - 1] if start else None)
        assert (await kv.lookup(keys)).prefix == count
        out = np.zeros((count, BLOCK_BYTES), np.uint8)
        assert (await kv.read(keys, out) == HIT).all()
        check_content(keys, out)
        assert await kv.touch(keys) == count
        with pytest.raises(InvalidArgumentError, match=f"{count} keys; one call takes {LIMIT}"):
            await kv.acquire(keys)
        assert await kv.remove(keys) == count

    server.run(scenario)


def test_request_protects_and_ends(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 2)
        async with kv.request() as request:
            async with request.reserve(keys) as slots:
                for i in slots.new:
                    slots.array(i)[:] = content(keys[i])
                await slots.seal()
            out = np.zeros((2, BLOCK_BYTES), np.uint8)
            assert (await request.read(keys, out)).tolist() == [HIT, HIT]
            check_content(keys, out)
        assert (await kv.stats())["requests"] == 0
        async with kv.request():
            pass

    server.run(scenario)


def test_prefetch_of_what_is_there_starts_nothing(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        keys = chain_of(kv, 2)
        await store(kv, keys)
        assert await kv.prefetch(keys) == 0

    server.run(scenario)


def test_a_handle_that_was_closed_says_so(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        lease = await kv.acquire(chain_of(kv, 1))
        await kv.close()
        await kv.close()
        with pytest.raises(FailedPreconditionError, match="closed"):
            await kv.lookup(chain_of(kv, 1))
        with pytest.raises((ExpiredError, FailedPreconditionError)):
            lease.array(0)

    server.run(scenario)


def test_what_attaching_is_refused_with_is_raised(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = attaching.attach_request

    def wrong(space: object) -> object:
        request = honest(space)  # type: ignore[arg-type]
        request.block_bytes += 512
        return request

    monkeypatch.setattr("hybridkv.service.client.aio.transport.attach_request", wrong)

    async def scenario(_: AsyncKV) -> None:
        raise AssertionError("it was attached")

    with pytest.raises(NamespaceMismatchError, match="block_bytes"):
        server.run(scenario)


def test_bad_input_is_named(server: Server) -> None:
    async def scenario(kv: AsyncKV) -> None:
        with pytest.raises(InvalidArgumentError, match="tier"):
            kv.acquire(chain_of(kv, 1), tier="L1")
        with pytest.raises(InvalidArgumentError, match="out"):
            await kv.read(chain_of(kv, 1), np.zeros((2, BLOCK_BYTES), np.uint8))
        with pytest.raises(InvalidArgumentError, match="parent"):
            kv.reserve(chain_of(kv, 1), parent=b"x")
        with pytest.raises(InvalidArgumentError, match="timeout_s"):
            await kv.acquire(chain_of(kv, 1), timeout_s=-1)

    server.run(scenario)
