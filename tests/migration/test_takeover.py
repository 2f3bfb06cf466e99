"""A host takes over what one before it left in the CPU tier: what was sealed is served, nothing else is found or touched."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.migration import verifier
from hybridkv.migration.takeover import TakeOver
from hybridkv.migration.verifier import digests
from hybridkv.service.probes import HAUNTED_FOR_S
from hybridkv.tiers import points
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.extents import SlotUse
from hybridkv.tiers.header_format import HEADER_DTYPE, HeaderLayout, tables
from hybridkv.tiers.states import Tier
from tests.migration.gates import PATIENCE_S
from tests.migration.hosts import BLOCK, HIT, MISS, NEW, Rig, Worker, content, keys
from tests.paging.rig import ALREADY, ELSEWHERE, LOST, READABLE, WRITABLE, Pages

MakeHost = Callable[..., Rig]
POOL = {"gpus": 0, "cpu_blocks": 32, "warm": True}


def image(rig: Rig, folder: Path) -> Path:
    """What a kill at this very moment leaves in shared memory, in a folder of its own."""
    assert rig.host._instance is not None
    source = rig.host._instance.path
    shutil.copytree(source, folder / source.name)
    return folder


def regions(folder: Path) -> tuple[Path, Path]:
    """Files of the bytes and of the headers."""
    (inside,) = folder.glob("hybridkv-*")
    return inside / "cpu.region", inside / "cpu.headers.region"


def heir(make_host: MakeHost, folder: Path, **how: Any) -> Rig:
    return make_host(**{**POOL, "cpu__shm_dir": str(folder), **how})


def taken(rig: Rig) -> dict[str, Any]:
    figures = rig.host.stats()["takeover"]
    assert isinstance(figures, dict)
    return figures


def header_of(folder: Path, number: int) -> tuple[np.memmap[Any, Any], int]:
    """All headers of an image, writable, and the index of the block's."""
    raw = np.memmap(regions(folder)[1], np.uint8, "r+")
    layout = HeaderLayout.parse(raw[:4096].tobytes(), raw.nbytes)
    headers = tables(raw, layout)[2]
    wanted = keys([number])[0]
    named = [i for i, key in enumerate(headers["key"]) if key.tobytes().startswith(wanted)]
    return headers, named[0]


def offset_of(rig: Rig, number: int) -> int:
    return int(rig.directory.blocks.slot[rig.pool("cpu")][rig.row(number)])


def flip(folder: Path, at: int) -> None:
    raw = np.memmap(regions(folder)[0], np.uint8, "r+")
    raw[at] ^= 1
    raw.flush()


