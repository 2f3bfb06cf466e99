"""What the daemon tells of one tenant."""

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
    }
