"""Block tables for kernels: over a fragmented, forked, partly promoted sequence they lead to the bytes that were written."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from hybridkv.paging.windows import Window  # noqa: E402
from hybridkv.service.client import KV  # noqa: E402
from hybridkv.service.client.sequence import Sequence  # noqa: E402
from hybridkv.service.client.token_views import layer_tensor  # noqa: E402
from hybridkv.tiers.errors import (  # noqa: E402
    ExpiredError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from hybridkv.tiers.gpu import open_device  # noqa: E402
from hybridkv.tiers.layout import BlockLayout  # noqa: E402
from hybridkv.tiers.namespace import Namespace  # noqa: E402
from tests.service.client import attention  # noqa: E402
from tests.service.client.conftest import Backend  # noqa: E402
from tests.service.client.sequences_rig import (  # noqa: E402
    DIM,
    HEADS,
    LAYERS,
    LAYOUT,
    SPACE,
    TOKENS,
    content,
    paged,
)

GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)


@pytest.fixture(params=["host:0", GPU])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name.startswith("cuda"):
        try:
            open_device(name)
        except UnavailableError as error:
            pytest.skip(str(error))
    return name


@pytest.fixture
def backend(tmp_path: Path, device: str) -> Iterator[Backend]:
    with paged(tmp_path, device=device) as running:
        yield running


@pytest.fixture
def kv(backend: Backend) -> KV:
    return backend.connect(SPACE)


def filled(sequence: Sequence, made: npt.NDArray[np.float32], first: int = 0) -> None:
    """Write tokens from `first` (the start of a block) on through views: what a kernel does, on any device."""
    for at in range(0, made.shape[2], TOKENS):
        block = sequence.writable((first + at) // TOKENS, timeout_s=10.0)
        tokens = block[: LAYOUT.payload_bytes].view(torch.float32).view(LAYERS, 2, TOKENS, HEADS, DIM)
        part = torch.from_numpy(made[:, :, at : at + TOKENS].copy())
        tokens[:, :, : part.shape[2]] = part.to(block.device)


def tangled(kv: KV) -> list[tuple[Sequence, npt.NDArray[np.float32]]]:
    """Two sequences in one pool: their blocks interleaved, shared up to a fork, and partly fetched from below."""
    parent, others = kv.open_sequence(list(range(150))), kv.open_sequence([3] * 150)
    made = content(1, 150)
    for start in range(0, 144, 3 * TOKENS):
        filled(parent, made[:, :, start : start + 3 * TOKENS], start)
        filled(others, content(2, 2 * TOKENS), start)
    filled(parent, made[:, :, 144:], 144)
    parent.publish()
    parent.suspend(timeout_s=10.0)
    parent.fault([0, 4, 7], timeout_s=10.0)
    others.close()
    (fork,) = parent.fork()
    mine = np.concatenate([made[:, :, :128], content(3, 22)], axis=2)
    filled(fork, mine[:, :, 128:], 128)
    return [(parent, made), (fork, mine)]


def test_gathered_kv_is_byte_equal_and_paged_attention_agrees(kv: KV) -> None:
    family = tangled(kv)
    with kv.block_table([sequence for sequence, _ in family], timeout_s=10.0) as table:
        assert table.array.dtype == np.int32
        assert table.array.shape == (2, 10)
        assert table.lengths.tolist() == [150, 150]
        assert (table.array[0, :8] == table.array[1, :8]).all()
        assert (table.array[0, 8:] != table.array[1, 8:]).all()
        assert (np.diff(table.array[0]) != 1).any()
        for layer in range(LAYERS):
            view = table.layer(layer)
            blocks = table.tensor(str(view.device))
            for row, (_, made) in enumerate(family):
                expected = torch.from_numpy(made[layer]).to(view.device)
                got = attention.gathered(view, blocks[row], 150)
                assert torch.equal(got.view(torch.int32), expected.view(torch.int32))
                query = torch.from_numpy(content(8 + row, 1)[0, 0, 0]).to(view.device)
                out = attention.paged(query, view, blocks[row], 150)
                assert torch.allclose(out, attention.contiguous(query, expected[0], expected[1]), atol=1e-5, rtol=0)
            del view, blocks


def test_what_a_kernel_writes_through_the_layers_is_read(kv: KV, device: str) -> None:
    sequence = kv.open_sequence([1] * 40)
    made = content(4, 40)
    with sequence.block_table(write_from=0, timeout_s=10.0) as table:
        for layer in range(LAYERS):
            view = table.layer(layer, writable=True)
            for at in range(40):
                view[table.array[0, at // TOKENS], :, at % TOKENS] = torch.from_numpy(made[layer, :, at]).to(
                    view.device
                )
            del view
    with sequence.block_table(timeout_s=10.0) as table:
        view = table.layer(1)
        assert torch.equal(
            attention.gathered(view, table.tensor(str(view.device))[0], 40).cpu(), torch.from_numpy(made[1])
        )
        del view
    if device.startswith("host"):
        assert np.array_equal(sequence.read(0, 40), made.view(np.uint32))


def test_what_a_table_holds_stays_where_it_is(kv: KV) -> None:
    sequence, made = _whole(kv, 8)
    table = sequence.block_table(timeout_s=10.0)
    crowd = kv.open_sequence([9] * 64 * TOKENS)
    crowd.fault(range(56), write=True, timeout_s=10.0)
    with pytest.raises(Exception, match="no room"):
        crowd.fault(range(56, 60), write=True, timeout_s=0.2)
    view = table.layer(0)
    assert torch.equal(
        attention.gathered(view, table.tensor(str(view.device))[0], 128).cpu(), torch.from_numpy(made[0])
    )
    del view
    assert table.valid
    table.release()
    table.release()
    assert not table.valid
    crowd.fault(range(56, 60), write=True, timeout_s=10.0)


def test_rows_of_different_lengths_are_filled_up_with_zeros(kv: KV) -> None:
    long, _ = _whole(kv, 5)
    short, _ = _whole(kv, 2, seed=1)
    none = kv.open_sequence()
    with kv.block_table([short, none, long]) as table:
        assert table.array.shape == (3, 5)
        assert table.lengths.tolist() == [32, 0, 80]
        assert table.array[0, 2:].tolist() == [0, 0, 0]
        assert table.array[1].tolist() == [0] * 5
    with none.block_table() as table:
        assert table.array.shape == (1, 0)


def test_a_window_takes_only_what_it_looks_at(backend: Backend, kv: KV) -> None:
    sequence, made = _whole(kv, 12)
    sequence.suspend(timeout_s=10.0)
    with sequence.block_table(window=Window(3 * TOKENS, sink_tokens=5), timeout_s=10.0) as table:
        taken = [0, 9, 10, 11]
        assert sequence.describe()["resident_blocks"] == len(taken)
        assert [n for n in range(12) if table.array[0, n] != 0 or n in taken] == taken
        view = table.layer(2)
        got = torch.stack([view[slot] for slot in table.array[0, taken].tolist()])
        expected = torch.from_numpy(made[2]).unflatten(1, (12, TOKENS))[:, taken].transpose(0, 1)
        assert torch.equal(got.cpu(), expected)
        del view, got
    with sequence.block_table(write_from=11 * TOKENS, window=Window(2 * TOKENS), timeout_s=10.0) as table:
        assert sequence.describe()["writable_blocks"] == 1
    assert backend.host.stats()["leases"] == 0


def test_a_block_without_content_is_named_and_nothing_stays_held(backend: Backend, kv: KV) -> None:
    sequence, _ = _whole(kv, 4)
    sequence.extend([1] * TOKENS)
    with pytest.raises(FailedPreconditionError, match="block 4 is UNMAPPED"):
        sequence.block_table()
    assert backend.host.stats()["leases"] == 0
    with sequence.block_table(write_from=64) as table:
        assert len(set(table.array[0].tolist())) == 5


def test_sequences_of_several_pools_have_no_common_table(kv: KV) -> None:
    here = kv.open_sequence([1])
    there = kv.open_sequence([1], tier="cpu")
    with pytest.raises(InvalidArgumentError, match=r"^sequences"):
        kv.block_table([here, there])


def test_a_table_ends_with_its_session(kv: KV) -> None:
    sequence, _ = _whole(kv, 2)
    table = sequence.block_table()
    kv.close()
    assert not table.valid
    table.release()
    with pytest.raises((ExpiredError, FailedPreconditionError)):
        sequence.block_table()


@pytest.mark.parametrize("order", ["kv", "vk", "kv_split"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_layers_of_every_order_and_dtype(order: str, dtype: str) -> None:
    layout = replace(LAYOUT, order=order, dtype=dtype, head_dim=4 * DIM)
    size = layout.payload_bytes
    pool = torch.arange(2 * layout.block_bytes, dtype=torch.int64).to(torch.uint8)
    outer = (2, LAYERS) if order == "kv_split" else (LAYERS, 2)
    for slot in (0, 1):
        block = pool[slot * layout.block_bytes :][:size].view(getattr(torch, dtype))
        shaped = block.view(*outer, TOKENS, HEADS, 4 * DIM)
        for layer in range(LAYERS):
            expected = shaped[:, layer] if order == "kv_split" else shaped[layer]
            got = layer_tensor(pool, layout, layer)[slot]
            assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
            assert got.data_ptr() == expected.data_ptr()


def test_what_has_no_layers_says_so() -> None:
    pool = torch.zeros(8192, dtype=torch.uint8)
    with pytest.raises(FailedPreconditionError, match="opaque"):
        layer_tensor(pool, BlockLayout.opaque(4096, 16, "t"), 0)
    with pytest.raises(InvalidArgumentError, match=r"^layer"):
        layer_tensor(pool, LAYOUT, LAYERS)


def test_tensors_are_written_as_arrays_are(tmp_path: Path) -> None:
    space = Namespace(model="half", layout=replace(LAYOUT, layers=2 * LAYERS, dtype="bfloat16"))
    with paged(tmp_path, space=space) as backend:
        sequence = backend.connect(space).open_sequence([1] * 20)
        made = torch.from_numpy(np.concatenate([content(1, 20), content(2, 20)])).to(torch.bfloat16)
        sequence.write(0, made)
        assert np.array_equal(sequence.read(0, 20), made.view(torch.int16).numpy().view(np.uint16))


def _whole(kv: KV, blocks: int, seed: int = 0) -> tuple[Sequence, npt.NDArray[np.float32]]:
    sequence = kv.open_sequence([seed] * blocks * TOKENS)
    made = content(seed, blocks * TOKENS)
    filled(sequence, made)
    sequence.publish()
    return sequence, made
