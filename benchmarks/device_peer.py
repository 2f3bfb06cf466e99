"""A second process for device checks: maps another process's pool, verifies blocks in it and writes others.

`python -m hybridkv.benchmarks.device_peer` reads one JSON line, answers with one, and stays until its input ends, so
that its event and its mapping live while the other process uses them. `Peer` is the other end.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import AllocationHandle, Device, ImportedPool
from hybridkv.tiers.gpu import import_pool

DELAY_CYCLES = 500_000_000  # GPU cycles a CUDA peer's stream is busy before it writes: about 0.3 s


def pattern(seed: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """The bytes that both processes expect of block `seed`."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@dataclass(frozen=True)
class Answer:
    """What the peer found and did. `wrong`: the offsets whose bytes were not as expected."""

    wrong: list[int]
    event: bytes


class Peer:
    """A running peer process. Use as a context manager; leaving it ends the process and checks how it ended."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hybridkv.benchmarks.device_peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=() if fd is None else (fd,),
            text=True,
        )

    def ask(
        self, handles: Sequence[AllocationHandle], nbytes: int, read: dict[int, int], write: dict[int, int]
    ) -> Answer:
        """Verify and write blocks of `nbytes`, given as offset -> seed. The writes are done once the event is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        packed = [asdict(handle) | {"payload": handle.payload.hex()} for handle in handles]
        question = {
            "fd": self._fd,
            "handles": packed,
            "nbytes": nbytes,
            "read": [*read.items()],
            "write": [*write.items()],
        }
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer process ended with {self._process.wait()} before it answered")
        answer = json.loads(line)
        return Answer(answer["wrong"], bytes.fromhex(answer["event"]))

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        if self._process.returncode:
            raise RuntimeError(f"the peer process ended with {self._process.returncode}")


def serve(device: Device, pool: ImportedPool, question: dict[str, Any]) -> dict[str, Any]:
    """Carry out one question on a mapped pool."""
    nbytes = question["nbytes"]
    wrong = [
        offset
        for offset, seed in question["read"]
        if not np.array_equal(pool.view(offset, nbytes).cpu().numpy(), pattern(seed, nbytes))
    ]
    _be_slow(device)
    for offset, seed in question["write"]:
        _write(pool, offset, pattern(seed, nbytes))
    return {"wrong": wrong, "event": device.export_event(device.record_event()).hex()}


def _write(pool: ImportedPool, offset: int, data: npt.NDArray[np.uint8]) -> None:
    import torch

    view = pool.view(offset, data.nbytes)
    source = torch.from_numpy(data)
    if view.is_cuda:
        source = source.pin_memory()  # asynchronous: only the event says when the write has happened
    view.copy_(source, non_blocking=True)


def _be_slow(device: Device) -> None:
    """Keep the GPU's stream busy, so that whoever does not wait for the event sees the writes missing."""
    if device.kind == "cuda":
        import torch

        with torch.cuda.device(device.index):
            torch.cuda._sleep(DELAY_CYCLES)  # type: ignore[no-untyped-call]


def main() -> None:
    question = json.loads(sys.stdin.readline())
    handles = [
        AllocationHandle(**{**handle, "payload": bytes.fromhex(handle["payload"])}) for handle in question["handles"]
    ]
    device, pool = import_pool(handles, fd=question["fd"], writable=True)
    answer = serve(device, pool, question)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    if device.kind == "cuda":
        import torch

        torch.cuda.synchronize(device.index)
    pool.close()


if __name__ == "__main__":
    main()
