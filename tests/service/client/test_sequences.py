"""Sequences as a worker uses them, in this process and through a daemon."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridkv.paging.states import PageState, PublishOutcome
from hybridkv.paging.windows import Window
from hybridkv.service.client import KV
from hybridkv.service.listening import side_socket_path, socket_path
from hybridkv.tiers.errors import (
    ExpiredError,
    FailedPreconditionError,
    HybridKVError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from tests.service.client.conftest import Backend
from tests.service.client.sequences_rig import GPU_BLOCKS, LAYOUT, SPACE, TOKENS, check, content, paged, written


@pytest.fixture(params=["embedded", "regions"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with paged(tmp_path, request.param) as running:
        yield running


@pytest.fixture
def kv(backend: Backend) -> KV:
    return backend.connect(SPACE)


def test_what_is_written_is_read_and_published_blocks_are_found(kv: KV) -> None:
    tokens = list(range(100))
    sequence, made = written(kv, tokens)
    check(sequence, made)
    assert sequence.publish().tolist() == [PublishOutcome.SEALED] * 6
    check(sequence, made)
    assert len(sequence.publish()) == 0
    with kv.open_sequence([*tokens, 5]) as again:
        assert (again.cached_blocks, again.cached_tokens, len(again)) == (6, 96, 101)
        assert np.array_equal(again.read(0, 96), made[:, :, :96].view(np.uint32))
    with kv.acquire(sequence.keys) as lease:
        assert lease.prefix == 6
    sequence.close()
    sequence.close()


def test_tokens_are_written_across_blocks_and_one_by_one(kv: KV) -> None:
    with kv.open_sequence() as sequence:
        assert (len(sequence), sequence.blocks) == (0, 0)
        made = content(1, 50)
        for position in range(50):
            assert sequence.extend([position]) == position + 1
            sequence.write(position, made[:, :, position : position + 1])
        check(sequence, made)
        assert np.array_equal(sequence.read(13, 9), made[:, :, 13:22].view(np.uint32))
        sequence.write(10, made[:, :, 20:45])
        assert np.array_equal(sequence.read(10, 25), made[:, :, 20:45].view(np.uint32))


def test_a_fork_shares_until_one_of_the_two_writes(kv: KV) -> None:
    parent, made = written(kv, list(range(40)))
    first, second = parent.fork(2)
    assert first.describe()["mapped_blocks"] == 3
    for sequence in (parent, first, second):
        check(sequence, made)
    other = content(9, 8)
    first.write(32, other)
    parent.extend([1] * 8)
    parent.write(40, other)
    check(second, made)
    check(first, np.concatenate([made[:, :, :32], other], axis=2))
    check(parent, np.concatenate([made, other], axis=2))
    parent.close()
    check(first, np.concatenate([made[:, :, :32], other], axis=2))


def test_suspended_sequences_come_back_whole(kv: KV) -> None:
    sequence, made = written(kv, list(range(100)))
    reply = sequence.suspend(timeout_s=5.0)
    assert (reply.left, reply.stayed) == (7, 0)
    assert sequence.describe()["suspended"]
    assert sequence.locate(3) is None
    assert sequence.translate(np.arange(100)).mapped.all()
    resumed = sequence.resume(timeout_s=5.0)
    assert (resumed.blocks, resumed.lost) == (7, 0)
    check(sequence, made)


def test_a_read_wakes_what_was_suspended(kv: KV) -> None:
    sequence, made = written(kv, list(range(64)))
    sequence.suspend(timeout_s=5.0)
    check(sequence, made)


def test_page_sizes_change_while_it_is_used(kv: KV) -> None:
    sequence, made = written(kv, list(range(200)))
    for size in (4, 2, 8, 1):
        reply = sequence.adjust_page_size(size, timeout_s=5.0)
        assert reply.page_blocks == sequence.page_blocks == size
        check(sequence, made)
    assert kv.adjust_page_size(2, timeout_s=5.0).page_blocks == 2
    check(sequence, made)


def test_windows_and_sticky_pages_are_passed_on(kv: KV) -> None:
    sequence, made = written(kv, list(range(200)))
    reply = sequence.advance(150, Window(window_tokens=64, sink_tokens=16, ahead_tokens=32))
    assert reply.prefetched == reply.cancelled == 0
    assert sequence.set_sticky(0, 1).sticky_bytes == LAYOUT.block_bytes
    assert sequence.describe()["sticky_blocks"] == 1
    check(sequence, made)


def test_whole_blocks_of_an_opaque_layout(tmp_path: Path) -> None:
    space = Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "t"))
    with paged(tmp_path, space=space) as backend:
        kv = backend.connect(space)
        with kv.open_sequence(list(range(40))) as sequence:
            data = np.random.default_rng(0).integers(0, 256, (3, 4096), np.uint8)
            sequence.write_blocks([2, 0, 1], data)
            out = np.zeros((4, 4096), np.uint8)
            states = sequence.read_blocks([0, 1, 2, 0], out)
            assert states.tolist() == [PageState.WRITABLE] * 4
            assert np.array_equal(out, data[[1, 2, 0, 1]])
            with pytest.raises(FailedPreconditionError, match="opaque"):
                sequence.read(0, 1)
            with pytest.raises(FailedPreconditionError, match="opaque"):
                sequence.write(0, data)


def test_views_are_written_in_place(kv: KV) -> None:
    sequence = kv.open_sequence(list(range(32)))
    view = sequence.writable(1)
    view[:] = 7
    out = np.zeros((2, LAYOUT.block_bytes), np.uint8)
    assert sequence.read_blocks([0, 1], out).tolist() == [PageState.UNMAPPED, PageState.WRITABLE]
    assert (out[1] == 7).all()


def test_one_token_and_no_token(kv: KV) -> None:
    with kv.open_sequence([1]) as one, kv.open_sequence([]) as none:
        one.write(0, content(0, 1))
        check(one, content(0, 1))
        assert len(one.publish()) == 0
        assert none.read(0, 0).shape[2] == 0
        assert none.locate(0) is None
        assert len(none.translate(np.zeros(0, np.int64))) == 0
        (twin,) = none.fork()
        assert len(twin) == 0


def test_what_is_wrong_is_refused_by_name(kv: KV) -> None:
    sequence, made = written(kv, list(range(40)))
    for call, field in (
        (lambda: sequence.write(39, made[:, :, :2]), "position"),
        (lambda: sequence.write(-1, made[:, :, :2]), "position"),
        (lambda: sequence.write(0, made[0]), "kv"),
        (lambda: sequence.write(0, made.astype(np.float64)), "kv"),
        (lambda: sequence.write(0, "x"), "kv"),
        (lambda: sequence.read(0, 41), "position"),
        (lambda: sequence.read_blocks([3], np.zeros((1, LAYOUT.block_bytes), np.uint8)), "blocks"),
        (lambda: sequence.read_blocks([0], np.zeros((2, 8), np.uint8)), "out"),
        (lambda: sequence.write_blocks([0], np.zeros((1, 8), np.uint8)), "data"),
        (lambda: sequence.publish(41), "tokens"),
        (lambda: sequence.extend(["a"]), "tokens"),
        (lambda: sequence.extend([-1]), "tokens"),
        (lambda: sequence.translate([-1]), "positions"),
        (lambda: sequence.locate(-1), "position"),
        (lambda: kv.open_sequence([1], tier="disk"), "tier"),
        (lambda: kv.open_sequence([1], page_blocks=3), "page_blocks"),
        (lambda: kv.open_sequence([1], tlb_entries=0), "tlb_entries"),
        (lambda: kv.block_table([]), "sequences"),
        (lambda: kv.block_table([sequence], write_from=[1, 2]), "write_from"),
    ):
        with pytest.raises(InvalidArgumentError, match=rf"^{field}"):
            call()
    check(sequence, made)


def test_nothing_is_done_after_the_close(kv: KV) -> None:
    sequence, _ = written(kv, list(range(40)))
    sequence.close()
    for call in (
        lambda: sequence.read(0, 1),
        lambda: sequence.write(0, content(0, 1)),
        lambda: sequence.extend([1]),
        lambda: sequence.locate(0),
        lambda: sequence.translate([0]),
        lambda: sequence.fork(),
        lambda: sequence.suspend(),
        lambda: sequence.resume(),
        lambda: sequence.publish(),
        lambda: sequence.block_table(),
        lambda: sequence.describe(),
    ):
        with pytest.raises(FailedPreconditionError, match="the sequence is closed"):
            call()


def test_a_sequence_ends_with_its_session(backend: Backend) -> None:
    kv = backend.connect(SPACE)
    sequence, _ = written(kv, list(range(40)))
    kv.close()
    with pytest.raises(HybridKVError):
        sequence.extend([1])
    sequence.close()


def test_a_full_pool_refuses_and_changes_nothing(backend: Backend) -> None:
    kv = backend.connect(SPACE)
    sequence = kv.open_sequence([0] * (GPU_BLOCKS + 8) * TOKENS)
    sequence.fault(range(GPU_BLOCKS - 8), write=True)
    before = sequence.describe()
    with pytest.raises(ResourceExhaustedError):
        sequence.fault(range(GPU_BLOCKS - 8, GPU_BLOCKS + 8), write=True)
    assert sequence.describe() == before


def test_a_prompt_of_more_keys_than_one_call_takes(kv: KV) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 150 * TOKENS)
    keys = kv.keys(tokens)
    for start in (0, 64, 128):
        part = keys[start : start + 64]
        with kv.reserve(part, parent=keys[start - 1] if start else None, tier="cpu") as slots:
            for i in slots.new:
                slots.array(i)[:] = start + i
            slots.seal()
    with kv.open_sequence(tokens) as sequence:
        assert sequence.cached_blocks == 150
        out = np.zeros((3, LAYOUT.block_bytes), np.uint8)
        sequence.read_blocks([0, 70, 149], out)
        assert out[:, 0].tolist() == [0, 70, 149]


def test_tlb_counts_reach_the_stats(backend: Backend) -> None:
    kv = backend.connect(SPACE)
    sequence, made = written(kv, list(range(40)))
    for _ in range(10):
        check(sequence, made)
    counts = sequence.tlb_counts
    assert counts.hits >= 30
    sequence.close()
    told = kv.stats()["paging"]["tlb"]
    assert (told["hits"], told["misses"], told["invalidations"]) == (counts.hits, counts.misses, 0)


def test_without_mapped_memory_there_are_no_sequences(tmp_path: Path) -> None:
    with paged(tmp_path, "regions") as backend:
        side_socket_path(socket_path(backend.address)).unlink()
        kv = backend.connect(SPACE)
        with pytest.raises(FailedPreconditionError, match="mapped memory"):
            kv.open_sequence([1])


def test_a_lost_daemon_ends_the_sequence(tmp_path: Path) -> None:
    with paged(tmp_path, "regions") as backend:
        kv = backend.connect(SPACE)
        sequence, _ = written(kv, list(range(40)))
        kv._attachment().transport.close(detach=True)
        with pytest.raises(ExpiredError):
            sequence.extend([1])
        with kv.open_sequence([1]) as another:  # from here on the old session's memory is not mapped any more
            another.write(0, content(0, 1))
        for call in (
            lambda: sequence.publish(),
            lambda: sequence.read(0, 40),
            lambda: sequence.write(0, content(0, 1)),
        ):
            with pytest.raises(ExpiredError):
                call()
        sequence.close()
