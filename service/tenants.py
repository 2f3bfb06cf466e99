"""What the daemon tells of tenants: to each its own figures, to operators all of them."""

from typing import TYPE_CHECKING, Any

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
