"""SIGKILL at every named point of the disk tier: what was acknowledged is there, what is there is whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridkv.tiers.disk import ReadOutcome
from hybridkv.tiers.points import POINTS

from .conftest import Kit

_WORKLOAD = """
import hashlib, json, sys
from pathlib import Path
import xxhash
from hybridkv.tiers.disk import DiskBlock, DiskRef, DiskStore

def block(number):
    payload = hashlib.shake_128(number.to_bytes(8, "little")).digest(65536)
    key = hashlib.shake_256(number.to_bytes(8, "little")).digest(32)
    return DiskBlock(bytes(range(32)), key, b"", xxhash.xxh3_64_intdigest(payload), memoryview(payload))

def say(*words):
    print(*words, flush=True)

store = DiskStore(Path(sys.argv[1]), 16 << 20)
store.open()
say("opened")
for number in range(6):
    (segment,) = store.put([block(number)])
    say("stored", number, segment)
store.read([DiskRef(bytes(range(32)), block(0).key, segment, block(0).checksum, 65536)], [memoryview(bytearray(65536))])
for number in (0, 1):
    say("deleting", number)
    store.delete([(bytes(range(32)), block(number).key, segment)], durable=True)
    say("deleted", number)
store.put([block(50)])
say("dropping")
store.drop_segment(segment)
say("dropped")
(segment,) = store.put([block(60)])
say("stored", 60, segment)
store.close()
say("closed")
"""

DISK_POINTS = [name for name in POINTS if name.startswith("disk.") and name != "disk.aside.before_move"]


def _run(path: Path, crash_at: str | None) -> tuple[int, list[list[str]]]:
    environment = {name: value for name, value in os.environ.items() if name != "HYBRIDKV_CRASH_AT"}
    if crash_at:
        environment["HYBRIDKV_CRASH_AT"] = crash_at
    done = subprocess.run(
        [sys.executable, "-c", _WORKLOAD, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [line.split() for line in done.stdout.splitlines()]


def _check(kit: Kit, said: list[list[str]]) -> None:
    """The store holds at least what was acknowledged and not meant to go, and nothing that cannot be read."""
    acknowledged = {int(words[1]) for words in said if words[0] == "stored"}
    going = {int(words[1]) for words in said if words[0] == "deleting"}
    gone = {int(words[1]) for words in said if words[0] == "deleted"}
    if ["dropping"] in said:
        going |= set(range(51))
    if ["dropped"] in said:
        gone |= set(range(51))
    store = kit.store()
    found = store.open()
    assert found.aside == []
    numbers = {kit.key(number): number for number in range(61)}
    listed = {numbers[block.key]: block.segment for block in found}
    assert acknowledged - going <= set(listed)
    assert not gone & set(listed)
    kit.expect(store, kit.blocks(list(listed)), list(listed.values()))
    missing = [number for number in range(61) if number not in listed]
    assert kit.read(store, kit.refs(kit.blocks(missing), [1] * len(missing)))[0] == [ReadOutcome.MISSING] * len(missing)
    assert store.usage().live_blocks == len(listed)
    kit.expect(store, [kit.block(70)], store.put([kit.block(70)]))


@pytest.mark.parametrize("name", DISK_POINTS)
def test_kill_at_every_point_of_the_disk_tier(kit: Kit, name: str) -> None:
    code, said = _run(kit.path, name)
    assert code == -signal.SIGKILL, f"{name} was never passed"
    _check(kit, said)


def test_the_workload_itself_passes(kit: Kit) -> None:
    code, said = _run(kit.path, None)
    assert (code, said[-1]) == (0, ["closed"])
    _check(kit, said)


def test_kill_while_a_segment_is_moved_aside(kit: Kit) -> None:
    _run(kit.path, "disk.put.committed:4")
    (path,) = kit.path.glob("seg-*")
    (path / "manifest.json").write_text("{}")
    code, said = _run(kit.path, "disk.aside.before_move")
    assert (code, said) == (-signal.SIGKILL, [])
    found = kit.store().open()
    assert len(found) == 0
    assert [item.name for item in found.aside] == [path.name]
