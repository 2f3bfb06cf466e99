"""The sections that say how the daemon is reached and what one caller may ask for."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from hybridkv.service.config.values import (
    Bytes,
    HostPort,
    Isolation,
    LogLevel,
    OptionalPath,
    Port,
    PositiveSeconds,
    Seconds,
    SocketMode,
    UnixSocket,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

WIRE_BYTES_PER_KEY = 128
"""The most a call spends on one key (a 64-byte key, or a translation and its states), with room for framing."""

WIRE_ENVELOPE_BYTES = 4 * KIB
"""What a message holds besides keys or payload."""


class Section(BaseModel):
    """A table of the config file: frozen, defaults checked like given values, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def default_socket() -> str:
    """The user's runtime directory where there is one (it is private already), else a directory in /tmp."""
    uid = os.getuid()
    runtime = Path(f"/run/user/{uid}")
    folder = runtime if runtime.is_dir() else Path(f"/tmp/hybridkv-{uid}")
    return f"unix://{folder}/hybridkv.sock"


class DaemonConfig(Section):
    """Addresses, times and logging of the daemon."""

    socket: UnixSocket = Field(
        default_factory=default_socket,
        description="Unix socket the daemon listens on (mode 0600)",
        json_schema_extra={"default_text": "unix:///run/user/<uid>/hybridkv.sock"},
    )
    tcp_insecure: bool = Field(default=False, description="Allow TCP without TLS")
    tls_cert_path: OptionalPath = Field(
        default="", description="PEM certificate chain of the TCP listener; empty = no TLS"
    )
    tls_key_path: OptionalPath = Field(default="", description="PEM private key that belongs to tls_cert_path")
    tls_client_ca_path: OptionalPath = Field(
        default="", description="PEM certificates that clients' certificates must be signed by; empty = none asked for"
    )
    tcp_address: HostPort = Field(default="", description="host:port to listen on as well; empty = no TCP")
    socket_mode: SocketMode = Field(default="0600", description="Mode of the Unix sockets: who may connect at all")
    isolation: Isolation = Field(
        default="shared", description="strict: no worker maps memory, blocks are copied to and from it over streams"
    )
    metrics_port: Port = Field(default=0, description="Port of the Prometheus endpoint; 0 = off")
    metrics_address: str = Field(
        default="127.0.0.1", min_length=1, description="Address the Prometheus endpoint binds to"
    )
    grace_s: Seconds = Field(default=5.0, description="From a broken stream to the lapse of what its session held")
    lease_s: PositiveSeconds = Field(default=30.0, description="Life of a lease that is not renewed")
    reservation_s: PositiveSeconds = Field(default=30.0, description="Life of a reservation that is not renewed")
    drain_s: Seconds = Field(
        default=30.0, description="Longest time a stopping daemon spends writing dirty blocks to disk"
    )
    warm_restart: bool = Field(
        default=True, description="The CPU tier outlives the daemon, for the next one on this socket to take over"
    )
    log_level: LogLevel = Field(default="info", description="Least severity that is logged")

    @field_validator("tls_key_path")
    @classmethod
    def _key_with_certificate(cls, path: str, info: ValidationInfo) -> str:
        if "tls_cert_path" in info.data and bool(path) != bool(info.data["tls_cert_path"]):
            raise ValueError("tls_cert_path and tls_key_path must be given together")
        return path

    @field_validator("tls_client_ca_path")
    @classmethod
    def _clients_over_tls(cls, path: str, info: ValidationInfo) -> str:
        if path and not info.data.get("tls_cert_path", "unknown"):
            raise ValueError("needs tls_cert_path and tls_key_path")
        return path

    @field_validator("tcp_address")
    @classmethod
    def _tcp_is_protected(cls, address: str, info: ValidationInfo) -> str:
        protected = info.data.get("tcp_insecure", True) or info.data.get("tls_cert_path", "unknown")
        if address and not protected:
            raise ValueError("needs tls_cert_path and tls_key_path, or tcp_insecure = true")
        return address


class LimitsConfig(Section):
    """What one call, one session and the daemon as a whole accept."""

    message_bytes: Bytes = Field(
        default=4 * MIB, ge=64 * KIB, le=512 * MIB, description="Largest message sent or accepted"
    )
    keys_per_call_count: int = Field(default=4096, ge=1, description="Most keys one call may name")
    part_bytes: Bytes = Field(default=MIB, ge=4 * KIB, description="Payload in one part of a Read or Write stream")
    sessions_count: int = Field(default=1024, ge=1, le=1024, description="Most sessions attached at a time")
    namespaces_count: int = Field(default=256, ge=1, le=65_536, description="Most namespaces known at a time")
    holds_per_session_count: int = Field(
        default=4096, ge=1, le=1_000_000, description="Most leases and reservations of one session"
    )
    watchers_count: int = Field(default=16, ge=0, le=1024, description="Most event streams open at a time")
    watch_buffer_bytes: Bytes = Field(
        default=8 * MIB, ge=64 * KIB, le=1 * GIB, description="Events that are remembered for watchers that lag behind"
    )

    @field_validator("keys_per_call_count")
    @classmethod
    def _keys_fit_a_message(cls, count: int, info: ValidationInfo) -> int:
        room = (info.data.get("message_bytes", 512 * MIB) - WIRE_ENVELOPE_BYTES) // WIRE_BYTES_PER_KEY
        if count > room:
            raise ValueError(f"must be at most {room}, so that a call's keys fit message_bytes")
        return count

    @field_validator("part_bytes")
    @classmethod
    def _part_fits_a_message(cls, size: int, info: ValidationInfo) -> int:
        room = info.data.get("message_bytes", 512 * MIB) - WIRE_ENVELOPE_BYTES
        if size > room:
            raise ValueError(f"must be at most {room}, so that a part fits message_bytes")
        return size
