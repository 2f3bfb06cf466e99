"""A process with one vLLM engine, driven by JSON lines: commands on stdin, an answer each on the last line of stdout.

With VLLM_ENABLE_V1_MULTIPROCESSING=0 all of the engine is in this process, so that commands can reach into the connector.
What vLLM prints goes to stderr. `python -m tests.engines.engine_process '{"model": …}'`: the keys are LLM's arguments.
"""

import json
import os
import sys
import threading
from typing import Any


class Engine:
    """The engine and what tests do with it. Each public method is a command."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = arguments.pop("kv_transfer_config", None)
        self._llm = LLM(
            **arguments,
            enforce_eager=True,
            distributed_executor_backend="uni" if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" else "mp",
            kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
        )
        self._let_go: threading.Event | None = None
        self._original: Any = None
        self._entered: list[str] = []

    def generate(self, prompts: list[list[int]], max_tokens: int, salt: str = "", params: Any = None) -> list[Any]:
        """[tokens, cached tokens, finish reason] of each prompt, greedily; all are in the engine at once."""
        from vllm import SamplingParams

        extra = {"kv_transfer_params": params} if params else None
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        asked = [{"prompt_token_ids": prompt, **({"cache_salt": salt} if salt else {})} for prompt in prompts]
        outputs = self._llm.generate(asked, sampling, use_tqdm=False)
        return [[list(o.outputs[0].token_ids), o.num_cached_tokens, o.outputs[0].finish_reason] for o in outputs]

    def forget(self) -> bool:
        """Drop vLLM's own prefix cache; what it keeps for copies is given back by a step or two of something short."""
        for _ in range(200):
            if self._llm.reset_prefix_cache():
                return True
            self.generate([[5, 6, 7]], 1)
        return False

    def reset_connector(self) -> bool:
        """vLLM's own call that clears the connector's cache."""
        return bool(self._scheduler().reset_connector_cache())

    def attached(self) -> bool:
        """Whether worker and scheduler both have the daemon."""
        doors = [*self._worker_connector()._doors._doors.values(), *self._scheduler().connector._doors._doors.values()]
        return all(door.kv is not None for door in doors)

    def fingerprints(self) -> list[str]:
        handshake = self._worker_connector().get_handshake_metadata()
        return [space.fingerprint.hex() for space in handshake.spaces]

    def fail_layer(self, layer: int | None) -> None:
        """From now on every load breaks at this layer; None: no more."""
        from hybridkv.connectors.vllm.transfer import HostTransfer

        original = self._original_scatter()

        def scatter(transfer: Any, at: int, stacks: Any, ids: Any) -> None:
            if at == layer:
                raise OSError("broken by the test")
            original(transfer, at, stacks, ids)

        HostTransfer.scatter = original if layer is None else scatter  # type: ignore[method-assign, assignment]

    def held_last_layer(self, prompt: list[int]) -> list[Any]:
        """Generate one token while the last layer's bytes are held back: whether all others computed, how many had, how many
        there are, and the answer."""
        from hybridkv.connectors.vllm.transfer import HostTransfer

        connector, original = self._worker_connector(), self._original_scatter()
        last = len(connector._groups[0].layers) - 1
        let_go, waiting = threading.Event(), threading.Event()
        computed: list[str] = []

        def scatter(transfer: Any, at: int, stacks: Any, ids: Any) -> None:
            if at == last:
                let_go.wait(60)
            original(transfer, at, stacks, ids)

        def saved(layer: str, *args: Any, **kwargs: Any) -> None:
            computed.append(layer)
            if len(computed) == last:
                waiting.set()

        HostTransfer.scatter = scatter  # type: ignore[method-assign, assignment]
        connector.save_kv_layer = saved
        seen: list[int] = []

        def release() -> None:
            waiting.wait(60)
            seen.append(len(computed))
            let_go.set()

        releasing = threading.Thread(target=release)
        releasing.start()
        answer = self.generate([prompt], 1)[0]
        releasing.join()
        self.fail_layer(None)
        del connector.save_kv_layer
        return [waiting.is_set(), seen[0], last + 1, answer]

    def preemptions(self) -> int:
        from vllm.v1.metrics.reader import Counter

        found = [m for m in self._llm.get_metrics() if m.name == "vllm:num_preemptions" and isinstance(m, Counter)]
        return int(found[0].value) if found else -1

    def metrics(self) -> dict[str, float]:
        """The connector's counters, as vLLM's Prometheus registry has them."""
        return {m.name: m.value for m in self._llm.get_metrics() if "hybridkv" in m.name}

    def _original_scatter(self) -> Any:
        from hybridkv.connectors.vllm.transfer import HostTransfer

        if self._original is None:
            self._original = HostTransfer.scatter
        return self._original

    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler

    @staticmethod
    def _worker_connector() -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout, too
    try:
        engine = Engine(json.loads(sys.argv[1]))
    except Exception as error:
        chain, causes = error, [str(error)]
        while chain.__cause__ is not None:
            chain = chain.__cause__  # type: ignore[assignment]
            causes.append(str(chain))
        print(json.dumps({"error": "; ".join(causes)}), file=answers, flush=True)
        return 1
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        result = getattr(engine, command.pop("do"))(**command)
        print(json.dumps({"result": result}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