def book_of(rig: Rig) -> MappedBook:
    return rig.directory.state.mapped(rig.pool("cpu"))


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """A worker's process that lives until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def mapping_worker(rig: Rig, pid: int) -> Worker:
    """A session whose regions process `pid` maps."""
    worker = rig.attach(maps=False)
    rig.host.on_mapped(worker.session, pid)
    return worker


# ------------------------------------------------------------------------------------------------ whose memory it is


def test_strict_isolation_takes_over_no_memory_that_workers_were_handed(make_host: MakeHost, tmp_path: Path) -> None:
    """What a process has mapped it keeps, whoever is attached when the daemon ends; and it is told by the region itself."""
    strict = {"daemon__isolation": "strict", "tenants.alice.uid": 1000}
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    left = image(rig, tmp_path / "left")
    second = heir(make_host, left, **strict)
    assert taken(second)["outcome"] == "discarded"
    assert "strict, and workers of before may map it" in str(taken(second)["reason"])
    second.attach(maps=True).put(range(3))
    third = heir(make_host, image(second, tmp_path / "second"), **strict)
    assert (taken(third)["outcome"], taken(third)["blocks"]) == ("taken", 3), "nobody was handed this one"
    shared = heir(make_host, image(third, tmp_path / "third"))
    assert taken(shared)["outcome"] == "taken", "from here on workers may map it"
    fifth = heir(make_host, image(shared, tmp_path / "fourth"), **strict)
    assert taken(fifth)["outcome"] == "discarded"


# ------------------------------------------------------------------------------------------------ what was sealed


def test_sealed_blocks_are_served_after_a_kill(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.write(range(6))
    rig.attach(model="other").write(range(3))
    rig.worker.touch([2])
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert (taken(new)["outcome"], taken(new)["blocks"], taken(new)["bytes"]) == ("taken", 9, 9 * BLOCK)
    assert taken(new)["unverified_blocks"] == 9
    assert new.worker.read(range(6)) == [HIT] * 6
    assert new.attach(model="other").read(range(3)) == [HIT] * 3
    new.settle()
    assert (taken(new)["unverified_blocks"], new.counter("taken_over_verified")) == (0, 9)
    accesses = [new.directory.blocks.accesses[new.row(number)] for number in (1, 2)]
    assert accesses[1] > accesses[0], "the access history came along"


def test_nothing_is_verified_before_somebody_asks(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(4))
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert new.host.lookup(new.worker.session, keys(range(4))).states.tolist() == [HIT] * 4
    assert taken(new)["unverified_blocks"] == 4
    assert new.worker.read([1]) == [HIT]
    assert taken(new)["unverified_blocks"] == 3


def test_a_worker_that_leaves_while_its_blocks_are_verified_is_the_last(
    make_host: MakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier's own session is no worker's: the lanes give back what they keep for blocks of that size."""
    three_tiers = {"gpus": 1, "gpu_blocks": 16, "disk_bytes": 64 * BLOCK}
    rig = make_host(**POOL)
    rig.worker.put(range(4))
    new = heir(make_host, image(rig, tmp_path / "image"), **three_tiers)
    hashing, go_on = threading.Event(), threading.Event()

    def held(*given: Any) -> Any:
        hashing.set()
        assert go_on.wait(PATIENCE_S)
        return digests(*given)

    monkeypatch.setattr(verifier, "digests", held)
    assert book_of(new).lane_slots_owned
    new.worker.acquire(range(4))
    assert hashing.wait(PATIENCE_S)
    new.host.detach(new.worker.session)
    left = dict(book_of(new).lane_slots_owned)
    go_on.set()
    assert left == {}


def test_a_flipped_byte_is_a_miss_and_the_rest_is_served(
    make_host: MakeHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(4))
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 2) + BLOCK - 1)
    new = heir(make_host, folder)
    assert new.worker.read(range(4)) == [HIT, HIT, MISS, HIT]
    assert new.host.lookup(new.worker.session, keys([2])).states.tolist() == [MISS]
    assert new.counter("taken_over_corrupt") == 1
    assert "do not have the checksum" in caplog.text
    assert new.worker.write([2]) == [NEW]
    assert new.worker.read([2]) == [HIT]
    new.settle()


def test_a_chain_ends_where_a_block_fails(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.write(range(4))
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 1))
    new = heir(make_host, folder)
    assert new.worker.read(range(4), independent=False)[:2] == [HIT, MISS]
    new.settle()


def test_a_promotion_to_a_device_verifies(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "gpus": 1})
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 1))
    new = heir(make_host, folder, gpus=1)
    assert new.worker.read(range(3), tier=Tier.GPU) == [HIT, MISS, HIT]
    assert new.counter("taken_over_corrupt") == 1
    new.settle()
    assert new.where(0) == {"gpu0", "cpu"}
    assert new.where(1) == set()


def test_a_demotion_to_disk_verifies(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 1))
    new = heir(make_host, folder, disk_bytes=8 << 20)
    report = new.host.drain(20.0)
    assert (report.written, report.left) == (2, 0)
    new.settle()
    assert [new.where(number) for number in range(3)] == [{"cpu", "disk"}, set(), {"cpu", "disk"}]


def test_the_copy_on_disk_serves_where_the_other_fails(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "disk_bytes": 8 << 20})
    rig.worker.put(range(2))
    assert rig.host.drain(20.0).left == 0
    rig.settle()
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 1))
    rig.close()
    new = heir(make_host, folder, disk_bytes=8 << 20)
    assert taken(new)["blocks"] == 2
    assert new.where(1) == {"cpu", "disk"}
    assert new.worker.read(range(2)) == [HIT, HIT]
    new.settle()
    assert new.counter("taken_over_corrupt") == 1


