"""Regions: what they keep, what they refuse, and what a forked child sees of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from hybridkv.tiers.shm import PAGE_BYTES, SharedRegion

NBYTES = 64 * PAGE_BYTES


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def region(folder: Path) -> Iterator[SharedRegion]:
    with SharedRegion.create(folder / "r", NBYTES) as region:
        yield region


def run_child(code: str, *fds: int) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a new interpreter; it finds the descriptors in sys.argv."""
    command = [sys.executable, "-c", code, *map(str, fds)]
    return subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=60, check=False)


def test_a_new_region_is_sparse_private_and_zero(folder: Path) -> None:
    with SharedRegion.create(folder / "r", 1 << 36) as region:
        assert os.stat(folder / "r").st_mode & 0o777 == 0o600
        assert region.committed_bytes() == 0
        assert region.array.nbytes == 1 << 36
        assert not region.array[:PAGE_BYTES].any()


def test_what_one_mapping_writes_the_other_reads(region: SharedRegion) -> None:
    with SharedRegion.attach(os.dup(region.fd), NBYTES, True) as other:
        other.array[5] = 7
        assert region.array[5] == 7


@pytest.mark.parametrize("nbytes", [0, -4096, 5000])
def test_odd_sizes_are_refused(folder: Path, nbytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="nbytes"):
        SharedRegion.create(folder / "r", nbytes)
    assert not (folder / "r").exists()


def test_an_existing_file_is_never_taken(folder: Path) -> None:
    (folder / "r").write_bytes(b"mine")
    with pytest.raises(FailedPreconditionError, match="exists"):
        SharedRegion.create(folder / "r", NBYTES)
    assert (folder / "r").read_bytes() == b"mine"


def test_commit_takes_room_and_keeps_bytes(region: SharedRegion) -> None:
    region.array[PAGE_BYTES] = 9
    region.commit(0, 4 * PAGE_BYTES)
    assert region.committed_bytes() == 4 * PAGE_BYTES
    assert region.array[PAGE_BYTES] == 9


def test_release_gives_room_back_and_leaves_the_neighbours(region: SharedRegion) -> None:
    region.commit(0, 4 * PAGE_BYTES)
    region.array[: 4 * PAGE_BYTES] = 1
    region.release(PAGE_BYTES, 2 * PAGE_BYTES)
    assert region.committed_bytes() == 2 * PAGE_BYTES
    assert region.array[: 4 * PAGE_BYTES : PAGE_BYTES].tolist() == [1, 0, 0, 1]
    assert region.nbytes == os.fstat(region.fd).st_size


def test_a_full_file_system_is_an_error_with_figures_not_a_signal(folder: Path) -> None:
    room = os.statvfs(folder)
    nbytes = (room.f_blocks * room.f_frsize // PAGE_BYTES + 1) * PAGE_BYTES  # more than the whole file system
    with SharedRegion.create(folder / "r", nbytes) as region:
        with pytest.raises(ResourceExhaustedError, match=f"{nbytes} bytes asked") as caught:
            region.commit(0, nbytes)
        assert caught.value.resource == "shared memory"
        assert region.committed_bytes() == 0


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 10), (0, 0), (NBYTES, 1), (0, NBYTES + 1)])
def test_ranges_outside_are_refused(region: SharedRegion, offset: int, nbytes: int) -> None:
    for call in (region.commit, region.release):
        with pytest.raises(InvalidArgumentError, match="outside"):
            call(offset, nbytes)


def test_release_refuses_parts_of_pages(region: SharedRegion) -> None:
    with pytest.raises(InvalidArgumentError, match="aligned"):
        region.release(512, PAGE_BYTES)


