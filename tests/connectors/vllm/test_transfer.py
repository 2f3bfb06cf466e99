"""Copies between per-layer caches in every physical order and blocks; the device's way against a fake of its streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from hybridkv.connectors.vllm.cuda_transfer import CudaTransfer
from hybridkv.connectors.vllm.groups import Group
from hybridkv.connectors.vllm.layout import GroupLayout, layout_of
from hybridkv.connectors.vllm.transfer import HostTransfer, copy_rows
from hybridkv.service.client.memory import Stack
from hybridkv.tiers.errors import FailedPreconditionError

L, B, H, N, C = 3, 12, 2, 4, 16
ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
NAMES = tuple(f"model.layers.{i}.attn" for i in range(L))


def caches_in(order: str, dtype: torch.dtype = torch.float32, blocks: int = B) -> dict[str, torch.Tensor]:
    """Per-layer views [B, H, N, C] of one allocation in a physical order, as vLLM 0.33 makes them."""
    axes = ORDERS[order]
    sizes = (L, blocks, H, N, C)
    memory = torch.rand([sizes[axis] for axis in axes]).to(dtype)
    logical = memory.permute([axes.index(axis) for axis in range(5)])
    return {name: logical[i] for i, name in enumerate(NAMES)}


def layout_for(caches: dict[str, torch.Tensor]) -> GroupLayout:
    return layout_of(Group(0, NAMES, N, None, 1), caches, next(iter(caches.values())).shape[0])


def stacks_for(layout: GroupLayout, count: int, seed: int = 0) -> list[Stack]:
    """Room for `count` blocks, scattered over two arrays."""
    rng, half = np.random.default_rng(seed), count // 2
    block_bytes = -(-layout.payload_bytes // 512) * 512
    return [
        Stack(part, np.zeros((count, block_bytes), np.uint8), rng.permutation(count)[: len(part)])
        for part in (np.arange(half), np.arange(half, count))
    ]


class FakeStreams:
    """Streams that do their work when they are told to, with a log of who waited for whom."""

    def __init__(self) -> None:
        self.load, self.store, self.current = "load", "store", "compute"
        self.log: list[tuple[str, ...]] = []

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def record(self, stream: str | None = None) -> Any:
        where, streams = stream or self.current, self

        class Event:
            def synchronize(self) -> None:
                streams.log.append(("host waits for", where))

        streams.log.append(("record", where))
        return Event()

    def have_wait(self, event: Any, stream: str | None = None) -> None:
        self.log.append(("waits", stream or self.current))

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.mark.parametrize("device", ["host", "cuda"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_every_byte_comes_back_in_every_order(order: str, dtype: torch.dtype, device: str) -> None:
    source, target = caches_in(order, dtype), caches_in(order, dtype)
    layout = layout_for(source)
    ids = np.random.default_rng(1).permutation(B)[:9]
    stacks = stacks_for(layout, 9)
    out, back = _transfer(device, layout, source), _transfer(device, layout, target)
    untouched = {name: target[name].clone() for name in NAMES}
    for layer in range(L):
        out.gather(layer, stacks, ids, out.mark_computed())
        back.scatter(layer, stacks, ids)
        back.wait(back.scattered(layer))
    back.finish()
    rest = [i for i in range(B) if i not in ids]
    for name in NAMES:
        assert torch.equal(target[name][ids], source[name][ids])
        assert torch.equal(target[name][rest], untouched[name][rest])


def _transfer(device: str, layout: GroupLayout, caches: dict[str, torch.Tensor]) -> Any:
    tensors = [caches[name] for name in NAMES]
    return HostTransfer(layout, tensors) if device == "host" else CudaTransfer(layout, tensors, FakeStreams())  # type: ignore[arg-type]


def test_on_a_device_the_store_waits_for_the_computation_and_the_computation_for_the_load() -> None:
    caches, streams = caches_in("LBHNC"), FakeStreams()
    layout = layout_for(caches)
    transfer = CudaTransfer(layout, [caches[name] for name in NAMES], streams)  # type: ignore[arg-type]
    ids, stacks = np.arange(4), stacks_for(layout, 4)
    transfer.gather(0, stacks, ids, transfer.mark_computed())
    assert streams.log == [("record", "compute"), ("waits", "store"), ("record", "store"), ("host waits for", "store")]
    streams.log.clear()
    transfer.scatter(0, stacks, ids)
    transfer.wait(transfer.scattered(0))
    transfer.finish()
    assert streams.log == [("record", "load"), ("record", "load"), ("waits", "compute"), ("host waits for", "load")]


@pytest.mark.parametrize("rows", [[3, 4, 5, 6, 7, 8, 9, 10, 11], [11, 0, 5, 4, 3, 9, 10, 1, 2]])
def test_runs_and_scattered_rows_are_copied_alike(rows: list[int]) -> None:
    source = np.arange(12 * 4).reshape(12, 4)
    target, to = np.zeros_like(source), np.array([2, 3, 4, 5, 6, 7, 8, 9, 10])
    copy_rows(source, np.array(rows), target, to)
    assert np.array_equal(target[to], source[rows])
    assert not target[[0, 1, 11]].any()


def test_where_blocks_lie_in_the_engine_is_no_identity_but_their_inside_is() -> None:
    def identity(order: str, dtype: torch.dtype = torch.float32, blocks: int = B) -> object:
        return layout_for(caches_in(order, dtype, blocks)).identity()

    assert identity("LBHNC") == identity("LBHNC", blocks=B + 5) == identity("BLHNC") == identity("LHBNC")
    assert identity("LBNHC") == identity("BLNHC") != identity("LBHNC")
    assert identity("LBHNC", torch.int32) != identity("LBHNC")


def test_a_cache_that_does_not_start_with_the_blocks_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=r"does not start with the 12 blocks"):
        layout_of(Group(0, ("a",), N, None, 1), {"a": torch.zeros(2, B, N, C)}, B)
    with pytest.raises(FailedPreconditionError, match="registered no cache for a"):
        layout_of(Group(0, ("a",), N, None, 1), {}, B)
