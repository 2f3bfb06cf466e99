"""What vLLM calls: the two halves behind `KVConnectorBase_V1`.

Written for vLLM 0.32 and 0.33. vLLM makes one object in the scheduler's process and one in each worker's; each has one half.
"""

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from hybridkv.connectors.vllm.door import Doors, connecting
from hybridkv.connectors.vllm.groups import check_backend, check_parallel, groups_of
from hybridkv.connectors.vllm.identity import key_bytes_of, space_of
from hybridkv.connectors.vllm.layout import layout_of
from hybridkv.connectors.vllm.metadata import Handshake, Report, Step
from hybridkv.connectors.vllm.metrics import HybridKVPromMetrics, HybridKVStats
from hybridkv.connectors.vllm.scheduler import SchedulerSide
from hybridkv.connectors.vllm.settings import Settings
from hybridkv.connectors.vllm.stats import Counters
from hybridkv.connectors.vllm.transfers import transfer_for
from hybridkv.connectors.vllm.worker import WorkerSide
from hybridkv.service.admin_client import AdminClient
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.namespace import Namespace

log = logging.getLogger(__name__)

KVConnectorMetadata.register(Step)
KVConnectorHandshakeMetadata.register(Handshake)
KVConnectorWorkerMetadata.register(Report)


class HybridKVConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's blocks, kept by a hybridkv daemon. What cannot be served is refused here, with the reason."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer_config = vllm_config.kv_transfer_config
        self._settings = settings_of(transfer_config)
        check_parallel(vllm_config.parallel_config)
        check_backend(vllm_config)
        key_bytes_of(vllm_config)
        hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or vllm_config.cache_config.block_size
        self._groups = groups_of(kv_cache_config, hash_tokens)
        self._counters = Counters()
        self._doors = Doors(connecting(self._settings.address, self._settings.timeout_s), self._settings.retry_s)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._handshake: Handshake | None = None
        self._failed_ids: set[int] = set()
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(self._settings, self._groups, self._doors, self._clear, self._counters)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what is not stored is a miss later."""
        return False

    def _clear(self, space: Namespace) -> None:
        with AdminClient(self._settings.address) as admin:
            admin.clear(space.fingerprint)

    # -------------------------------------------------------------------------------------------- worker's process

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take over the rank's caches: their layout decides the namespace."""
        parallel = self._vllm_config.parallel_config
        layouts = [layout_of(group, kv_caches, self._kv_cache_config.num_blocks) for group in self._groups]
        spaces = tuple(
            space_of(
                self._vllm_config,
                layout,
                groups=len(layouts),
                rank=parallel.rank % parallel.world_size,
                world=parallel.world_size,
                salt=self._settings.salt,
            )
            for layout in layouts
        )
        self._handshake = Handshake(spaces)
        transfers = [transfer_for(layout, [kv_caches[name] for name in layout.group.layers]) for layout in layouts]
        doors = [self._doors.of(space) for space in spaces]
        self._worker = WorkerSide(self._settings, layouts, transfers, doors, self._counters)
        self._doors.wait(self._settings.timeout_s)

    def unregister_kv_caches(self) -> None:
        """vLLM goes to sleep and takes its caches away: nothing touches them any more when this returns."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def restore_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """It woke up, with new memory of the same layout."""
        self.unregister_kv_caches()
        self.register_kv_caches(kv_caches)

    def get_handshake_metadata(self) -> Handshake | None:
        return self._handshake

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        if self._worker is not None:
            self._worker.preempt(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start(self._step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None:
            self._worker.wait_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: blocks are stored behind the step, when all of their layers are there."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save(self._step)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        results = self._worker.results()
        self._failed_ids = results.failed_ids
        return KVConnectorTransferResults(results.sent, results.received, results.failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """For a vLLM that does not ask for `get_transfer_results`."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_ids = self._failed_ids, set()
        return failed

    def build_connector_worker_meta(self) -> Report | None:
        return None if self._worker is None else self._worker.report()

    # ----------------------------------------------------------------------------------------- scheduler's process

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._plan.attach([metadata[rank] for rank in sorted(metadata)])

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self._plan.attach([metadata[rank] for rank in sorted(metadata)])

    def on_new_request(self, request: Any) -> None:
        self._plan.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._plan.matched(request, num_computed_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        host, disk = self._plan.hit_tokens(request, num_external_tokens)
        split = {CacheHitSource.HOST: host, CacheHitSource.DISK: disk}
        return {source: tokens for source, tokens in split.items() if tokens}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._plan.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        return self._plan.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        self._plan.reported(connector_output.finished_recving, report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._plan.finished(request), None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._plan.finished(request), None

    def reset_cache(self) -> bool | None:
        return self._plan.reset()

    # ------------------------------------------------------------------------------------------------- either one

    def get_kv_connector_stats(self) -> HybridKVStats | None:
        taken = self._counters.take()
        return HybridKVStats(data=taken) if taken else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> HybridKVStats:
        return HybridKVStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> HybridKVPromMetrics:
        return HybridKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Layers wait for their bytes: that must not be captured in a graph."""
        return bool(extra_config.get("load", "auto") != "async")

    def shutdown(self) -> None:
        """Finish what is under way and detach. May be called again."""
        self.unregister_kv_caches()
        self._doors.close()

    @property
    def _plan(self) -> SchedulerSide:
        if self._scheduler is None:
            raise FailedPreconditionError("this is a worker's connector")
        return self._scheduler

    @property
    def _step(self) -> Step:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        return step


def settings_of(transfer_config: Any) -> Settings:
    """What the user configured. A load that is not made must be recomputed and not fail the request."""
    given = dict(transfer_config.kv_connector_extra_config)
    if transfer_config.kv_load_failure_policy != "recompute":
        if given.get("use_recompute_s"):
            raise FailedPreconditionError(
                "kv_connector_extra_config.use_recompute_s needs kv_load_failure_policy=recompute in --kv-transfer-config"
            )
        given["use_recompute_s"] = False
        log.warning(
            "hybridkv: kv_load_failure_policy is %r: a request whose blocks are lost while it starts FAILS; set it to "
            "recompute in --kv-transfer-config",
            transfer_config.kv_load_failure_policy,
        )
    return Settings.of(given)