def test_copies_of_a_block_are_equal_or_one_goes(make_host: MakeHost, tmp_path: Path) -> None:
    """The disk still has what a key meant before it was sealed anew: one of the two is not taken over."""
    rig = make_host(**{**POOL, "disk_bytes": 8 << 20})
    rig.worker.put(range(2))
    assert rig.host.drain(20.0).left == 0
    rig.settle()
    folder = image(rig, tmp_path / "image")
    rig.close()
    headers, index = header_of(folder, 1)
    headers["checksum"][index] += 1
    new = heir(make_host, folder, disk_bytes=8 << 20)
    assert taken(new)["dropped"] == {"other_on_disk": 1}
    assert new.where(1) == {"disk"}
    assert new.worker.read(range(2)) == [HIT, HIT]
    new.settle()


def test_a_sequence_maps_what_is_verified(make_host: MakeHost, tmp_path: Path) -> None:
    """To read it, to copy it before it writes, and when its pages are of several blocks."""
    rig = make_host(**POOL)
    rig.worker.write(range(6))
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 5))
    new = heir(make_host, folder, paging__page_blocks=2)
    pages = Pages(new)
    sequence = pages.open(6, range(6), page_blocks=1)
    assert pages.states(sequence, range(6)) == [ELSEWHERE] * 6, "nothing is mapped unseen"
    pages.read(sequence, {0: 0, 1: 1})
    assert pages.write(sequence, {2: 102}) == [WRITABLE]
    pages.read(sequence, {0: 0, 2: 102, 3: 3})
    assert pages.fault(sequence, [4, 5]).states.tolist() == [READABLE, LOST]
    pages.close(sequence)
    assert new.worker.read(range(6)) == [HIT] * 5 + [MISS]
    new.settle()


def test_a_sequence_that_is_too_late_with_a_key_does_not_map_the_other_copy_unseen(
    make_host: MakeHost, tmp_path: Path
) -> None:
    rig = make_host(**POOL)
    rig.worker.put([1])
    folder = image(rig, tmp_path / "image")
    flip(folder, offset_of(rig, 1))
    new = heir(make_host, folder)
    pages = Pages(new)
    sequence = pages.open(1)
    pages.write(sequence, {0: 1})
    assert pages.publish(sequence, 0, [1]) == [ALREADY]
    assert pages.states(sequence, [0]) == [ELSEWHERE]
    assert pages.fault(sequence, [0]).states.tolist() == [LOST]
    pages.close(sequence)


def test_private_blocks_of_sequences_do_not_come_back(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    pages = Pages(rig)
    sequence = pages.open(2)
    pages.write(sequence, {0: 1, 1: 2})
    pages.fork(sequence)
    rig.worker.put([9])
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert (taken(new)["blocks"], taken(new)["dropped"]) == (1, {"private": 2})


# ------------------------------------------------------------------------------------------------ what was not


def test_reserved_slots_are_never_found(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put([1])
    rig.worker.write([2, 3], seal=False)
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert new.worker.read([1, 2, 3]) == [HIT, MISS, MISS]
    assert new.worker.write([2, 3]) == [NEW, NEW], "nobody lives who could still write there"


def test_a_header_that_was_being_written_is_never_found(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)

    def at_point(name: str) -> None:
        if name == "headers.fields_written":
            image(rig, tmp_path / "image")

    rig.worker.write([1], seal=False)
    with points.listening(at_point):
        rig.worker.put([7])
    new = heir(make_host, tmp_path / "image")
    headers = book_of(new).headers
    assert headers is not None
    assert any(key.tobytes().startswith(keys([7])[0]) for key in headers.headers["key"]), "its fields were written"
    assert new.worker.read([7]) == [MISS]


def test_the_destination_of_a_transfer_is_never_found(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "gpus": 1})
    rig.worker.put([5], tier=Tier.GPU)
    with rig.gate("move.before_copy", "gpu0-cpu.demand") as gate:
        ticket = rig.worker.acquire([5], tier=Tier.CPU)
        gate.wait_held()
        folder = image(rig, tmp_path / "image")
    assert ticket.wait(20.0)
    new = heir(make_host, folder, gpus=1)
    assert taken(new)["blocks"] == 0
    assert new.worker.read([5]) == [MISS]
    rig.worker.release(ticket.reply().lease)


def test_a_removed_block_does_not_come_back(make_host: MakeHost, tmp_path: Path) -> None:
    """Not even one whose copy stays for those who read it."""
    rig = make_host(**POOL)
    rig.worker.put([1, 2, 3])
    reply = rig.worker.hold([1])
    assert rig.host.remove(rig.worker.session, keys([1, 2])) == 2
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert taken(new)["dropped"] == {"removed": 1}
    assert new.worker.read([1, 2, 3]) == [MISS, MISS, HIT]
    rig.worker.release(reply.lease)


def test_blocks_without_a_checksum_are_dropped_until_it_is_known(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "disk_bytes": 8 << 20})
    rig.worker.put([1, 2], sums=False)
    new = heir(make_host, image(rig, tmp_path / "before"), disk__path=str(tmp_path / "disk2"))
    assert taken(new)["dropped"] == {"without_checksum": 2}
    assert rig.host.drain(20.0).left == 0
    newer = heir(make_host, image(rig, tmp_path / "after"), disk__path=str(tmp_path / "disk3"))
    assert taken(newer)["blocks"] == 2
    assert newer.worker.read([1, 2]) == [HIT, HIT]


