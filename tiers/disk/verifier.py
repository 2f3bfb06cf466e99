"""Runs verifier processes: a few at a time, each with a share of the segments and a time limit.

A verifier that dies, or does not end within its time, speaks against the segment it was at; the rest of its share goes
to a new one. `subprocess`, never a fork of this process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hybridkv
from hybridkv.tiers.disk.folder import DATA_NAME
from hybridkv.tiers.errors import UnavailableError

_MOST_VERIFIERS = 4
_BASE_TIMEOUT_S = 60.0
_VERIFY_BYTES_PER_S = 32 << 20  # of the file; a verifier reads only a part of it
_MODULE = "hybridkv.tiers.disk.verify"

Problems = dict[Path, str | None]
"""Per segment directory: what is wrong with it, None if it is sound."""


def verify_segments(paths: Sequence[Path], *, base_timeout_s: float = _BASE_TIMEOUT_S) -> Problems:
    """Verify segment directories. Raises UnavailableError when a verifier cannot run or cannot read: that says nothing
    about the segments."""
    if not paths:
        return {}
    workers = min(_MOST_VERIFIERS, os.cpu_count() or 1, len(paths))
    shares = [list(paths[worker::workers]) for worker in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(lambda share: _verify_share(share, base_timeout_s), shares))
    return {path: problem for part in parts for path, problem in part.items()}


def _verify_share(paths: list[Path], base_timeout_s: float) -> Problems:
    problems: Problems = {}
    while len(problems) < len(paths):
        left = paths[len(problems) :]
        output, ended = _run(left, base_timeout_s)
        problems.update(zip(left, _verdicts(output), strict=False))
        if len(problems) < len(paths):
            problems[paths[len(problems)]] = ended
    return problems


def _run(paths: Sequence[Path], base_timeout_s: float) -> tuple[bytes, str]:
    """(standard output, how a verifier ended that did not speak of all of `paths`)."""
    size = sum(os.stat(path / DATA_NAME).st_size for path in paths)
    timeout_s = base_timeout_s + size / _VERIFY_BYTES_PER_S
    command = [sys.executable, "-m", _MODULE, *map(os.fspath, paths)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=_environment(), timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as expired:
        return expired.stdout or b"", f"verification did not end within {timeout_s:.0f} s"
    if done.returncode < 0:
        return done.stdout, f"verifier died of signal {-done.returncode}"
    if len(done.stdout.splitlines()) < len(paths):
        raise UnavailableError(f"the verifier failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return done.stdout, ""


def _verdicts(output: bytes) -> list[str | None]:
    """Per line of a verifier's output: what is wrong, or None."""
    problems: list[str | None] = []
    for line in output.splitlines():
        found = json.loads(line)
        if "error" in found:
            raise UnavailableError(f"cannot verify {found['path']}: {found['error']}")
        problems.append("; ".join(found["findings"]) or None)
    return problems


def _environment() -> dict[str, str]:
    """Ours, so that the child finds this package wherever it was imported from, and dies at no point of ours."""
    environment = {name: value for name, value in os.environ.items() if name != "HYBRIDKV_CRASH_AT"}
    package_root = str(Path(hybridkv.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environment.get("PYTHONPATH")]))
    return environment
