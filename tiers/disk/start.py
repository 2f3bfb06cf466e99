"""A start: which segments can be trusted, and what they hold.

After a clean stop a segment whose file looks as it did then is trusted. Any other is verified first, in a process of its
own with a time limit; what does not pass, and what is of a format we do not know, is moved aside.
"""

from collections.abc import Iterator
from itertools import compress, groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.disk.codec import (
    FINGERPRINT_BYTES,
    MAX_KEY_BYTES,
    META_BYTES,
    META_CHECKSUM_OFFSET,
    META_PARENT_OFFSET,
    META_STORED_AT_OFFSET,
    META_SUM_OFFSET,
    VERSION,
    meta_sum,
)
from hybridkv.tiers.disk.folder import (
    DATA_NAME,
    SegmentName,
    Stamp,
    clear_leftovers,
    manifest_problem,
    move_aside,
    parse_name,
    remove_segment_directory,
    take_marker,
)
from hybridkv.tiers.disk.segment import Segment
from hybridkv.tiers.disk.shelf import Shelf
from hybridkv.tiers.disk.types import Recovered, RecoveredRun, SetAside
from hybridkv.tiers.disk.verifier import verify_segments
from hybridkv.tiers.points import point

_META_DTYPE = np.dtype(
    {
        "names": ["version", "parent_len", "checksum", "stored_at", "sum"],
        "formats": ["<u2", "<u2", "<u8", "<f8", "<u8"],
        "offsets": [0, 2, META_CHECKSUM_OFFSET, META_STORED_AT_OFFSET, META_SUM_OFFSET],
        "itemsize": META_BYTES,
    }
)


def trusted_segments(
    root: Path, marker: dict[str, Stamp] | None, *, verify: bool
) -> tuple[list[SegmentName], list[SetAside]]:
    """Segments of `root` that may be opened, in order; the others are moved aside, empty ones removed."""
    good: list[SegmentName] = []
    aside: list[SetAside] = []
    to_verify: list[SegmentName] = []
    for name in _segment_names(root):
        path = root / str(name)
        problem = manifest_problem(path, name)
        if problem:
            aside.append(_set_aside(root, name, problem))
        elif not (path / DATA_NAME).exists():
            remove_segment_directory(path)
        elif not verify or (marker is not None and marker.get(str(name)) == Stamp.of(path)):
            good.append(name)
        else:
            to_verify.append(name)
    problems = verify_segments([root / str(name) for name in to_verify])
    for name in to_verify:
        if problem := problems[root / str(name)]:
            aside.append(_set_aside(root, name, problem))
        else:
            good.append(name)
    return sorted(good, key=lambda name: name.number), aside


def _segment_names(root: Path) -> list[SegmentName]:
    names = (parse_name(entry.name) for entry in root.iterdir() if entry.is_dir())
    return sorted((name for name in names if name), key=lambda name: name.number)


def _set_aside(root: Path, name: SegmentName, reason: str) -> SetAside:
    move_aside(root, root / str(name), reason)
    return SetAside(str(name), name.number, reason)


def bring_up(shelf: Shelf, *, verify: bool) -> Recovered:
    """Open what can be trusted in the shelf's directory, whose lock we hold, and list it.

    Raises OSError and UnavailableError; what was opened until then stays for the caller to close.
    """
    clear_leftovers(shelf.root)
    marker = take_marker(shelf.root)
    point("disk.start.marker_taken")
    names, aside = trusted_segments(shelf.root, marker, verify=verify)
    point("disk.start.verified")
    aside += [SetAside(str(name), name.number, reason) for name, reason in shelf.open_all(names)]
    runs: list[RecoveredRun] = []
    dropped = 0
    for number in sorted(shelf.segments):
        found, lost = recover(shelf.segments[number])
        runs += found
        dropped += lost
    point("disk.start.listed")
    return Recovered(runs, aside, marker is not None and not aside, dropped)


def recover(segment: Segment) -> tuple[list[RecoveredRun], int]:
    """(what a segment holds, records dropped). Reads `meta` only, unless the databases differ in size."""
    halves = set(segment.half_present()) if segment.halved else set()
    records = segment.scan()
    if any(len(raw) != META_BYTES for _, raw in records):
        halves.update(name for name, raw in records if len(raw) != META_BYTES)
    if halves:
        records = [record for record in records if record[0] not in halves]
    columns = np.frombuffer(b"".join(raw for _, raw in records), dtype=_META_DTYPE)
    sums = np.fromiter((meta_sum(name, raw) for name, raw in records), np.uint64, len(records))
    sound = (sums == columns["sum"]) & (columns["version"] == VERSION) & (columns["parent_len"] <= MAX_KEY_BYTES)
    if not sound.all():
        halves.update(records[i][0] for i in np.flatnonzero(~sound).tolist())
        records, columns = list(compress(records, sound.tolist())), columns[sound]
    segment.doom(halves)
    return list(_runs(segment, records, columns)), len(halves)


def _runs(
    segment: Segment, records: list[tuple[bytes, bytes]], columns: npt.NDArray[np.void]
) -> Iterator[RecoveredRun]:
    ends = (columns["parent_len"].astype(np.int64) + META_PARENT_OFFSET).tolist()
    start = 0
    for fingerprint, group in groupby(name[:FINGERPRINT_BYTES] for name, _ in records):
        stop = start + sum(1 for _ in group)
        yield RecoveredRun(
            segment=segment.name.number,
            block_bytes=segment.name.block_bytes,
            fingerprint=fingerprint,
            keys=[name[FINGERPRINT_BYTES:] for name, _ in records[start:stop]],
            parents=[
                raw[META_PARENT_OFFSET:end] for (_, raw), end in zip(records[start:stop], ends[start:stop], strict=True)
            ],
            checksums=columns["checksum"][start:stop].astype(np.uint64),
            stored_at=columns["stored_at"][start:stop].astype(np.float64),
        )
        start = stop
