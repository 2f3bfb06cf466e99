"""A host with a pool on a host device, and clients of it: in this process and through a daemon."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybridkv.service.client import KV
from hybridkv.service.client.sequence import Sequence
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from tests.service.client.conftest import Backend, make_config

LAYERS, HEADS, DIM, TOKENS = 3, 2, 8, 16
LAYOUT = BlockLayout(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="float32", block_tokens=TOKENS)
SPACE = Namespace(model="paged", layout=LAYOUT)
PAYLOAD = LAYOUT.payload_bytes
GPU_BLOCKS, CPU_BLOCKS = 64, 256


@contextmanager
def paged(
    folder: Path, mode: str = "embedded", space: Namespace = SPACE, device: str = "host:0", **overrides: object
) -> Iterator[Backend]:
    """Checks the laws at the end, and that nothing is left of the sequences."""
    size = space.layout.block_bytes
    given: dict[str, object] = {
        "gpu.devices": (device,),
        "gpu.capacity_bytes": GPU_BLOCKS * size,
        "cpu.capacity_bytes": CPU_BLOCKS * size,
    }
    config = make_config(folder, **{key.replace(".", "__"): value for key, value in (given | overrides).items()})
    if mode == "embedded":
        host = Host(config)
        backend = Backend(mode, host, None, "")  # type: ignore[arg-type]
        try:
            yield backend
            _end(backend)
        finally:
            host.close()
    else:
        with DaemonThread(config) as daemon:
            backend = Backend(mode, daemon.host, None, daemon.address)  # type: ignore[arg-type]
            yield backend
            _end(backend)


def _end(backend: Backend) -> None:
    for kv in backend.opened:
        kv.close()
    assert backend.host.check() == []
    left = backend.host.stats()
    assert (left["leases"], left["reservations"], left["sessions"]) == (0, 0, 0)


def content(seed: int, tokens: int) -> npt.NDArray[np.float32]:
    """KV of so many tokens: [layers, 2, tokens, heads, dim]."""
    return np.random.default_rng(seed).standard_normal((LAYERS, 2, tokens, HEADS, DIM)).astype(np.float32)


def written(kv: KV, tokens: list[int], seed: int = 0) -> tuple[Sequence, npt.NDArray[np.float32]]:
    """An open sequence of these tokens, with their KV in it."""
    sequence = kv.open_sequence(tokens)
    made = content(seed, len(tokens))
    sequence.write(0, made)
    return sequence, made


def check(sequence: Sequence, expected: npt.NDArray[np.float32]) -> None:
    """It reads as what was written."""
    assert np.array_equal(sequence.read(0, expected.shape[2]), expected.view(np.uint32))
