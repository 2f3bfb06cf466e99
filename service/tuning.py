"""Which config keys may change while the daemon runs, and what a change comes to. Pure: applies nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hybridkv.service.config import Config, config_values, revised_config, value_text
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.states import Tier

_TIERS: Final = ("gpu", "cpu", "disk")

CAPACITIES: Final = frozenset(f"{tier}.capacity_bytes" for tier in _TIERS)
"""Live up to what the daemon started with: memory is mapped and address space laid out for that much."""

LIVE: Final = frozenset(
    {
        *(f"{tier}.{name}" for tier in _TIERS for name in ("high_watermark", "low_watermark", "policy")),
        *(
            f"{tier}.{name}"
            for tier in ("gpu", "cpu")
            for name in ("idle_timeout_s", "demote_below_accesses", "min_residency_s", "min_bytes")
        ),
        "disk.admit_min_accesses",
        *(
            f"paging.{name}"
            for name in (
                "page_blocks",
                "idle_timeout_s",
                "sticky_limit",
                "sequences_per_session_count",
                "positions_count",
            )
        ),
        *(f"daemon.{name}" for name in ("grace_s", "lease_s", "reservation_s", "drain_s", "log_level")),
        *(
            f"limits.{name}"
            for name in (
                "keys_per_call_count",
                "part_bytes",
                "namespaces_count",
                "holds_per_session_count",
                "watchers_count",
                "watch_buffer_bytes",
            )
        ),
        *(
            f"migration.{name}"
            for name in (
                "interval_s",
                "inflight_bytes",
                "batch_bytes",
                "background_bytes_per_s",
                "promote_at_accesses",
                "promote_window_s",
                "chain_prefetch_max_blocks",
                "chain_prefetch_max_blocks",
                "decay_half_life_s",
                "cooldown_s",
                "host_pressure_high",
                "device_pressure_high",
            )
        ),
    }
)
"""Keys that take effect at once, or with the next session, call or pass."""

RESTART: Final = frozenset(
    {
        *(
            f"daemon.{name}"
            for name in (
                "socket",
                "tcp_insecure",
                "tls_cert_path",
                "tls_key_path",
                "tls_client_ca_path",
                "socket_mode",
                "isolation",
                "tcp_address",
                "metrics_port",
                "metrics_address",
                "warm_restart",
            )
        ),
        "limits.message_bytes",
        "limits.sessions_count",
        "gpu.devices",
        *(f"cpu.{name}" for name in ("shm_dir", "page_lock", "huge_pages", "numa_node")),
        "disk.path",
        "disk.verify_at_start",
        "migration.lane_slots_count",
        "migration.explain_moves_count",
    }
)
"""Keys that say what the daemon opens at its start."""


TENANT_LIVE: Final = frozenset({"gpu_bytes", "cpu_bytes", "disk_bytes", "leases_count"})
"""Of each tenant: its quotas. Who it is, and that it is, needs a restart (its tokens are read again by a reload)."""


def is_live(key: str) -> bool:
    """Whether a change of this key takes effect while the daemon runs."""
    return key.rpartition(".")[2] in TENANT_LIVE if key.startswith("tenants.") else key in LIVE


@dataclass(frozen=True, slots=True)
class Change:
    """One key's values before and after."""

    key: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.key} = {value_text(self.key, self.after)} (was {value_text(self.key, self.before)})"


@dataclass(frozen=True, slots=True)
class ConfigUpdate:
    """What an update did. `needs_restart` (of a reload only): keys left as they are, with the reason."""

    version: int
    previous_version: int
    changed: tuple[Change, ...]
    needs_restart: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Revision:
    """A config that may be applied, what it changes, and what it leaves for a restart."""

    config: Config
    changed: tuple[Change, ...]
    needs_restart: Mapping[str, str]

    def touches(self, *keys: str) -> bool:
        return any(change.key in keys for change in self.changed)

    def reordered(self) -> list[Tier]:
        """Tiers whose pools need a new policy: another one is asked for, or it counts by the half-life that changed."""
        half_life = self.touches("migration.decay_half_life_s")
        tiers = {Tier.GPU: self.config.gpu, Tier.CPU: self.config.cpu, Tier.DISK: self.config.disk}
        return [
            tier
            for tier, section in tiers.items()
            if self.touches(f"{tier.name.lower()}.policy") or (half_life and section.policy in _COUNTING)
        ]

    def resized(self) -> dict[Tier, int]:
        """Tiers whose capacity changes, with the new one in bytes."""
        sizes = {
            Tier.GPU: self.config.gpu.capacity_bytes,
            Tier.CPU: self.config.cpu.capacity_bytes,
            Tier.DISK: self.config.disk.capacity_bytes,
        }
        return {tier: size for tier, size in sizes.items() if self.touches(f"{tier.name.lower()}.capacity_bytes")}


_COUNTING: Final = ("lfu",)
"""Policies that are made with the half-life."""


def revise(
    config: Config, started: Config, changes: Mapping[str, object], sources: Mapping[str, str] | None = None
) -> Revision:
    """All of `changes`, or none: raises InvalidArgumentError naming every bad key with its limit, and
    FailedPreconditionError naming every key that needs a restart."""
    if not changes:
        raise InvalidArgumentError("changes", "none given; at least one KEY=VALUE")
    wanted = revised_config(config, changes, sources)
    changed = differences(config, wanted)
    waiting = _needing_restart(changed, started)
    if waiting:
        raise FailedPreconditionError(
            "nothing was changed: " + "; ".join(f"{key}: {reason}" for key, reason in sorted(waiting.items()))
        )
    return Revision(wanted, changed, {})


def reload(config: Config, started: Config, loaded: Config) -> Revision:
    """What of `loaded` can be had now; the rest stays as it is in `config` and is named."""
    others = {f"tenants.{name}": "needs a restart" for name in loaded.tenants.keys() ^ config.tenants.keys()}
    loaded = loaded.model_copy(
        update={"tenants": {name: loaded.tenants.get(name, tenant) for name, tenant in config.tenants.items()}}
    )
    waiting = _needing_restart(differences(config, loaded), started)
    wanted = revised_config(loaded, {key: value for key, value in config_values(config).items() if key in waiting})
    return Revision(wanted, differences(config, wanted), waiting | others)


def differences(before: Config, after: Config) -> tuple[Change, ...]:
    """Keys whose values differ, in the order of the file."""
    old, new = config_values(before), config_values(after)
    keys = [*old, *(key for key in new if key not in old)]
    return tuple(Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key))


def _needing_restart(changed: tuple[Change, ...], started: Config) -> dict[str, str]:
    first = config_values(started)
    waiting = {}
    for change in changed:
        if change.key in CAPACITIES:
            limit = first[change.key]
            assert isinstance(limit, int)
            assert isinstance(change.after, int)
            if change.after > limit:
                waiting[change.key] = (
                    f"needs a restart above {value_text(change.key, limit)}, which the daemon started with"
                )
        elif not is_live(change.key):
            waiting[change.key] = "needs a restart"
    return waiting
