"""Engines shared by the tests of this folder. Not collected where vLLM is not installed: `make test-engines` runs them."""

import argparse
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridkv.benchmarks.real_model import prepared_model
from tests.engines.engines import Daemon, EngineProcess

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

Prompt = Callable[..., list[int]]
LaunchEngine = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def model() -> Path:
    return prepared_model()


@pytest.fixture(scope="session")
def shm() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hybridkv-engines-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory, shm: Path) -> Iterator[Daemon]:
    """The daemon of most tests. At the end nothing is leased and the accounting holds."""
    running = Daemon(tmp_path_factory.mktemp("daemon"), shm / "main")
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def launch(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchEngine]:
    """Start an engine of the real model in fp32; the caller waits for it with `started`."""
    logs = tmp_path_factory.mktemp("engines")
    made: list[EngineProcess] = []

    def start(connector: dict[str, Any] | None, **arguments: Any) -> EngineProcess:
        given = {
            "model": str(model),
            "dtype": "float32",
            "block_size": 32,
            "max_model_len": 2048,
            "kv_cache_memory_bytes": 128 << 20,
            "seed": 0,
            "disable_log_stats": False,
            **arguments,
        }
        made.append(EngineProcess(logs / f"{len(made)}.log", given, connector))
        return made[-1]

    yield start
    for engine in made:
        engine.close()


@pytest.fixture(scope="session")
def engine(daemon: Daemon, launch: LaunchEngine) -> EngineProcess:
    return launch({"address": daemon.address, "retry_s": 0.1}).started()


@pytest.fixture(scope="session")
def other(daemon: Daemon, launch: LaunchEngine, engine: EngineProcess) -> EngineProcess:
    """A second engine of the same kind, in a process of its own."""
    return launch({"address": daemon.address, "retry_s": 0.1}).started()


@pytest.fixture(scope="session")
def prompt(model: Path) -> Prompt:
    """`prompt(number, tokens)`: tokens of a text of its own for each number."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = Path(argparse.__file__).read_text()

    def make(number: int, tokens: int) -> list[int]:
        words = tokenizer(f"Question {number}. " + text[number * 499 :][:12_000])["input_ids"]
        assert len(words) >= tokens
        return [int(word) for word in words[:tokens]]

    return make


@pytest.fixture
def clean(daemon: Daemon, engine: EngineProcess) -> Iterator[None]:
    """Nothing is cached when the test starts; nothing is held, and the laws hold, when it is over."""
    assert engine.do("forget")
    assert_nothing_held(daemon)  # what an earlier test still stored is sealed, and goes with the rest
    daemon.clear()
    yield
    assert_nothing_held(daemon)


def assert_nothing_held(daemon: Daemon, within_s: float = 60.0) -> None:
    """An engine stores behind its answers: what it holds for that ends by itself."""
    until = time.monotonic() + within_s
    while any(held := [daemon.stats()[name] for name in ("leases", "reservations")]) and time.monotonic() < until:
        time.sleep(0.05)
    assert held == [0, 0]
    assert daemon.check() == []
