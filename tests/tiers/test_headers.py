"""Slot headers: nobody accepts what is being written, and everything can be found from the file alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from hybridkv.tiers.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from hybridkv.tiers.header_format import EXTENT_DTYPE, HEADER_DTYPE, SESSION_DTYPE
from hybridkv.tiers.header_reader import HeaderReader
from hybridkv.tiers.headers import HeaderRegion, Indices
from hybridkv.tiers.points import listening
from hybridkv.tiers.pools import SLOT_DTYPE, PoolId
from hybridkv.tiers.process import boot_id, own_start_time
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import BlockState, Tier

EXTENT_BYTES = 1 << 20
SLOT_BYTES = 64 << 10
EXTENTS = 16
PRINT = bytes(range(32))


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def create(folder: Path, capacity_bytes: int = EXTENTS * EXTENT_BYTES) -> HeaderRegion:
    return HeaderRegion.create(
        folder / "h",
        pool=PoolId(Tier.CPU),
        capacity_bytes=capacity_bytes,
        extent_bytes=EXTENT_BYTES,
        daemon_epoch=2**62 + 1,
        created_at=1.5e9,
    )


@pytest.fixture
def writer(folder: Path) -> Iterator[HeaderRegion]:
    """Extent 0 is carved into slots of 64 KiB."""
    writer = create(folder)
    writer.commit_extent(0, SLOT_BYTES)
    writer.set_extent(0, slot_bytes=SLOT_BYTES, carved=True)
    yield writer
    writer.close(unlink=True)


@pytest.fixture
def reader(writer: HeaderRegion) -> HeaderReader:
    region = SharedRegion.attach(writer.region.read_only_fd(), writer.region.nbytes, False)
    return HeaderReader(region)


def at(*indices: int) -> Indices:
    return np.array(indices, np.int64)


def publish(writer: HeaderRegion, indices: Indices, **changes: Any) -> None:
    count = len(indices)
    fields: dict[str, Any] = {
        "fingerprint": PRINT,
        "keys": [bytes([index % 251]) * 32 for index in indices],
        "parents": [b""] * count,
        "lengths": np.full(count, SLOT_BYTES, np.uint64),
        "checksums": indices.astype(np.uint64) + 100,
        "sealed_at": np.full(count, 1.5),
        "access_count": np.ones(count, np.float32),
        "last_access": np.full(count, 2.5),
        "checked": np.ones(count, np.uint8),
        "private": np.zeros(count, np.uint8),
    }
    writer.publish(indices, **(fields | changes))


def test_entries_have_the_sizes_of_the_format_and_aligned_counters(writer: HeaderRegion) -> None:
    assert (HEADER_DTYPE.itemsize, EXTENT_DTYPE.itemsize, SESSION_DTYPE.itemsize) == (256, 64, 64)
    generation, epoch = writer.headers["generation"], writer.extents["epoch"]
    assert generation.flags.aligned
    assert epoch.flags.aligned
    assert generation.ctypes.data % 256 == 0


def test_unused_headers_cost_nothing(folder: Path) -> None:
    writer = create(folder, capacity_bytes=1 << 36)
    assert writer.region.nbytes > 1 << 32
    tables = writer.layout.headers_offset
    assert writer.region.committed_bytes() == tables
    writer.commit_extent(500, SLOT_BYTES)
    writer.commit_extent(500, SLOT_BYTES)
    writer.set_extent(500, slot_bytes=SLOT_BYTES, carved=True)
    assert writer.region.committed_bytes() - tables <= EXTENT_BYTES // SLOT_BYTES * 256 + 8192
    writer.close(unlink=True)


def test_the_file_describes_itself(writer: HeaderRegion, reader: HeaderReader) -> None:
    told = reader.describe()
    assert told["pool"] == "cpu"
    assert told["daemon_epoch"] == 2**62 + 1
    assert told["created_at"] == 1.5e9
    assert told["boot_id"] == boot_id().hex()
    assert told["extent_count"] == EXTENTS
    assert told["slots_per_extent"] == EXTENT_BYTES // 4096
    assert reader.layout == writer.layout


def test_a_writer_can_be_bound_to_an_existing_file(writer: HeaderRegion) -> None:
    publish(writer, at(3))
    again = HeaderRegion(SharedRegion.attach(os.dup(writer.region.fd), writer.region.nbytes, True))
    assert again.generations(at(3)).tolist() == [2]
    again.retire(at(3))
    assert writer.generations(at(3)).tolist() == [3]


@pytest.mark.parametrize(
    ("offset", "value"), [(0, b"X"), (8, b"\x09"), (12, b"\x07"), (24, b"\x03"), (40, b"\xff" * 8)]
)
def test_an_unknown_or_damaged_format_is_refused(writer: HeaderRegion, offset: int, value: bytes) -> None:
    """Magic, version, tier, entry size, extent size."""
    writer.region.array[offset : offset + len(value)] = np.frombuffer(value, np.uint8)
    with pytest.raises(FailedPreconditionError, match="header region"):
        HeaderReader(writer.region)


def test_a_file_cut_short_is_refused(writer: HeaderRegion) -> None:
    with pytest.raises(FailedPreconditionError, match="exceeds"):
        HeaderReader(SharedRegion.attach(os.dup(writer.region.fd), writer.layout.headers_offset, False))


def test_never_written_is_never_valid(reader: HeaderReader) -> None:
    untouched = EXTENTS * EXTENT_BYTES // 4096 - 1
    assert reader.generation(untouched) == 0
    assert not reader.valid(untouched, 0)
    assert reader.read(untouched) is None
    assert reader.extent_epoch(EXTENTS - 1) % 2 == 1


def test_a_life_of_a_slot(writer: HeaderRegion, reader: HeaderReader) -> None:
    slots = at(0, 3, 7)
    assert reader.many(slots).tolist() == [1, 1, 1]
    publish(writer, slots, parents=[b"", b"p" * 32, b"q" * 64], keys=[b"a" * 8, b"b" * 32, b"c" * 64])
    assert writer.generations(slots).tolist() == reader.many(slots).tolist() == [2, 2, 2]
    assert reader.valid(3, 2)
    found = [reader.read(index) for index in slots.tolist()]
    assert [header.key for header in found if header] == [b"a" * 8, b"b" * 32, b"c" * 64]
    assert [header.parent for header in found if header] == [None, b"p" * 32, b"q" * 64]
    assert found[1] is not None
    assert found[1].fingerprint == PRINT
    assert (found[1].length, found[1].checksum, found[1].sealed_at) == (SLOT_BYTES, 103, 1.5)
    assert found[1].extent_epoch == reader.extent_epoch(0) == 2
    writer.retire(slots)
    assert not reader.valid(3, 2)
    assert reader.read(3) is None
    publish(writer, slots)
    assert reader.many(slots).tolist() == [4, 4, 4]


def test_keys_that_end_in_zeros_keep_them(writer: HeaderRegion, reader: HeaderReader) -> None:
    publish(writer, at(1), keys=[b"k\0\0\0\0\0\0\0"], parents=[b"\0" * 8])
    header = reader.read(1)
    assert header is not None
    assert (header.key, header.parent) == (b"k\0\0\0\0\0\0\0", b"\0" * 8)


def test_nothing_is_readable_before_all_is_written_nor_after_retire_begins(
    writer: HeaderRegion, reader: HeaderReader
) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def look(name: str) -> None:
        state = writer.headers["state"][5] == BlockState.SEALED
        seen.append((name, reader.read(5) is None, bool(state)))

    with listening(look):
        publish(writer, at(5))
        writer.retire(at(5))
    assert seen == [
        ("headers.fields_written", True, True),
        ("headers.published", False, True),
        ("headers.retired", True, True),
    ]


def test_publishing_a_sealed_or_retiring_a_free_slot_is_a_bug(writer: HeaderRegion) -> None:
    publish(writer, at(2))
    with pytest.raises(InternalError, match="header 2"):
        publish(writer, at(1, 2))
    assert writer.generations(at(1, 2)).tolist() == [1, 2]
    for unsealed in (1, 100):  # retired never, and of no carved slot
        with pytest.raises(InternalError, match=f"header {unsealed}"):
            writer.retire(at(2, unsealed))
    assert writer.generations(at(2)).tolist() == [2]


@pytest.mark.parametrize(
    ("field", "value"),
    [("keys", [b"x" * 65]), ("parents", [b"x" * 65]), ("keys", []), ("fingerprint", b"short")],
)
def test_wrong_sizes_write_nothing(writer: HeaderRegion, field: str, value: Any) -> None:
    before = writer.headers[4].tobytes()
    with pytest.raises(InvalidArgumentError, match=field):
        publish(writer, at(4), **{field: value})
    assert writer.headers[4].tobytes() == before


def test_publishing_nothing_changes_nothing(writer: HeaderRegion) -> None:
    before = writer.headers[:16].tobytes()
    publish(writer, at())
    writer.retire(at())
    assert writer.headers[:16].tobytes() == before


def test_access_history_and_holders(writer: HeaderRegion) -> None:
    publish(writer, at(1, 2))
    writer.note_access(at(1, 2), np.array([3.5, 4.5], np.float32), np.array([10.0, 11.0]))
    writer.set_holders(at(2), np.array([7], np.uint32))
    assert writer.headers["access_count"][[1, 2]].tolist() == [3.5, 4.5]
    assert writer.headers["last_access_at"][[1, 2]].tolist() == [10.0, 11.0]
    assert writer.headers["holders"][[1, 2]].tolist() == [0, 7]
    assert writer.generations(at(1, 2)).tolist() == [2, 2]


def test_a_recarved_extent_never_repeats_a_translation(writer: HeaderRegion, reader: HeaderReader) -> None:
    publish(writer, at(0))
    old = np.zeros(1, SLOT_DTYPE)
    old["generation"], old["extent_epoch"] = 2, 2
    assert reader.valid_slots(old).tolist() == [True]
    with pytest.raises(InternalError, match="sealed"):
        writer.set_extent(0, slot_bytes=SLOT_BYTES, carved=False)
    writer.retire(at(0))
    writer.set_extent(0, slot_bytes=SLOT_BYTES, carved=False)
    assert reader.extent_epoch(0) == 3
    writer.commit_extent(0, 4096)
    writer.set_extent(0, slot_bytes=4096, carved=True)
    assert reader.extent_epoch(0) == 4
    assert writer.extents["slot_count"][0] == EXTENT_BYTES // 4096
    publish(writer, at(0, 255))
    assert reader.many(at(0, 255)).tolist() == [4, 2]
    assert reader.valid_slots(old).tolist() == [False]
    old["generation"] = 4  # the right generation, but of another carving
    assert reader.valid_slots(old).tolist() == [False]


@pytest.mark.parametrize(("generation", "epoch"), [(0, 2), (1, 2), (2, 1), (2, 0)])
def test_odd_or_zero_is_no_translation(writer: HeaderRegion, reader: HeaderReader, generation: int, epoch: int) -> None:
    slot = np.zeros(1, SLOT_DTYPE)
    slot["header"], slot["generation"], slot["extent_epoch"] = 9, generation, epoch
    if generation == 2:
        publish(writer, at(9))
    assert reader.valid_slots(slot).tolist() == [False]


def test_carving_twice_or_without_room_is_a_bug(writer: HeaderRegion) -> None:
    with pytest.raises(InternalError, match="extent 0"):
        writer.set_extent(0, slot_bytes=SLOT_BYTES, carved=True)
    with pytest.raises(InternalError, match="extent 1"):
        writer.set_extent(1, slot_bytes=SLOT_BYTES, carved=False)
    with pytest.raises(InternalError, match="not committed"):
        writer.set_extent(1, slot_bytes=SLOT_BYTES, carved=True)
    with pytest.raises(InternalError, match="slots of"):
        writer.commit_extent(1, 2 * EXTENT_BYTES)


def test_the_session_table(writer: HeaderRegion) -> None:
    writer.put_session(1023, 2**60, os.getpid(), own_start_time(), boot_id(), 2**62 + 1)
    row = writer.sessions[1023]
    assert (int(row["session"]), int(row["pid"]), int(row["state"])) == (2**60, os.getpid(), 1)
    assert int(row["start_time"]) == own_start_time()
    assert row["boot_id"].tobytes() == boot_id()
    assert int(row["epoch"]) == 2**62 + 1
    writer.clear_session(1023)
    assert writer.sessions["state"].sum() == 0


READER = """
import sys
from hybridkv.tiers.header_reader import HeaderReader
from hybridkv.tiers.shm import SharedRegion

