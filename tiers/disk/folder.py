"""The files of a store's directory.

    lock                    flock of the running store, holds its pid
    clean                   written last by a clean stop: what each segment's file looked like
    seg-<n>-<block_bytes>/  a segment: manifest.json, and LMDB's data.mdb and lock.mdb
    new-<n>, old-seg-<…>    half made, half removed: cleared away at the next start
    aside/                  segments that cannot be trusted or understood; they count against the cap, and go first

What is read here is small, and nothing of it is handed to LMDB before the manifest's version is known.
"""

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hybridkv.tiers.points import point

DATA_NAME = "data.mdb"
LMDB_LOCK_NAME = "lock.mdb"
MANIFEST_NAME = "manifest.json"
MARKER_NAME = "clean"
ASIDE_NAME = "aside"
STORE_MAGIC = "hybridkv-segment"
STORE_VERSION = 1
_SEGMENT = re.compile(r"seg-(\d{1,9})-(\d{4,12})")
_LEFTOVER = re.compile(r"new-(\d{1,9}|clean|probe)|old-seg-\d{1,9}-\d{4,12}")
"""What a crash may leave of our own; another's `old-photos` is none of our business."""
_MAX_SMALL_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Number and block size of a segment, as its directory's name tells them."""

    number: int
    block_bytes: int

    def __str__(self) -> str:
        return f"seg-{self.number}-{self.block_bytes}"


def parse_name(name: str) -> SegmentName | None:
    """The segment a directory name means, None if it means none."""
    match = _SEGMENT.fullmatch(name)
    return SegmentName(int(match[1]), int(match[2])) if match else None


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` with `content`, whole or not at all."""
    temporary = path.with_name(f"new-{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def make_segment_directory(root: Path, name: SegmentName) -> Path:
    """A directory with its manifest, under its final name only when complete."""
    temporary = root / f"new-{name.number}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    manifest = {"magic": STORE_MAGIC, "version": STORE_VERSION, "block_bytes": name.block_bytes}
    write_durably(temporary / MANIFEST_NAME, json.dumps(manifest).encode())
    path = root / str(name)
    temporary.rename(path)
    point("disk.segment.named")
    sync_directory(root)
    return path


def manifest_problem(path: Path, name: SegmentName) -> str | None:
    """Why the segment in `path` is not one we understand; None if it is."""
    manifest = read_small_json(path / MANIFEST_NAME)
    if manifest is None or manifest.get("magic") != STORE_MAGIC:
        return "no readable manifest"
    if manifest.get("version") != STORE_VERSION:
        return f"format version {manifest.get('version')}, this is {STORE_VERSION}"
    if manifest.get("block_bytes") != name.block_bytes:
        return f"manifest names blocks of {manifest.get('block_bytes')} bytes"
    return None


def read_small_json(path: Path) -> dict[str, object] | None:
    """The object in `path`; None if the file is missing, damaged or not one. Other OSErrors are the caller's."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_SMALL_FILE_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def remove_segment_directory(path: Path) -> None:
    """Take a segment's directory away: out of its name in one step, then file by file."""
    doomed = path.with_name(f"old-{path.name}")
    point("disk.segment.before_unlink")
    path.rename(doomed)
    point("disk.segment.unlinking")
    shutil.rmtree(doomed)
    sync_directory(path.parent)
    point("disk.segment.unlinked")


def move_aside(root: Path, path: Path, reason: str) -> Path:
    """Move a segment to `aside/`, with a note of the reason."""
    aside = root / ASIDE_NAME
    aside.mkdir(mode=0o700, exist_ok=True)
    target = aside / path.name
    attempt = 1
    while target.exists():
        attempt += 1
        target = aside / f"{path.name}.{attempt}"
    point("disk.aside.before_move")
    path.rename(target)
    with contextlib.suppress(OSError):  # the note is for people; a full or read-only disk must not stop the move
        (target / "reason.txt").write_text(reason + "\n")
    sync_directory(root)
    return target


def clear_leftovers(root: Path) -> None:
    """Remove what a crash left half made or half removed."""
    for entry in list(root.iterdir()):
        if _LEFTOVER.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def bytes_on_disk(path: Path) -> int:
    """What the file system holds for everything under `path` (allocated, or apparent where that is more)."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name))
                total += max(found.st_size, found.st_blocks * 512)
    return total


@dataclass(frozen=True, slots=True)
class Stamp:
    """How a segment's file looked at a clean stop; any write by anyone changes it."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, segment_path: Path) -> "Stamp":
        found = os.stat(segment_path / DATA_NAME)
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


def write_marker(root: Path, stamps: dict[str, Stamp]) -> None:
    """Say that the store was stopped cleanly."""
    content = {name: [stamp.size, stamp.mtime_ns, stamp.inode] for name, stamp in stamps.items()}
    point("disk.close.before_marker")
    write_durably(root / MARKER_NAME, json.dumps({"version": STORE_VERSION, "segments": content}).encode())
    point("disk.close.marker_written")


def take_marker(root: Path) -> dict[str, Stamp] | None:
    """The stamps of a clean stop, whose marker is removed durably; None after any other stop."""
    found = read_small_json(root / MARKER_NAME)
    with contextlib.suppress(FileNotFoundError):
        (root / MARKER_NAME).unlink()
        sync_directory(root)
    segments = found.get("segments") if found and found.get("version") == STORE_VERSION else None
    if not isinstance(segments, dict):
        return None
    try:
        return {str(name): Stamp(*map(int, values)) for name, values in segments.items()}
    except (TypeError, ValueError):
        return None
