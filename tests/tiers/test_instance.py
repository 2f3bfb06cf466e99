"""One daemon per folder; a dead one's regions are cleared or kept, a living one's are never touched."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError
from hybridkv.tiers.instance import claim_instance
from hybridkv.tiers.shm import PAGE_BYTES, SharedRegion

OWNER = """
import sys
from pathlib import Path
from hybridkv.tiers.instance import claim_instance
from hybridkv.tiers.shm import SharedRegion
claimed = claim_instance(Path(sys.argv[1]), "main")
SharedRegion.create(claimed.region_path("cpu.data"), 4096)
print("claimed", flush=True)
input()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def owner(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has claimed the instance "main" and made one region."""
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_a_living_daemon_keeps_its_folder_and_is_named(folder: Path, owner: "subprocess.Popen[str]") -> None:
    with pytest.raises(UnavailableError, match=f"in use by pid {owner.pid}"):
        claim_instance(folder, "main")
    assert (folder / f"hybridkv-{os.getuid()}-main" / "cpu.data.region").exists()


def test_a_killed_daemons_regions_are_removed(folder: Path, owner: "subprocess.Popen[str]") -> None:
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    claimed = claim_instance(folder, "main")
    assert claimed.stale == ()
    with SharedRegion.create(claimed.region_path("cpu.data"), PAGE_BYTES) as region:
        assert region.nbytes == PAGE_BYTES
    claimed.close()


def test_a_killed_daemons_regions_can_be_taken_over(folder: Path, owner: "subprocess.Popen[str]") -> None:
    owner.kill()
    owner.wait()
    claimed = claim_instance(folder, "main", keep=True)
    assert claimed.stale == (claimed.region_path("cpu.data"),)
    assert claimed.stale[0].stat().st_size == 4096
    claimed.close()


def test_a_full_file_system_refuses_no_start_for_the_name_in_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock holds without it; but it must not go on naming the one before."""
    claim_instance(folder, "main").close(keep=True)

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    claimed = claim_instance(folder, "main")
    assert "cannot be signed: No space left on device" in caplog.text
    with pytest.raises(UnavailableError, match="in use by a process that has not signed it"):
        claim_instance(folder, "main")
    claimed.close()


def test_close_leaves_nothing_behind_and_frees_the_name(folder: Path) -> None:
    claimed = claim_instance(folder, "main")
    SharedRegion.create(claimed.region_path("gpu0.headers"), PAGE_BYTES).close()
    claimed.close()
    claimed.close()
    assert list(folder.iterdir()) == []
    claim_instance(folder, "main").close()


def test_close_with_keep_leaves_the_regions_for_the_next(folder: Path) -> None:
    claimed = claim_instance(folder, "main")
    SharedRegion.create(claimed.region_path("cpu.data"), PAGE_BYTES).close()
    claimed.close(keep=True)
    again = claim_instance(folder, "main", keep=True)
    assert [path.name for path in again.stale] == ["cpu.data.region"]
    again.close()


def test_instances_do_not_disturb_each_other(folder: Path) -> None:
    first, second = claim_instance(folder, "a"), claim_instance(folder, "b")
    SharedRegion.create(first.region_path("cpu.data"), PAGE_BYTES).close()
    second.close()
    assert first.region_path("cpu.data").exists()
    first.close()


FORKING = """
import os, sys
from pathlib import Path
from hybridkv.tiers.instance import claim_instance
claimed = claim_instance(Path(sys.argv[1]), "main")
if os.fork() == 0:
    print("child", flush=True)
    input()  # outlives its parent
os._exit(0)
"""


def test_a_forked_child_does_not_keep_a_dead_parents_lock(folder: Path) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-c", FORKING, str(folder)]
    with subprocess.Popen(command, stdin=read, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "child\n"
        parent.wait()
        claim_instance(folder, "main").close()
        os.write(write, b"\n")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_names_that_are_no_file_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="instance"):
        claim_instance(folder, name)
    assert list(folder.iterdir()) == []


def test_a_link_laid_in_the_way_is_not_followed(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / f"hybridkv-{os.getuid()}-main").symlink_to(folder / "elsewhere")
    with pytest.raises(UnavailableError, match="not a folder of user"):
        claim_instance(folder, "main")
    assert list((folder / "elsewhere").iterdir()) == []


def test_a_missing_shm_dir_is_a_typed_error(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be claimed"):
        claim_instance(folder / "none", "main")
