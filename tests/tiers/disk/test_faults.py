"""A failing device: the store says so, serves what it can, and comes back when it can."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from hybridkv.tiers import points
from hybridkv.tiers.disk import DiskState, ReadOutcome
from hybridkv.tiers.disk.codec import PAGE_BYTES
from hybridkv.tiers.errors import HybridKVError, ResourceExhaustedError, UnavailableError

from .conftest import Kit

Failing = Callable[[str, OSError], Callable[[str], None]]


@pytest.mark.parametrize(
    ("code", "error", "state"),
    [
        (errno.ENOSPC, ResourceExhaustedError, DiskState.READ_ONLY),
        (errno.EDQUOT, ResourceExhaustedError, DiskState.READ_ONLY),
        (errno.EROFS, UnavailableError, DiskState.READ_ONLY),
        (errno.EIO, UnavailableError, DiskState.OFF),
        (errno.ESTALE, UnavailableError, DiskState.OFF),
    ],
)
@pytest.mark.parametrize("step", ["disk.put.before_commit", "disk.put.committed"])
def test_failed_put_turns_writes_off_and_comes_back(
    kit: Kit, failing: Failing, code: int, error: type[HybridKVError], state: DiskState, step: str
) -> None:
    store = kit.store()
    store.open()
    kept, lost = kit.blocks(range(3)), kit.blocks(range(10, 13))
    segments = store.put(kept)
    with points.listening(failing(step, OSError(code, os.strerror(code)))):
        with pytest.raises(error):
            store.put(lost)
    assert store.state is state
    assert os.strerror(code) in store.reason
    assert store.usage().reason == store.reason
    assert store.usage().counters.faults == 1
    with pytest.raises(error):
        store.put(lost)
    expected = ReadOutcome.OK if state is DiskState.READ_ONLY else ReadOutcome.FAILED
    assert kit.read(store, kit.refs(kept, segments))[0] == [expected] * 3
    store.delete([(kit.space, kept[0].key, segments[0])])
    probe = store.probe()
    assert (probe.state, probe.reason, probe.lost) == (DiskState.ON, "", ())
    kit.expect(store, kept[1:], segments[1:])
    assert kit.read(store, kit.refs(kept[:1], segments[:1]))[0] == [ReadOutcome.MISSING]
    assert kit.read(store, kit.refs(lost, segments))[0] == [ReadOutcome.MISSING] * 3
    kit.expect(store, lost, store.put(lost))
    store.close()
    assert {b.key for b in kit.store().open()} == {b.key for b in [*kept[1:], *lost]}


def test_probe_stays_as_it_is_while_the_fault_lasts(
    kit: Kit, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.store()
    store.open()
    full = OSError(errno.ENOSPC, "full")
    with points.listening(failing("disk.put.before_commit", full)), pytest.raises(ResourceExhaustedError):
        store.put([kit.block(1)])

    def still_full(fd: int) -> None:
        raise full

    monkeypatch.setattr(os, "fsync", still_full)
    assert store.probe().state is DiskState.READ_ONLY
    monkeypatch.undo()
    assert store.probe().state is DiskState.ON


def test_one_unreadable_block_fails_alone_many_turn_the_store_off(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(8))
    segments = store.put(blocks)
    refs = kit.refs(blocks, segments)
    reads = 0

    def first_fails(passed: str) -> None:
        nonlocal reads
        reads += passed == "disk.read.before_pread"
        if passed == "disk.read.before_pread" and reads == 1:
            raise OSError(errno.EIO, "bad sector")

    with points.listening(first_fails):
        outcomes, _ = kit.read(store, refs)
    assert sorted(outcomes) == [ReadOutcome.OK] * 7 + [ReadOutcome.FAILED]
    assert (store.state, store.reason) == (DiskState.ON, "")

    def all_fail(passed: str) -> None:
        raise OSError(errno.EIO, "dying")

    with points.listening(all_fail):
        assert kit.read(store, refs)[0] == [ReadOutcome.FAILED] * 8
    assert str(store.state) == "off"
    assert store.probe().state is DiskState.ON
    kit.expect(store, blocks, segments)


def test_vanished_segment_is_noticed_and_told_as_lost(kit: Kit) -> None:
    store = kit.store()
    store.open()
    small, large = kit.blocks(range(3), 4096), kit.blocks(range(10, 13))
    segments = store.put([*small, *large])
    shutil.rmtree(kit.data_file(segments[0]).parent)
    with pytest.raises(UnavailableError, match="vanished"):
        store.put(kit.blocks([50], 4096))
    assert store.state is DiskState.OFF
    probe = store.probe()
    assert (probe.state, probe.lost) == (DiskState.ON, (segments[0],))
    kit.expect(store, large, segments[3:])
    assert store.probe().lost == ()


def test_vanished_directory_comes_back_empty(kit: Kit) -> None:
    store = kit.store()
    store.open()
    segments = store.put(kit.blocks(range(3)))
    shutil.rmtree(kit.path)
    assert store.probe().state is DiskState.OFF
    assert "vanished" in store.reason
    probe = store.probe()
    assert (probe.state, set(probe.lost)) == (DiskState.ON, set(segments))
    assert kit.read(store, kit.refs(kit.blocks(range(3)), segments))[0] == [ReadOutcome.MISSING] * 3
    block = kit.block(9)
    (fresh,) = store.put([block])
    kit.expect(store, [block], [fresh])


def test_unmounted_disk_is_not_replaced_by_its_mount_point(kit: Kit) -> None:
    store = kit.store()
    store.open()
    store.put([kit.block(1)])
    store._tenure._device = -1  # as if the directory had been on another file system than what is there now
    shutil.rmtree(kit.path)
    assert [store.probe().state for _ in range(3)] == [DiskState.OFF] * 3
    assert not kit.path.exists()
    with pytest.raises(UnavailableError):
        store.put([kit.block(1)])


def test_damage_that_lmdb_notices_sets_the_segment_aside_and_the_put_goes_elsewhere(kit: Kit) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(8))
    segments = store.put(blocks)
    content = bytearray(kit.data_file(segments[0]).read_bytes())
    for page in range(2, len(content) // PAGE_BYTES):
        at = page * PAGE_BYTES
        if content[at : at + 8] == page.to_bytes(8, "little") and content[at + 10] & 0x03:
            content[at + 10 : at + 12] = b"\x04\x00"  # a tree page that says it is none
    kit.data_file(segments[0]).write_bytes(content)
    assert kit.read(store, kit.refs(blocks, segments))[0] == [ReadOutcome.MISSING] * 8
    extra = kit.block(50)
    (fresh,) = store.put([extra])
    assert fresh not in segments
    kit.expect(store, [extra], [fresh])
    assert store.probe().lost == (segments[0],)
    assert store.usage().counters.segments_aside == 1


def test_a_device_that_answers_nothing_turns_the_store_off(
    kit: Kit, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails, and so does the question whether that was for want of room."""
    store = kit.store()
    store.open()
    kept = kit.blocks(range(3))
    segments = store.put(kept)
    dead = OSError(errno.EIO, "injected")

    def no_answer(path: object) -> None:
        raise dead

    monkeypatch.setattr(os, "statvfs", no_answer)
    with points.listening(failing("disk.put.before_commit", dead)), pytest.raises(UnavailableError, match="injected"):
        store.put([kit.block(10)])
    assert store.state is DiskState.OFF
    monkeypatch.undo()
    assert store.probe().state is DiskState.ON
    kit.expect(store, kept, segments)


