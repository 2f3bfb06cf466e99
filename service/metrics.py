"""The Prometheus endpoint. It keeps no figures: every scrape reads the tree that `hybridkv stats` shows.

Names follow the tree: `hybridkv_tier_used_bytes{tier="cpu"}` is `tiers.cpu.used_bytes`. What only grows is a counter
(`…_total`), everything else a gauge. Figures that the tree lacks are left out.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hybridkv.tiers.errors import UnavailableError

Stats = Mapping[str, Any]
Probe = Callable[[], tuple[bool, Mapping[str, tuple[bool, str]]]]
"""(well, component → (works, why not)). From any thread."""

_GAUGES = {
    "uptime_s": "Seconds since the start",
    "config_version": "Version of the config in force",
    "blocks": "Sealed blocks",
    "orphans": "Sealed blocks whose parent is not here",
    "namespaces": "Namespaces known",
    "transfers": "Copies on their way",
    "sessions": "Sessions known",
    "leases": "Leases held",
    "reservations": "Reservations open",
    "lapsed_holds": "Holds that lapsed and whose owner may still touch their slots",
    "requests": "Requests open",
    "waiting_calls": "Calls that wait for a copy or for room",
}
_LABELLED_COUNTERS = {
    "hits": ("hits", "tier", "Keys served, by the highest tier that held them"),
    "outcomes": ("acquired_keys", "outcome", "Keys acquired, by answer"),
    "counters": ("events", "event", "What happened, by name"),
    "recompute": ("recompute", "figure", "Blocks and seconds of acquires that could compute instead, by name"),
}
_LANE_FIGURES: dict[str, tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str]] = {
    "queued": (GaugeMetricFamily, "Transfers that wait in the lane"),
    "bytes_in_flight": (GaugeMetricFamily, "Bytes being copied by the lane"),
    "errors": (CounterMetricFamily, "Transfers of the lane that failed"),
    "alive": (GaugeMetricFamily, "1 where the lane's thread lives"),
    "bytes_per_s": (GaugeMetricFamily, "Measured speed of the lane; 0 where it carried nothing lately"),
}
_LOOP_FIGURES: dict[str, tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str]] = {
    "alive": (GaugeMetricFamily, "1 where the loop lives"),
    "busy_s": (GaugeMetricFamily, "Seconds since the present round began; 0 where it waits"),
    "rounds": (CounterMetricFamily, "Rounds of the loop"),
    "errors": (CounterMetricFamily, "Errors of the loop, after each of which it went on"),
}
_PAGING_GAUGES = {
    "entries": "Entries of page tables",
    "table_bytes": "Bytes of page tables and backing",
    "resident_blocks": "Blocks that sequences have entries for",
    "split_pages": "Pages of several blocks that are not one entry",
    "waiting_faults": "Page faults under way",
}
_DISK_GAUGES = frozenset({"physical_bytes", "capacity_bytes", "live_bytes", "live_blocks", "segments", "aside_bytes"})


class StatsCollector(Collector):
    """Turns the stats tree into metric families."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registering must not read the figures of a host that is still starting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text in _GAUGES.items():
            if name in stats:
                yield GaugeMetricFamily(f"hybridkv_{_spelled(name)}", text, value=stats[name])
        for name, (family, label, text) in _LABELLED_COUNTERS.items():
            yield _labelled(CounterMetricFamily(f"hybridkv_{family}", text, labels=[label]), stats.get(name, {}))
        yield from _tiers(stats.get("tiers", {}))
        yield from _tenants(stats.get("tenants", {}))
        yield from _lanes(stats.get("lanes", {}))
        yield from _loops(stats.get("loops", {}))
        ages = {name.removesuffix("_s"): age for name, age in stats.get("ages", {}).items()}
        yield from _gauges("hybridkv_oldest_seconds", "Since the oldest was begun", "hold", ages)
        yield from _gauges("hybridkv_setbacks", "Blocks whose moves failed", "state", stats.get("setbacks", {}))
        yield from _gauges("hybridkv_watch", "The event stream", "figure", stats.get("watch", {}))
        yield from _disk(stats.get("disk_store") or {})
        yield from _takeover(stats.get("takeover") or {})
        yield from _paging(stats.get("paging", {}))
        yield from _moves(stats.get("moves", ()))
        yield _calls(stats.get("calls", ()))
        yield _health(stats.get("health", {}))


