"""The connector's figures in vLLM's own stats and Prometheus endpoint."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from hybridkv.connectors.vllm.stats import COUNTERS, merged


class HybridKVStats(KVConnectorStats):
    """Sums of COUNTERS over an interval, of one side or several."""

    def reset(self) -> None:
        self.data: dict[str, float] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return HybridKVStats(data=merged(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log: the sums, and what a second of copying moved."""
        shown = {name: round(value, 6) if name.endswith("_s") else int(value) for name, value in self.data.items()}
        for what, verb in (("load", "loaded"), ("store", "stored")):
            if self.data.get(f"{what}_s"):
                shown[f"{what}_mb_per_s"] = round(self.data.get(f"{verb}_bytes", 0) / self.data[f"{what}_s"] / 1e6, 1)
        return shown

    def is_empty(self) -> bool:
        return not self.data


class HybridKVPromMetrics(KVConnectorPromMetrics):
    """One counter `vllm:hybridkv_<name>` for each of COUNTERS, per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {name: self._per_engine(name, text) for name, text in COUNTERS.items()}

    def _per_engine(self, name: str, text: str) -> dict[int, Any]:
        counter = self._counter_cls(name=f"vllm:hybridkv_{name}", documentation=text, labelnames=self._labelnames)
        return {engine: counter.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(amount)
