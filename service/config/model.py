"""The whole config, and the list of its keys."""

import json
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from hybridkv.service.config.memory import CpuConfig, DiskConfig, GpuConfig, MigrationConfig, PagingConfig
from hybridkv.service.config.sections import DaemonConfig, LimitsConfig, Section
from hybridkv.service.config.tenants import TenantConfig, Tenants
from hybridkv.service.config.values import format_bytes

TENANTS = "tenants"

_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_s": "s",
    "_count": "count",
    "_blocks": "blocks",
    "_accesses": "accesses",
    "_watermark": "fraction",
    "_pressure_high": "fraction",
    "_limit": "fraction",
    "_port": "port",
}


class Config(Section):
    """Everything a daemon is told, checked and frozen. Made by `load_config`, or from defaults by `Config()`."""

    daemon: DaemonConfig = Field(default_factory=lambda: DaemonConfig())
    limits: LimitsConfig = Field(default_factory=lambda: LimitsConfig())
    gpu: GpuConfig = Field(default_factory=lambda: GpuConfig())
    cpu: CpuConfig = Field(default_factory=lambda: CpuConfig())
    disk: DiskConfig = Field(default_factory=lambda: DiskConfig())
    migration: MigrationConfig = Field(default_factory=lambda: MigrationConfig())
    paging: PagingConfig = Field(default_factory=lambda: PagingConfig())
    tenants: Tenants = Field(default_factory=dict)

    @field_validator("tenants")
    @classmethod
    def _strict_needs_tenants(cls, tenants: dict[str, TenantConfig], info: ValidationInfo) -> dict[str, TenantConfig]:
        daemon = info.data.get("daemon")
        if daemon is not None and daemon.isolation == "strict" and not tenants:
            raise ValueError('daemon.isolation = "strict" needs at least one tenant')
        return tenants


class ConfigRow(NamedTuple):
    """One key as it is documented. `default` is the value, `default_text` how a config file would say it."""

    key: str
    type: str
    default: object
    unit: str
    description: str
    default_text: str


def default_rows() -> list[ConfigRow]:
    """Every key there is, in the order of the file."""
    return [_row(section, name, field) for section, name, field in _fields()]


def config_values(config: Config) -> dict[str, object]:
    """Every key of `config` with its value; those of the tenants last, by name."""
    values = {f"{section}.{name}": getattr(getattr(config, section), name) for section, name, _ in _fields()}
    for tenant in sorted(config.tenants):
        values |= {
            f"{TENANTS}.{tenant}.{name}": getattr(config.tenants[tenant], name) for name in TenantConfig.model_fields
        }
    return values


def tenant_rows() -> list[ConfigRow]:
    """The keys of each tenant, documented under `tenants.<name>`."""
    return [_row(f"{TENANTS}.<name>", name, field) for name, field in TenantConfig.model_fields.items()]


def section_of(key: str) -> tuple[str, ...]:
    """The tables that `key` lies in, outermost first: one, or two for a tenant's."""
    parts = key.split(".")
    return tuple(parts[:2] if parts[0] == TENANTS else parts[:1])


def value_text(key: str, value: object) -> str:
    """`value` of `key` as a config file would say it (byte values with their unit); "unset" for None."""
    if value is None:
        return "unset"
    if unit_of(key).startswith("bytes") and isinstance(value, int):
        text = format_bytes(value)
        return text if text.isdecimal() else f'"{text}"'
    if isinstance(value, float):
        return f"{value:.12g}"
    return json.dumps(value)


def unit_of(key: str) -> str:
    """The unit that the name of `key` ends with; "" for a key that has none."""
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


def _fields() -> Iterator[tuple[str, str, FieldInfo]]:
    for section, outer in Config.model_fields.items():
        fields: Mapping[str, FieldInfo] = getattr(outer.annotation, "model_fields", {})
        for name, field in fields.items():
            yield section, name, field


def _row(section: str, name: str, field: FieldInfo) -> ConfigRow:
    key = f"{section}.{name}"
    default = field.get_default(call_default_factory=True, validated_data={})
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    text = value_text(key, extra.get("default_text", default))
    return ConfigRow(key, _type_text(field.annotation), default, unit_of(key), field.description or "", text)


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " / ".join(map(str, get_args(annotation)))
    if origin is tuple:
        return "list of str"
    if origin in (Union, types.UnionType):
        return "int, may be unset"
    return str(annotation.__name__)