class MetricsServer:
    """Serves `/metrics` from threads of its own until `close`, and probes beside it: 200 when well, 503 when not, with a line
    for each component. They answer also when the daemon's event loop hangs."""

    def __init__(
        self, stats: Callable[[], Stats], address: str, port: int, probes: Mapping[str, Probe] | None = None
    ) -> None:
        """`probes` by path. Raises UnavailableError naming the address when it cannot be bound."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatsCollector(stats))
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise UnavailableError(f"daemon.metrics_port: {address}:{port}: {error.strerror or error}") from error
        if probes:
            self._server.set_app(_beside(probes, self._server.get_app()))
        self.port = int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _beside(probes: Mapping[str, Probe], metrics: Any) -> Any:
    """A WSGI application that answers probes by their paths, and `metrics` everything else."""

    def answer(environ: Any, start_response: Any) -> Any:
        probe = probes.get(environ.get("PATH_INFO", ""))
        if probe is None:
            return metrics(environ, start_response)
        well, components = probe()
        lines = [f"{name}: {'ok' if ok else reason}\n" for name, (ok, reason) in sorted(components.items())]
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
        return ["".join(lines).encode()]

    return answer


def _labelled(metric: Any, figures: Mapping[str, Any]) -> Metric:
    for name, value in figures.items():
        metric.add_metric([str(name)], value)
    return metric  # type: ignore[no-any-return]


def _tiers(tiers: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    fields = dict.fromkeys(field for row in tiers.values() for field in row)
    for field in fields:
        metric = GaugeMetricFamily(f"hybridkv_tier_{field}", f"{field} of the tier", labels=["tier"])
        yield _labelled(metric, {tier: row[field] for tier, row in tiers.items() if field in row})


def _lanes(lanes: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for field, (family, text) in _LANE_FIGURES.items():
        metric = family(f"hybridkv_lane_{field}", text, labels=["lane"])
        yield _labelled(metric, {lane: float(row[field]) for lane, row in lanes.items() if field in row})


def _loops(loops: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for field, (family, text) in _LOOP_FIGURES.items():
        metric = family(f"hybridkv_loop_{_spelled(field)}", text, labels=["loop"])
        yield _labelled(metric, {loop: float(row[field]) for loop, row in loops.items() if field in row})


def _gauges(family: str, text: str, label: str, figures: Mapping[str, Any]) -> Iterator[Metric]:
    if figures:
        yield _labelled(GaugeMetricFamily(family, text, labels=[label]), figures)


def _disk(store: Mapping[str, Any]) -> Iterator[Metric]:
    events = CounterMetricFamily("hybridkv_disk_events", "What the disk tier did, by name", labels=["event"])
    for name, value in store.items():
        if name in _DISK_GAUGES:
            yield GaugeMetricFamily(f"hybridkv_disk_{name}", f"{name} of the disk tier", value=value)
        elif isinstance(value, int):
            events.add_metric([name], value)
    yield events


def _takeover(taken: Mapping[str, Any]) -> Iterator[Metric]:
    for name, value in taken.items():
        if name == "dropped":
            dropped = GaugeMetricFamily(
                "hybridkv_takeover_dropped_blocks",
                "Blocks left by the daemon before, not taken over",
                labels=["reason"],
            )
            yield _labelled(dropped, value)
        elif name == "outcome":
            outcome = GaugeMetricFamily("hybridkv_takeover", "1 for what the start made of it", labels=["outcome"])
            yield _labelled(outcome, {value: 1})
        elif name != "reason":
            yield GaugeMetricFamily(f"hybridkv_takeover_{_spelled(name)}", f"{name} of the take-over", value=value)


def _paging(paging: Mapping[str, Any]) -> Iterator[Metric]:
    for name, value in paging.items():
        if name == "sequences":
            gauge = GaugeMetricFamily("hybridkv_paging_sequences", "Sequences, by state", labels=["state"])
            yield _labelled(gauge, value)
        elif name == "pools":
            yield from _paging_pools(value)
        elif name == "tlb":
            yield _labelled(
                CounterMetricFamily(
                    "hybridkv_paging_tlb", "Translations of the workers, by outcome", labels=["outcome"]
                ),
                value,
            )
        elif name in _PAGING_GAUGES:
            yield GaugeMetricFamily(f"hybridkv_paging_{name}", _PAGING_GAUGES[name], value=value)
        else:
            spelled = _spelled(name)
            yield CounterMetricFamily(f"hybridkv_paging_{spelled}", f"{spelled} of the sequences", value=value)


def _paging_pools(pools: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    fields = dict.fromkeys(field for row in pools.values() for field in row)
    for field in fields:
        metric = GaugeMetricFamily(
            f"hybridkv_paging_pool_{field}", f"{field} of sequences in the pool", labels=["tier"]
        )
        yield _labelled(metric, {pool: row[field] for pool, row in pools.items()})


def _moves(moves: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["from", "to", "reason", "outcome"]
    count = CounterMetricFamily("hybridkv_moves", "Blocks moved between tiers or evicted", labels=labels)
    moved = CounterMetricFamily("hybridkv_moved_bytes", "Bytes of the blocks in hybridkv_moves", labels=labels)
    for move in moves:
        values = [str(move.get(label) or "") for label in labels]
        count.add_metric(values, move["count"])
        moved.add_metric(values, move["bytes"])
    yield count
    yield moved


def _tenants(tenants: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    used = GaugeMetricFamily("hybridkv_tenant_used_bytes", "Bytes of a tenant's blocks", labels=["tenant", "tier"])
    quota = GaugeMetricFamily("hybridkv_tenant_quota_bytes", "Most bytes it may have", labels=["tenant", "tier"])
    held = GaugeMetricFamily("hybridkv_tenant_leases", "Leases and reservations of a tenant", labels=["tenant"])
    for name, row in tenants.items():
        held.add_metric([name], row["leases"])
        for tier, figures in row["tiers"].items():
            used.add_metric([name, tier], figures["used_bytes"])
            if figures["quota_bytes"] is not None:
                quota.add_metric([name, tier], figures["quota_bytes"])
    if tenants:
        yield from (used, quota, held)


def _calls(calls: Iterable[Mapping[str, Any]]) -> Metric:
    metric = CounterMetricFamily("hybridkv_calls", "Calls that ended, by status", labels=["method", "status"])
    for call in calls:
        metric.add_metric([call["method"], call["status"]], call["count"])
    return metric


def _health(health: Mapping[str, Mapping[str, Any]]) -> Metric:
    metric = GaugeMetricFamily("hybridkv_healthy", "1 where the component works", labels=["component"])
    return _labelled(metric, {component: float(state["ok"]) for component, state in health.items()})


def _spelled(name: str) -> str:
    """Prometheus spells the unit out."""
    return name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
