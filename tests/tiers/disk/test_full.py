"""A full file system, a real one where mounting is allowed: writes stop, what is there is served, also by a new start."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from hybridkv.tiers.disk import DiskState
from hybridkv.tiers.disk.lockfile import LOCK_NAME
from hybridkv.tiers.errors import UnavailableError

from .conftest import Kit

_SMALL_DISK = """
import hashlib, os, subprocess, sys
from pathlib import Path
from hybridkv.tiers.disk import DiskBlock, DiskRef, DiskStore, ReadOutcome
from hybridkv.tiers.errors import ResourceExhaustedError
import xxhash
path = Path(sys.argv[1])
path.mkdir()
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(path)], capture_output=True).returncode:
    sys.exit("cannot mount")
def block(number):
    payload = hashlib.shake_128(number.to_bytes(8, "little")).digest(65536)
    return DiskBlock(bytes(32), number.to_bytes(8, "little"), b"", xxhash.xxh3_64_intdigest(payload), memoryview(payload))
def opened():
    store = DiskStore(path / "store", 16 << 20)
    return store, len(store.open())
def served():
    buffers = [bytearray(65536) for _ in stored]
    refs = [DiskRef(bytes(32), b.key, s, b.checksum, 65536) for b, s in stored]
    return store.read(refs, [memoryview(b) for b in buffers]) == [ReadOutcome.OK] * len(stored) and all(
        bytes(found) == b.payload for found, (b, _) in zip(buffers, stored))
store, _ = opened()
stored = []
error = None
while error is None and len(stored) < 64:
    try:
        fresh = block(len(stored))
        stored.append((fresh, store.put([fresh])[0]))
    except ResourceExhaustedError as caught:
        error = caught
print(type(error).__name__, store.state.value, len(stored) > 20, served(), store.probe().state.value)
store.close()
other = os.open(path / "others", os.O_CREAT | os.O_WRONLY)
try:
    while os.write(other, bytes(4096)):
        pass
except OSError:
    pass
store, found = opened()
print(found == len(stored), store.state.value, served())
subprocess.run(["mount", "-o", "remount,size=64m", str(path)], check=True)
print(store.probe().state.value, served(), len(store.put([block(100)])))
"""


def test_a_full_file_system_stops_writes_only_and_ends_when_there_is_room(kit: Kit) -> None:
    """On a real file system of 3 MiB, in a mount namespace of its own; a start meanwhile serves what is there."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [unshare, "-Urm", sys.executable, "-c", _SMALL_DISK, str(kit.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "cannot mount" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.stdout.splitlines() == [
        "ResourceExhaustedError read_only True True read_only",
        "True on True",
        "on True 1",
    ], done.stderr


def test_a_start_without_room_for_the_pid_serves_what_is_there(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kit.store()
    store.open()
    blocks = kit.blocks(range(3))
    segments = store.put(blocks)
    store.close()
    full = OSError(errno.ENOSPC, "injected")

    def no_room(fd: int, data: bytes, offset: int) -> int:
        raise full

    again = kit.store()
    monkeypatch.setattr(os, "pwrite", no_room)
    assert len(again.open()) == 3
    kit.expect(again, blocks, segments)
    with pytest.raises(UnavailableError, match="in use by process unknown"):
        kit.store().open()  # the lock holds all the same
    assert (kit.path / LOCK_NAME).read_text() == ""
    full = OSError(errno.EIO, "injected")
    again.close()
    with pytest.raises(UnavailableError, match="injected"):
        again.open()
    assert again.state is DiskState.OFF