reader = HeaderReader(SharedRegion.attach(int(sys.argv[1]), int(sys.argv[2]), False))
accepted, last, rounds = 0, 0, set()
while len(rounds) < 200:
    header = reader.read(6)
    if header is None:
        continue
    accepted += 1
    said = {header.length, header.checksum, int(header.sealed_at), int.from_bytes(header.key[:8], "little")}
    said.add(int.from_bytes(header.parent[-8:], "little"))
    assert len(said) == 1, f"torn: {header}"
    assert header.key == header.key[:8] * 8 and header.parent == header.key, f"torn: {header}"
    assert header.generation == 2 * header.length, f"not of its generation: {header}"
    assert header.generation >= last, "went back"
    last = header.generation
    rounds.add(header.length)
print(accepted)
"""


def test_a_concurrent_reader_never_accepts_a_torn_header(writer: HeaderRegion) -> None:
    fd = writer.region.read_only_fd()
    command = [sys.executable, "-c", READER, str(fd), str(writer.region.nbytes)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        turn = 0
        while child.poll() is None:
            turn += 1
            key = turn.to_bytes(8, "little") * 8
            figure = np.array([turn], np.uint64)
            publish(
                writer,
                at(6),
                keys=[key],
                parents=[key],
                lengths=figure,
                checksums=figure,
                sealed_at=figure.astype(np.float64),
            )
            writer.retire(at(6))
        out, err = child.communicate()
    os.close(fd)
    assert child.returncode == 0, err
    assert int(out) >= 200
