"""One vLLM engine in a process of its own, for `hybridkv bench serving`: commands on stdin, answers on stdout, JSON lines.

Runs in any virtual environment that has vLLM and imports nothing else, so that peers' environments need no hybridkv:
`python -P serving_engine.py '{"model": …, "kv_transfer_config": …}'`. What vLLM prints goes to stderr.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

SHORT = [5, 6, 7]
FORGET_STEPS = 500


class Engine:
    """What the benchmark asks of an engine; each public method is a command."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        _tame_llvmlite()
        transfer = arguments.pop("kv_transfer_config", None)
        given = {"enforce_eager": True, "distributed_executor_backend": "uni", "disable_log_stats": True} | arguments
        self._llm = LLM(**given, kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer))

    def first_token(self, tokens: list[int], params: dict[str, Any] | None = None) -> dict[str, float]:
        """Seconds until the first new token, and how many of the prompt's tokens came from a cache."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=1, ignore_eos=True, extra_args={"kv_transfer_params": params} if params else None
        )
        began = time.perf_counter()
        (output,) = self._llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
        return {"seconds": time.perf_counter() - began, "cached": output.num_cached_tokens or 0}

    def step(self) -> None:
        """A step of the engine with something short: connectors end their copies in steps."""
        self.first_token(SHORT)

    def forget(self) -> bool:
        """Drop vLLM's own prefix cache; blocks that are still being copied are given back by steps."""
        for _ in range(FORGET_STEPS):
            if self._llm.reset_prefix_cache():
                return True
            self.step()
        return False


def _tame_llvmlite() -> None:
    """Let vLLM 0.32 start where numba is loaded before it, as LMCache does: it asks every object of every module for its
    `__dict__`, and llvmlite's library object makes a function of any name it is asked for."""
    try:
        from llvmlite.binding import ffi
    except ImportError:
        return
    library = type(ffi.lib)
    found = library.__getattr__

    def looked_up(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return found(self, name)

    library.__getattr__ = looked_up


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout, too
    engine = Engine(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        result = getattr(engine, command.pop("do"))(**command)
        print(json.dumps({"result": result}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