def test_a_handle_that_went_stale_turns_the_store_off_and_figures_are_still_told(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server forgot the file."""
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(3))
    segments = store.put(blocks)
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def forgotten(fd: int) -> None:
        raise stale

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", forgotten)
        assert store.usage().live_blocks == 3
        with pytest.raises(UnavailableError, match="Stale"):
            store.put([kit.block(10)])
        assert store.state is store.usage().state is DiskState.OFF
    assert store.probe().state is DiskState.ON
    kit.expect(store, blocks, segments)


def test_a_directory_that_cannot_be_used_is_unavailable_and_open_may_be_tried_again(kit: Kit) -> None:
    kit.path.write_text("in the way")
    store = kit.store()
    with pytest.raises(UnavailableError):
        store.open()
    assert store.state is DiskState.OFF
    kit.path.unlink()
    assert len(store.open()) == 0


_FILE_LIMIT = """
import resource, signal, sys
from pathlib import Path
from hybridkv.tiers.disk import DiskBlock, DiskStore
from hybridkv.tiers.errors import HybridKVError
import xxhash
store = DiskStore(Path(sys.argv[1]), 64 << 20)
store.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
payload = bytes(65536)
def block(n):
    return DiskBlock(bytes(32), n.to_bytes(8, "little"), b"", xxhash.xxh3_64_intdigest(payload), memoryview(payload))
done = 0
try:
    while done < 100:
        store.put([block(done)])
        done += 1
except HybridKVError as error:
    print(done, store.state.value, type(error).__name__)
"""


def test_a_write_cut_short_by_the_system_loses_nothing_acknowledged(kit: Kit) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILE_LIMIT, str(kit.path)], capture_output=True, text=True, check=True, timeout=60
    )
    stored, state, error = done.stdout.split()
    assert (state, error) == ("off", "UnavailableError")  # LMDB says EIO for a short write, and there is space
    assert 3 <= int(stored) <= 9
    store = kit.store()
    assert {block.key for block in store.open()} == {n.to_bytes(8, "little") for n in range(int(stored))}
