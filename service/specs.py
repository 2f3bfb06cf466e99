"""From the config to what the lower floors are opened with."""

from collections.abc import Callable
from pathlib import Path

from hybridkv.migration.background import BackgroundRules
from hybridkv.migration.memory import MemorySpec
from hybridkv.migration.migrator import MigrationSpec
from hybridkv.migration.policies import make_policy
from hybridkv.migration.relief import ReliefRules
from hybridkv.migration.view import Thresholds
from hybridkv.paging.registry import PagingRules
from hybridkv.service.config import Config, CpuConfig, GpuConfig
from hybridkv.tiers.replacement import Policy, PoolFacts
from hybridkv.tiers.states import Tier


def memory_spec(config: Config) -> MemorySpec:
    """What to open."""
    return MemorySpec(
        cpu_bytes=config.cpu.capacity_bytes,
        gpu_devices=tuple(config.gpu.devices),
        gpu_bytes=config.gpu.capacity_bytes,
        disk_path=Path(config.disk.path) if config.disk.path else None,
        disk_bytes=config.disk.capacity_bytes,
        verify_disk=config.disk.verify_at_start,
        page_lock=config.cpu.page_lock,
        huge_pages=config.cpu.huge_pages,
        numa_node=config.cpu.numa_node,
        half_life_s=config.migration.decay_half_life_s,
        window_s=config.migration.promote_window_s,
        tenants=tuple(sorted(config.tenants)),
        never_mapped=config.daemon.isolation == "strict",
    )


def quotas(config: Config) -> dict[str, dict[Tier, int | None]]:
    """How many bytes of each tier every tenant may have."""
    return {
        name: {Tier.GPU: one.gpu_bytes, Tier.CPU: one.cpu_bytes, Tier.DISK: one.disk_bytes}
        for name, one in config.tenants.items()
    }


def policies(config: Config) -> Callable[[Tier, PoolFacts], Policy]:
    """Makes the policy that each tier's pools are ordered by."""
    names = {Tier.GPU: config.gpu.policy, Tier.CPU: config.cpu.policy, Tier.DISK: config.disk.policy}
    half_life_s = config.migration.decay_half_life_s
    return lambda tier, facts: make_policy(names[tier], facts, half_life_s=half_life_s)


def paging_rules(config: Config) -> PagingRules:
    """What sequences are held to."""
    paging = config.paging
    return PagingRules(
        page_blocks=paging.page_blocks,
        idle_timeout_s=paging.idle_timeout_s or None,
        sticky_limit=paging.sticky_limit,
        sequences_per_session_count=paging.sequences_per_session_count,
        positions_count=paging.positions_count,
    )


def migration_spec(config: Config) -> MigrationSpec:
    """How blocks move."""
    rate = config.migration.background_bytes_per_s
    return MigrationSpec(
        background=BackgroundRules(
            {
                Tier.GPU: _thresholds(config, config.gpu),
                Tier.CPU: _thresholds(config, config.cpu),
                Tier.DISK: Thresholds(
                    high_watermark=config.disk.high_watermark,
                    low_watermark=config.disk.low_watermark,
                    promote_at_accesses=config.migration.promote_at_accesses,
                    promote_window_s=config.migration.promote_window_s,
                    cooldown_s=config.migration.cooldown_s,
                ),
            },
        ),
        relief=ReliefRules(
            host_high=config.migration.host_pressure_high,
            device_high=config.migration.device_pressure_high,
            min_bytes={Tier.GPU: config.gpu.min_bytes, Tier.CPU: config.cpu.min_bytes},
        ),
        interval_s=config.migration.interval_s,
        batch_bytes=config.migration.batch_bytes,
        inflight_bytes=config.migration.inflight_bytes,
        background_bytes_per_s=float(rate) if rate else None,
        lane_slots=config.migration.lane_slots_count,
        admit_min_accesses=float(config.disk.admit_min_accesses),
        explain_moves=config.migration.explain_moves_count,
        chain_prefetch_max_blocks=config.migration.chain_prefetch_max_blocks,
    )


def _thresholds(config: Config, tier: GpuConfig | CpuConfig) -> Thresholds:
    return Thresholds(
        high_watermark=tier.high_watermark,
        low_watermark=tier.low_watermark,
        idle_timeout_s=tier.idle_timeout_s or None,
        demote_below_accesses=float(tier.demote_below_accesses),
        min_residency_s=tier.min_residency_s,
        promote_at_accesses=config.migration.promote_at_accesses,
        promote_window_s=config.migration.promote_window_s,
        cooldown_s=config.migration.cooldown_s,
    )
