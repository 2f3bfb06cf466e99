"""The verifier process: is this segment sound? `python -m hybridkv.tiers.disk.verify PATH...`

It runs as a process of its own because it has to look at files that may be damaged in any way. First the file is
walked page by page as bytes, without LMDB: both meta pages, every tree and overflow page, the free list, counters,
order of keys, and that live and free pages do not overlap. Only a file that passes is opened with LMDB, read-only;
then every `meta` record is checked, and the header of every value at the place its record names. Payload is not
read: every read verifies it anyway.

Exit status: see `types.Exit`. One line of JSON on standard output, as soon as a segment is done, says what was found.
"""

import json
import os
import sys
from pathlib import Path

import lmdb
import lmdb.verify

from hybridkv.tiers.disk.codec import HEADER_BYTES, shape_of, unpack_header, unpack_meta
from hybridkv.tiers.disk.folder import DATA_NAME, SegmentName, manifest_problem, parse_name
from hybridkv.tiers.disk.segment import DATA_DB, LMDB_ENGINE, META_DB
from hybridkv.tiers.disk.types import Exit

_MOST_FINDINGS = 20


def structure_findings(path: Path) -> list[str]:
    """What is wrong with the pages of the file."""
    try:
        return [str(finding) for finding in lmdb.verify.verify(os.fspath(path))]  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        return [str(error)]


def content_findings(path: Path, name: SegmentName) -> tuple[int, list[str]]:
    """(blocks, what is wrong with the records). A single rotten header is no finding: that block is a miss later.

    What counts here is whether the two databases can be walked from end to end with LMDB itself.
    """
    shape = shape_of(name.block_bytes)
    size = 4 * (path / DATA_NAME).stat().st_size + (64 << 20)
    blocks = rotten = 0
    env = lmdb.open(
        os.fspath(path), readonly=True, lock=False, create=False, max_dbs=2, map_size=size, lib_version=LMDB_ENGINE
    )
    with env, (path / DATA_NAME).open("rb") as file, env.begin() as txn:
        meta = env.open_db(META_DB, txn=txn, create=False)
        data = env.open_db(DATA_DB, txn=txn, create=False)
        with txn.cursor(meta) as cursor:
            for key, raw in cursor:
                blocks += 1
                record = unpack_meta(key, raw)
                header = os.pread(file.fileno(), HEADER_BYTES, shape.header_offset(record.page)) if record else b""
                found = unpack_header(header) if len(header) == HEADER_BYTES else None
                rotten += found is None or found.fingerprint + found.key != key
        with txn.cursor(data) as cursor:
            walked = sum(1 for _ in cursor.iternext(values=False))
    findings = [f"{rotten} of {blocks} headers are wrong"] if rotten and rotten == blocks else []
    if walked < blocks // 2:
        findings.append(f"{blocks} records but {walked} values")
    return blocks, findings


def verdict(path: Path) -> dict[str, object]:
    """What is to be said of one segment directory; `error` in place of `findings` when it cannot be read."""
    name = parse_name(path.name)
    blocks = 0
    try:
        problem = manifest_problem(path, name) if name else "not a segment's name"
        findings = [problem] if problem else structure_findings(path)
        if name and not findings:
            blocks, findings = content_findings(path, name)
    except lmdb.Error as error:
        findings = [str(error)]
    except OSError as error:
        return {"path": str(path), "error": str(error)}
    return {"path": str(path), "blocks": blocks, "findings": findings[:_MOST_FINDINGS]}


def main(arguments: list[str]) -> Exit:
    """Verify segment directories; the worst verdict."""
    worst = Exit.SOUND
    for argument in arguments:
        found = verdict(Path(argument))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if "error" in found:
            worst = Exit.UNREADABLE
        elif found["findings"] and worst is Exit.SOUND:
            worst = Exit.DAMAGED
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]).value)
