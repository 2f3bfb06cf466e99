"""Tenants as the daemon counts them: their figures, to each its own and to operators all, and how many leases they may have."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hybridkv.service.config import Config
from hybridkv.tiers.errors import ResourceExhaustedError

if TYPE_CHECKING:
    from hybridkv.service.host_base import HostBase


def tenant_stats(host: "HostBase", tenant: str) -> dict[str, Any]:
    """What a worker of the tenant is told: JSON-serialisable, and about nobody else."""
    with host.directory.lock:
        figures = _figures(host, tenant, host.holds_by_owner()[tenant])
    return {
        "version": host.version,
        "epoch": host.epoch,
        "uptime_s": host.clock.now() - host.started_at,
        "tenant": tenant,
        **figures,
    }


def tenants_stats(host: "HostBase") -> dict[str, dict[str, Any]]:
    """Every tenant's figures, by name; empty where there are none. Under the directory's lock."""
    held = host.holds_by_owner()
    return {name: _figures(host, name, held[name]) for name in sorted(host.config.tenants)}


def _figures(host: "HostBase", tenant: str, held: int) -> dict[str, Any]:
    quotas = host.directory.state.quotas
    return {
        "tiers": {} if quotas is None else quotas.rows(quotas.names.index(tenant)),
        "leases": held,
        "leases_quota": host.config.tenants[tenant].leases_count,
    }


def check_leases_quota(config: Config, owner: str | None, held: Callable[[], Mapping[str, int]]) -> None:
    """Before one more lease or reservation of the tenant; `held()` counts those there are. Raises ResourceExhaustedError."""
    quota = None if owner is None else config.tenants[owner].leases_count
    if owner is None or quota is None:
        return
    count = held()[owner]
    if count >= quota:
        raise ResourceExhaustedError(
            f"quota {owner}.leases_count", f"{count} leases and reservations of {quota} are there"
        )
