"""The sections `[tenants.<name>]`: who may use the daemon, how they prove it, and how much they may have."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hybridkv.service.config.memory import MAX_CAPACITY_BYTES
from hybridkv.service.config.sections import Section
from hybridkv.service.config.values import OptionalPath, parse_bytes

MAX_TENANTS = 256
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


def _unset_or(parse: object) -> object:
    return None if parse in ("", None) else parse


def _unset_or_bytes(value: object) -> object:
    return None if value in ("", None) else parse_bytes(value)


Uid = Annotated[Annotated[int, Field(ge=0, le=0xFFFF_FFFE)] | None, BeforeValidator(_unset_or)]
QuotaBytes = Annotated[Annotated[int, Field(ge=0, le=MAX_CAPACITY_BYTES)] | None, BeforeValidator(_unset_or_bytes)]
QuotaCount = Annotated[Annotated[int, Field(ge=0, le=1_000_000_000)] | None, BeforeValidator(_unset_or)]


class TenantConfig(Section):
    """One tenant. At least one proof of identity belongs to it; a quota that is unset does not limit."""

    role: Literal["worker", "operator"] = Field(
        default="worker", description="operator: may also change the config, clear, drain and see everything"
    )
    token_path: OptionalPath = Field(
        default="", description="File (mode 0600) with the tenant's tokens, one a line; empty = no token"
    )
    certificate_name: str = Field(
        default="", max_length=253, description="Common name, or a DNS or URI name, of its client certificates"
    )
    uid: Uid = Field(default=None, description="User whose processes are this tenant on the Unix socket; unset = none")
    gpu_bytes: QuotaBytes = Field(default=None, description="Most bytes in the GPU tier; unset = no quota")
    cpu_bytes: QuotaBytes = Field(default=None, description="Most bytes in the CPU tier; unset = no quota")
    disk_bytes: QuotaBytes = Field(default=None, description="Most bytes on disk, in pages; unset = no quota")
    leases_count: QuotaCount = Field(
        default=None, description="Most leases and reservations at a time; unset = no quota"
    )

    @model_validator(mode="after")
    def _has_a_proof(self) -> Self:
        if not self.token_path and not self.certificate_name and self.uid is None:
            raise ValueError("needs a token_path, a certificate_name or a uid")
        return self


def _checked(tenants: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
    if len(tenants) > MAX_TENANTS:
        raise ValueError(f"must be at most {MAX_TENANTS} tenants, got {len(tenants)}")
    for name in tenants:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name: must be a to z, 0 to 9, _ and -, a letter first, at most 32")
    for field in ("certificate_name", "uid", "token_path"):
        values = [value for one in tenants.values() if (value := getattr(one, field)) not in (None, "")]
        if len(set(values)) < len(values):
            raise ValueError(f"two tenants have one {field}")
    return tenants


Tenants = Annotated[dict[str, TenantConfig], AfterValidator(_checked)]
