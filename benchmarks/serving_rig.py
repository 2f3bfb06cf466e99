"""What `hybridkv bench serving` measures on: the same engine without a connector, with ours, and with LMCache's."""

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hybridkv.benchmarks.harness import Lap
from hybridkv.benchmarks.serving_processes import (
    DaemonProcess,
    EngineProcess,
    LMCacheProcess,
    python_of,
    wait_until,
)
from hybridkv.tiers.errors import InternalError, UnavailableError

ENGINES_PYTHON = ("BENCH_ENGINES_PYTHON", ".venv-engines")
LMCACHE_PYTHON = ("BENCH_LMCACHE_PYTHON", ".peers/lmcache")

PREFIX_TOKENS, REST_TOKENS, BLOCK_TOKENS = 2048, 16, 32
FAST_BF16 = ("avx512_bf16", "amx_bf16")
"""What /proc/cpuinfo calls a processor's own arithmetic in bf16. Without it vLLM emulates it, many times slower than fp32."""

TOKEN_BYTES = {"bfloat16": 23_040, "float32": 46_080}
"""KV of one token of SmolLM2-135M, by dtype."""

ENGINE = {"block_size": BLOCK_TOKENS, "max_model_len": 4096, "kv_cache_memory_bytes": 384 << 20}
OURS = {
    "kv_connector": "HybridKVConnector",
    "kv_connector_module_path": "hybridkv.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
NO_STORE = {"hybridkv.no_store": True}
LMCACHE_TRIES, LMCACHE_STORES_S = 10, 1.0


class Rig:
    """The engines, started. Each public method times one first token, and sees to it before that there is what it needs.

    A prompt costs seconds to compute, so one that was computed for a figure serves others, too: whoever runs first.
    """

    def __init__(
        self,
        daemon: DaemonProcess,
        plain: EngineProcess,
        ours: EngineProcess,
        lmcache: EngineProcess | None,
        without_lmcache: str,
    ) -> None:
        """`without_lmcache`: why there is none."""
        self.lmcache = lmcache
        self.without_lmcache = without_lmcache
        self._daemon, self._plain, self._ours = daemon, plain, ours
        self._sessions = daemon.sessions()
        self._numbers = itertools.count()
        self._recomputed: list[int] = []
        self._stored: list[list[int]] = []
        self._up: list[list[int]] = []

    def recompute(self) -> Lap:
        """No cache, no connector."""
        self._recomputed = self._prompt()
        return _lap(self._plain.first_token(self._recomputed), 0)

    def own_hit(self) -> Lap:
        """vLLM's own prefix cache."""
        if not self._recomputed:
            self.recompute()
        return _lap(self._plain.first_token(self._recomputed), PREFIX_TOKENS)

    def miss(self) -> Lap:
        """A prompt that nobody has, with our connector, nothing stored."""
        return _lap(self._ours.first_token(self._prompt(), NO_STORE), 0)

    def storing(self) -> Lap:
        """The same, with its blocks stored."""
        before, prompt = self._daemon.sealed(), self._prompt()
        lap = _lap(self._ours.first_token(prompt), 0)

        def stored() -> bool:
            self._ours.step()
            return self._daemon.sealed() >= before + PREFIX_TOKENS // BLOCK_TOKENS

        wait_until("the prompt's blocks are stored", stored)
        self._stored.append(prompt)
        self._up.append(prompt)
        return lap

    def cpu_hit(self) -> Lap:
        if not self._up:
            self.storing()
        return self._hit(self._up[-1])

    def disk_hit(self) -> Lap:
        """From disk, out of the page cache: the daemon that wrote it is gone, another began cold and has served since."""
        while len(self._stored) < 2:
            self.storing()
        if not self._below():
            self._restart(cold=True)
        if not self._up:
            self._hit(self._below()[-1])
        return self._hit(self._below()[-1])

    def restarted(self) -> Lap:
        """The first hit after the daemon was stopped and started: it took the CPU tier over, and verifies what it serves."""
        if not self._up:
            self.storing()
        self._restart(cold=False)
        return self._hit(self._up[-1])

    def lmcache_hit(self) -> Lap:
        """It stores behind our back and tells nobody when: asked until it hits; the asking that hit counts. Its engine runs
        without a prefix cache of its own, which would hit first."""
        if self.lmcache is None:
            raise UnavailableError("LMCache is not installed")
        prompt = self._prompt()
        self.lmcache.first_token(prompt)
        for _ in range(LMCACHE_TRIES):
            time.sleep(LMCACHE_STORES_S)
            seconds, cached = self.lmcache.first_token(prompt)
            if cached >= PREFIX_TOKENS:
                return Lap(seconds)
        raise UnavailableError(f"LMCache did not hit {PREFIX_TOKENS} tokens in {LMCACHE_TRIES} tries")

    def _hit(self, prompt: list[int]) -> Lap:
        """A stored prompt again, which vLLM itself has forgotten; it is in the CPU tier then."""
        self._ours.forget()
        lap = _lap(self._ours.first_token(prompt), PREFIX_TOKENS)
        if prompt not in self._up:
            self._up.append(prompt)
        return lap

    def _below(self) -> list[list[int]]:
        """The prompts that are only on disk."""
        return [prompt for prompt in self._stored if prompt not in self._up]

    def _prompt(self) -> list[int]:
        """Tokens that no earlier prompt begins with."""
        random = np.random.default_rng(next(self._numbers))
        tokens: list[int] = random.integers(1000, 40000, PREFIX_TOKENS + REST_TOKENS).tolist()
        return tokens

    def _restart(self, *, cold: bool) -> None:
        """Stop the daemon, which writes everything to disk, start another, wait until the engine is attached again."""
        self._daemon.stop()
        self._daemon.start(cold=cold)
        if cold:
            self._up.clear()

        def attached() -> bool:
            """Each half of the connector attaches again with its next call: a small prompt, stored, makes both call."""
            self._ours.first_token(self._prompt()[: 2 * BLOCK_TOKENS + 1])
            self._ours.step()
            return self._daemon.sessions() >= self._sessions

        wait_until("the engine is attached again", attached)


def dtype() -> str:
    """What the engines compute in here: bf16, or fp32 where the processor has no bf16 of its own."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "float32"
    return "bfloat16" if any(flag in flags for flag in FAST_BF16) else "float32"


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Everything started; ended with the block. Raises UnavailableError naming what is missing."""
    python = python_of(*ENGINES_PYTHON)
    if python is None:
        raise UnavailableError(
            f"no {ENGINES_PYTHON[1]}: `make test-engines` makes it, or {ENGINES_PYTHON[0]} names a Python"
        )
    arguments = {**ENGINE, "dtype": dtype(), "model": _model(python)}
    with ExitStack() as stack:
        daemon = DaemonProcess(folder, cpu="2GiB", disk="6GiB")
        stack.callback(daemon.stop)
        daemon.start()
        plain = _begin(stack, folder / "plain.log", python, arguments, None)
        extra = {"address": daemon.address, "retry_s": 0.05, "use_recompute_s": False}
        ours = _begin(stack, folder / "hybridkv.log", python, arguments, OURS | {"kv_connector_extra_config": extra})
        plain.ready()
        ours.ready()
        lmcache, reason = _lmcache(stack, folder, arguments)
        wait_until("the engine is attached", lambda: daemon.sessions() >= 1)
        yield Rig(daemon, plain, ours, lmcache, reason)


def _begin(
    stack: ExitStack, log: Path, python: Path, arguments: dict[str, Any], transfer: dict[str, Any] | None
) -> EngineProcess:
    engine = EngineProcess(log)
    stack.callback(engine.stop)
    engine.begin(python, arguments | ({"kv_transfer_config": transfer} if transfer else {}))
    return engine


def _lmcache(stack: ExitStack, folder: Path, arguments: dict[str, Any]) -> tuple[EngineProcess | None, str]:
    """LMCache's daemon and an engine on it; or None and why there is none."""
    python = python_of(*LMCACHE_PYTHON)
    if python is None:
        return (
            None,
            f"LMCache is not installed: `make peers` makes {LMCACHE_PYTHON[1]}, or {LMCACHE_PYTHON[0]} names a Python",
        )
    try:
        engine = _lmcache_engine(stack, folder, python, arguments)
        engine.ready()
    except UnavailableError as error:
        return None, f"LMCache does not run here: {str(error).strip().splitlines()[-1]}"
    return engine, ""


def _lmcache_engine(stack: ExitStack, folder: Path, python: Path, arguments: dict[str, Any]) -> EngineProcess:
    daemon = LMCacheProcess(folder)
    stack.callback(daemon.stop)
    daemon.start(python)
    extra = {"lmcache.mp.host": "grpc://127.0.0.1", "lmcache.mp.port": daemon.port}
    transfer = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    uncached = arguments | {"enable_prefix_caching": False}
    return _begin(stack, folder / "lmcache-engine.log", python, uncached, transfer)


def _model(python: Path) -> str:
    """The real model's folder, prepared by the Python that can."""
    done = subprocess.run(
        [str(python), "-m", "hybridkv.benchmarks.real_model"], capture_output=True, text=True, env=dict(os.environ)
    )
    if done.returncode:
        raise UnavailableError(f"no model: {done.stderr.strip()[-500:]}")
    return done.stdout.strip().splitlines()[-1]


def _lap(measured: tuple[float, int], cached: int) -> Lap:
    """The lap of a first token. Raises InternalError unless as many tokens came from a cache as belong: no figure is better
    than one of something else."""
    seconds, found = measured
    if found != cached:
        raise InternalError(f"{found} tokens of the prompt came from a cache, {cached} belong")
    return Lap(seconds)