@pytest.mark.parametrize(
    ("field", "value"),
    [("length", 4096), ("key_bytes", 70), ("parent_bytes", 70), ("extent_epoch", 4), ("key_bytes", 0)],
)
def test_a_header_that_makes_no_sense_is_dropped(make_host: MakeHost, tmp_path: Path, field: str, value: int) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    headers, index = header_of(folder, 1)
    headers[field][index] = value
    new = heir(make_host, folder)
    assert taken(new)["dropped"] == {"malformed": 1}
    assert new.worker.read(range(3)) == [HIT, MISS, HIT]
    new.settle()


def test_a_key_that_two_slots_claim_is_served_from_one(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    headers, index = header_of(folder, 1)
    other = header_of(folder, 2)[1]
    headers["key"][other] = headers["key"][index]
    new = heir(make_host, folder)
    assert taken(new)["dropped"] == {"malformed": 1}
    assert new.worker.read([0]) == [HIT]
    new.settle()


# ------------------------------------------------------------------------------------------------ discarded


def spoil(folder: Path, name: str, value: Any) -> None:
    """Change a field of the file header."""
    from hybridkv.tiers import header_format

    raw = np.memmap(regions(folder)[1], np.uint8, "r+")
    raw[: header_format._FILE_DTYPE.itemsize].view(header_format._FILE_DTYPE)[name] = value
    raw.flush()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", 3, "version 3"),
        ("magic", np.void(b"HKVHEADX"), "magic"),
        ("boot_id", np.void(bytes(range(16))), "another boot"),
        ("pid_namespace", 7, "pid namespace"),
        ("capacity_bytes", 1 << 20, "layout|capacity"),
    ],
)
def test_a_region_of_an_unknown_kind_is_discarded(
    make_host: MakeHost, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: Any, reason: str
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    spoil(folder, name, value)
    new = heir(make_host, folder)
    assert taken(new)["outcome"] == "discarded"
    assert any(part in taken(new)["reason"] for part in reason.split("|"))
    assert taken(new)["reason"] in caplog.text
    assert new.worker.read(range(3)) == [MISS] * 3
    assert new.worker.write([1]) == [NEW]


def test_another_capacity_discards_and_says_so(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    new = heir(make_host, image(rig, tmp_path / "image"), cpu_blocks=48)
    assert "cpu.capacity_bytes" in taken(new)["reason"]
    assert new.worker.read(range(3)) == [MISS] * 3


@pytest.mark.parametrize("which", [0, 1])
def test_half_of_it_is_nothing(make_host: MakeHost, tmp_path: Path, which: int) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    regions(folder)[which].unlink()
    new = heir(make_host, folder)
    assert taken(new)["reason"] == "it is not complete"


def test_cold_discards(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    new = heir(make_host, image(rig, tmp_path / "image"), warm=False)
    assert taken(new)["outcome"] == "cold"
    assert new.worker.read(range(3)) == [MISS] * 3


def test_device_memory_ends_with_its_daemon(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "gpus": 1})
    rig.worker.put([1], tier=Tier.GPU)
    rig.worker.put([2])
    new = heir(make_host, image(rig, tmp_path / "image"), gpus=1)
    assert new.worker.read([1, 2]) == [MISS, HIT]


# ------------------------------------------------------------------------------------------------ stops and starts


def test_a_stop_leaves_the_tier_for_the_next_start(make_host: MakeHost, tmp_path: Path) -> None:
    for turn in range(3):
        rig = heir(make_host, tmp_path)
        assert not turn or rig.worker.read(range(turn)) == [HIT] * turn
        rig.worker.put([turn])
        rig.settle()
        rig.close()
    assert regions(tmp_path)[0].exists()


def test_an_empty_tier_is_not_left(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.close()
    assert not list(tmp_path.glob("hybridkv-*"))


def test_without_being_asked_nothing_is_left(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**{**POOL, "warm": False})
    rig.worker.put([1])
    rig.close()
    assert not list(tmp_path.glob("hybridkv-*"))


def test_a_start_that_fails_for_another_reason_costs_nothing(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    folder = image(rig, tmp_path / "image")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"disk\.path"):
        heir(make_host, folder, disk_bytes=8 << 20, disk__path=str(tmp_path / "file" / "x"))
    new = heir(make_host, folder)
    assert new.worker.read(range(3)) == [HIT] * 3


def test_a_takeover_that_fails_is_a_cold_start(
    make_host: MakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))

    def fails(self: TakeOver, *told: object) -> None:
        raise RuntimeError("of a kind nobody foresaw")

    monkeypatch.setattr(TakeOver, "_adopt", fails)
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert "nobody foresaw" in taken(new)["reason"]
    assert new.worker.read(range(3)) == [MISS] * 3
    new.settle()


TAKEOVER_POINTS = [point for point in points.POINTS if point.startswith("takeover.")]


@pytest.mark.parametrize("name", [*TAKEOVER_POINTS, "headers.retired"])
def test_a_kill_during_the_takeover_is_safe(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]", name: str
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(4))
    rig.worker.put([9], sums=False)
    worker = mapping_worker(rig, process.pid)
    worker.reserved([20, 21])
    worker.hold([3])
    rig.worker.put([10])
    worker.hold([10])
    rig.host.remove(worker.session, keys([10]))
    folder = image(rig, tmp_path / "first")
    second = tmp_path / "second"

    def at_point(passed: str) -> None:
        if passed == name and not second.exists():
            shutil.copytree(folder, second)

    with points.listening(at_point):
        heir(make_host, folder)
    new = heir(make_host, second)
    assert taken(new)["blocks"] == 4
    assert (taken(new)["frozen_slots"], taken(new)["frozen_sessions"]) == (4, 1)
    assert new.worker.read([0, 1, 2, 3, 9, 10]) == [HIT] * 4 + [MISS] * 2
    new.settle()


# ------------------------------------------------------------------------------------------------ who may still touch what


def late_write(folder: Path, offsets: "np.typing.NDArray[np.int64]") -> None:
    """A worker of before writes through the mapping that it still has."""
    raw = np.memmap(regions(folder)[0], np.uint8, "r+")
    for offset in offsets.tolist():
        raw[offset : offset + BLOCK] = 0xEE
    raw.flush()


def test_a_living_workers_reservation_stays_frozen_until_it_is_gone(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(3))
    slots = mapping_worker(rig, process.pid).reserved([20, 21]).slots["offset"].astype(np.int64)
    folder = image(rig, tmp_path / "image")
    new = heir(make_host, folder)
    assert (taken(new)["frozen_slots"], taken(new)["frozen_sessions"]) == (2, 1)
    assert all(book_of(new).table.use_of(slot) is SlotUse.QUARANTINED for slot in slots.tolist())
    mine = list(range(100, 140))
    new.worker.put(mine)  # more than there is room for: all that may be used is used
    there = sorted(new.inside("cpu"))
    assert len(there) == 30, "two slots of 32 are frozen"
    assert not {offset_of(new, number) for number in there} & set(slots.tolist())
    late_write(folder, slots)
    assert new.worker.read(there) == [HIT] * len(there)
    new.host.tick()
    assert taken(new)["frozen_slots_now"] == 2
    new.clock.advance(HAUNTED_FOR_S + 5.0)
    ok, reason = new.host.health()["holds"]
    assert (ok, "605 s for a worker whose hold lapsed" in reason) == (False, True), "somebody should look after it"
    process.kill()
    process.wait()
    new.host.tick()
    assert (taken(new)["frozen_slots_now"], taken(new)["frozen_sessions_now"]) == (0, 0)
    assert new.host.health()["holds"] == (True, "")
    new.settle()
    new.worker.put([500, 501])
    assert len(new.inside("cpu")) == 32


def test_a_view_of_a_living_worker_keeps_its_slot_from_reuse(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    worker = mapping_worker(rig, process.pid)
    worker.hold([1])
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert new.worker.read([0, 1]) == [HIT, HIT], "it is served as ever"
    slot = offset_of(new, 1)
    new.host.remove(new.worker.session, keys([1]))
    assert book_of(new).table.use_of(slot) is SlotUse.QUARANTINED
    process.kill()
    process.wait()
    new.host.tick()
    assert book_of(new).table.use_of(slot) is SlotUse.FREE
    new.settle()


def test_a_lapsed_reservation_stays_frozen_over_a_restart(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    mapping_worker(rig, process.pid).reserved([20])
    rig.clock.advance(31.0)
    rig.host.tick()
    assert rig.directory.state.counters["reservations_lapsed"] == 1
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert taken(new)["frozen_slots"] == 1


def test_a_lapsed_view_stays_frozen_over_a_restart(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    mapping_worker(rig, process.pid).hold([1])
    rig.clock.advance(31.0)
    rig.host.tick()
    assert rig.directory.state.counters["leases_lapsed"] == 1
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert (taken(new)["blocks"], taken(new)["frozen_slots"]) == (2, 1)


def test_frozen_slots_stay_frozen_over_a_second_restart(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    slot = int(mapping_worker(rig, process.pid).reserved([20]).slots["offset"][0])
    second = heir(make_host, image(rig, tmp_path / "first"))
    mapping_worker(second, process.pid).reserved([30])
    third = heir(make_host, image(second, tmp_path / "second"))
    assert (taken(third)["frozen_slots"], taken(third)["frozen_sessions"]) == (2, 2)
    assert book_of(third).table.use_of(slot) is SlotUse.QUARANTINED
    process.kill()
    process.wait()
    third.host.tick()
    assert taken(third)["frozen_slots_now"] == 0
    third.settle()


def test_sealed_and_given_up_slots_are_nobodys(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    worker = mapping_worker(rig, process.pid)
    worker.write([1])
    reply = worker.reserved([2])
    rig.host.abort(worker.session, reply.reservation, None)
    lease = worker.hold([1])
    worker.release(lease.lease)
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert (taken(new)["blocks"], taken(new)["frozen_slots"]) == (1, 0)


def test_a_worker_that_attaches_again_confirms(
    make_host: MakeHost, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    former = mapping_worker(rig, process.pid)
    former.reserved([20])
    new = heir(make_host, image(rig, tmp_path / "image"))
    stranger = mapping_worker(new, os.getpid())
    assert not new.host.confirm_unmapped(stranger.session, rig.host.epoch, former.session)
    again = mapping_worker(new, process.pid)
    assert not new.host.confirm_unmapped(again.session, rig.host.epoch, former.session + 1)
    assert taken(new)["frozen_slots_now"] == 1
    assert new.host.confirm_unmapped(again.session, rig.host.epoch, former.session)
    assert taken(new)["frozen_slots_now"] == 0
    new.settle()


def test_what_a_process_that_nobody_can_watch_may_touch_discards_the_whole(make_host: MakeHost, tmp_path: Path) -> None:
    rig = make_host(**POOL)
    rig.worker.put(range(2))
    worker = mapping_worker(rig, 0)  # of a foreign pid namespace
    kept = heir(make_host, image(rig, tmp_path / "without"))
    assert taken(kept)["blocks"] == 2, "it holds nothing"
    worker.reserved([20])
    new = heir(make_host, image(rig, tmp_path / "image"))
    assert "cannot be watched" in taken(new)["reason"]


def test_headers_have_room_for_more(make_host: MakeHost) -> None:
    """The format's fields are where workers of before look for them."""
    offsets = {name: HEADER_DTYPE.fields[name][1] for name in ("generation", "state", "key", "checksum", "haunts")}  # type: ignore[index]
    assert offsets == {"generation": 0, "state": 16, "key": 56, "checksum": 192, "haunts": 228}
    assert np.array_equal(content(1)[:4], content(1, 4))
