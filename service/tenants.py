"""What the daemon tells of tenants: to each its own figures, to operators all of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridkv.service.host_base import HostBase


def tenant_stats(host: "HostBase", tenant: str) -> dict[str, Any]:
    """What a worker of the tenant is told: JSON-serialisable, and about nobody else."""
    return {
        "version": host.version,
        "epoch": host.epoch,
        "uptime_s": host.clock.now() - host.started_at,
        "tenant": tenant,
        **_figures(host, tenant),
    }


def tenants_stats(host: "HostBase") -> dict[str, dict[str, Any]]:
    """Every tenant's figures, by name; empty where there are none. Under the directory's lock."""
    return {name: _figures(host, name) for name in sorted(host.config.tenants)}


def _figures(host: "HostBase", tenant: str) -> dict[str, Any]:
    quotas = host.directory.state.quotas
    with host.directory.lock:
        return {
            "tiers": {} if quotas is None else quotas.rows(quotas.names.index(tenant)),
            "leases": host.holds_of(tenant),
            "leases_quota": host.config.tenants[tenant].leases_count,
        }