def test_a_claim_beyond_the_file_is_refused_and_the_descriptor_closed(region: SharedRegion) -> None:
    fd = os.dup(region.fd)
    with pytest.raises(FailedPreconditionError, match=f"{NBYTES + PAGE_BYTES} bytes claimed"):
        SharedRegion.attach(fd, NBYTES + PAGE_BYTES, False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_pipe_is_no_region() -> None:
    read, write = os.pipe()
    with pytest.raises(FailedPreconditionError):
        SharedRegion.attach(read, PAGE_BYTES, False)
    os.close(write)


def test_a_read_only_descriptor_cannot_be_mapped_writable(region: SharedRegion) -> None:
    with pytest.raises(FailedPreconditionError, match="Permission denied"):
        SharedRegion.attach(region.read_only_fd(), NBYTES, True)


def test_a_read_only_array_cannot_be_made_writable(region: SharedRegion) -> None:
    with SharedRegion.attach(region.read_only_fd(), NBYTES, False) as reader:
        assert not reader.array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            reader.array[0] = 1
        with pytest.raises(ValueError):
            reader.array.flags.writeable = True


STRAY_WRITE = """
import ctypes, sys
from hybridkv.tiers.shm import SharedRegion
region = SharedRegion.attach(int(sys.argv[1]), {nbytes}, False)
print(region.array[0], flush=True)
ctypes.memset(region.array.ctypes.data, 1, 1)
"""


def test_a_stray_write_through_a_read_only_mapping_kills_the_writer_not_the_block(region: SharedRegion) -> None:
    region.array[0] = 42
    fd = region.read_only_fd()
    child = run_child(STRAY_WRITE.format(nbytes=NBYTES), fd)
    os.close(fd)
    assert child.stdout == "42\n", child.stderr
    assert child.returncode == -signal.SIGSEGV
    assert region.array[0] == 42


UNPROTECT = """
import ctypes, mmap, os, sys
from hybridkv.tiers.shm import SharedRegion
region = SharedRegion.attach(int(sys.argv[1]), {nbytes}, False)
libc = ctypes.CDLL(None, use_errno=True)
address = ctypes.c_void_p(region.array.ctypes.data)
print(libc.mprotect(address, ctypes.c_size_t({nbytes}), mmap.PROT_READ | mmap.PROT_WRITE), ctypes.get_errno())
"""


def test_mprotect_cannot_open_a_read_only_mapping(region: SharedRegion) -> None:
    fd = region.read_only_fd()
    child = run_child(UNPROTECT.format(nbytes=NBYTES), fd)
    os.close(fd)
    assert child.stdout.split() == ["-1", "13"], child.stderr  # EACCES


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_views_outlive_close_and_the_mapping_goes_with_the_last(folder: Path) -> None:
    region = SharedRegion.create(folder / "r", NBYTES)
    view = region.array[10:20].view(np.uint16)
    view[:] = 515
    region.close()
    region.close()
    assert view.tolist() == [515] * 5
    assert maps_of(folder / "r") == 1
    del view
    assert maps_of(folder / "r") == 0
    with pytest.raises(FailedPreconditionError, match="closed"):
        region.array  # noqa: B018
    with pytest.raises(FailedPreconditionError, match="closed"):
        region.commit(0, PAGE_BYTES)


def test_close_lets_go_of_every_descriptor(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    region = SharedRegion.create(folder / "r", NBYTES)
    view = region.array[:1]
    region.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert view[0] == 0


def test_a_region_that_is_dropped_closes_itself(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    view = SharedRegion.create(folder / "r", NBYTES).array[:1]
    assert len(os.listdir("/proc/self/fd")) == before
    assert view[0] == 0


def test_unlink_removes_the_regions_own_file_only(folder: Path) -> None:
    with SharedRegion.create(folder / "r", NBYTES) as old:
        (folder / "r").unlink()
        with SharedRegion.create(folder / "r", NBYTES) as new:
            old.unlink()
            assert (folder / "r").exists()
            new.unlink()
            assert not (folder / "r").exists()


FORKED = """
import ctypes, gc, os, sys
from pathlib import Path
from hybridkv.tiers.shm import SharedRegion
path = Path(sys.argv[1])
region = SharedRegion.create(path, {nbytes})
view = region.array[:8]
view[0] = 1
address = ctypes.c_void_p(region.array.ctypes.data)
pid = os.fork()
if pid == 0:
    names = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert region.closed
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert str(path) not in names, names
    if sys.argv[2] == "touch":
        view[0]
    del view, region
    gc.collect()
    still_reserved = ctypes.CDLL(None).madvise(address, ctypes.c_size_t({nbytes}), 0) == 0
    os._exit(5 if still_reserved else 6)  # unmapping it here could hit what the child has put there
_, status = os.waitpid(pid, 0)
assert region.array[0] == 1
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(("deed", "end"), [("leave", 5), ("touch", -signal.SIGSEGV)])
def test_a_forked_child_has_neither_mapping_nor_descriptor(folder: Path, deed: str, end: int) -> None:
    command = [sys.executable, "-c", FORKED.format(nbytes=NBYTES), str(folder / "r"), deed]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.stdout.split() == [str(int(end))], child.stderr


def test_huge_pages_are_asked_for_and_the_refusal_is_told(folder: Path) -> None:
    with SharedRegion.create(folder / "r", 4 << 20, huge_pages=True) as region:
        told = region.request_huge_pages()
        region.array[:] = 1
        assert told is None or "shmem_enabled" in told or "madvise" in told
