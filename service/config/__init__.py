"""The daemon's config: typed, frozen, validated together; `docs/config.md` is its guide."""

from hybridkv.service.config.load import LoadedConfig, load_config, load_config_with_sources, revised_config
from hybridkv.service.config.memory import CpuConfig, DiskConfig, GpuConfig, MigrationConfig
from hybridkv.service.config.model import (
    Config,
    ConfigRow,
    config_values,
    default_rows,
    tenant_rows,
    unit_of,
    value_text,
)
from hybridkv.service.config.sections import DaemonConfig, LimitsConfig, default_socket
from hybridkv.service.config.tenants import TenantConfig

__all__ = [
    "Config",
    "ConfigRow",
    "CpuConfig",
    "DaemonConfig",
    "DiskConfig",
    "GpuConfig",
    "LimitsConfig",
    "LoadedConfig",
    "MigrationConfig",
    "TenantConfig",
    "config_values",
    "default_rows",
    "default_socket",
    "load_config",
    "load_config_with_sources",
    "revised_config",
    "tenant_rows",
    "unit_of",
    "value_text",
]
