"""The gRPC server of a daemon: limits, ports, and the services on it."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.config import Config, DaemonConfig, LimitsConfig
from hybridkv.service.listening import SCHEME, files_of_mode, socket_path
from hybridkv.service.servicers.admin import AdminServicer
from hybridkv.service.servicers.boundary import Boundary, CallCounters
from hybridkv.service.servicers.gate import Gate
from hybridkv.service.servicers.health import HealthServicer
from hybridkv.service.servicers.kvcache import KVCacheServicer
from hybridkv.service.servicers.sequences import SequencesServicer
from hybridkv.service.servicers.session import SessionServicer
from hybridkv.tiers.errors import InvalidArgumentError, UnavailableError

SERVICES: tuple[str, ...] = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())
"""Full names of our services: hybridkv.v1.Session, …"""

STREAMS_PER_CONNECTION = 1024
CALLS_PER_SESSION = 4  # the Attach stream, a waiting call, a payload stream, and one to spare
CALLS_BESIDE = 256  # health, admin, and sessions that are about to attach
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
MIN_PING_INTERVAL_MS = 5_000
METADATA_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Servicers:
    """What is served."""

    session: SessionServicer
    kvcache: KVCacheServicer
    sequences: SequencesServicer
    admin: AdminServicer
    health: HealthServicer


def make_server(
    limits: LimitsConfig, counters: CallCounters, servicers: Servicers, gate: Gate | None = None
) -> grpc.aio.Server:
    """A server with everything on it but ports. Needs a running event loop. `gate`: of a daemon with tenants; reflection,
    which knows none, is left out there."""
    server = grpc.aio.server(
        interceptors=[Boundary(counters, gate)],
        options=server_options(limits),
        maximum_concurrent_rpcs=CALLS_BESIDE + CALLS_PER_SESSION * limits.sessions_count,
    )
    pb_grpc.add_SessionServicer_to_server(servicers.session, server)  # type: ignore[no-untyped-call]
    pb_grpc.add_KVCacheServicer_to_server(servicers.kvcache, server)  # type: ignore[no-untyped-call]
    pb_grpc.add_SequencesServicer_to_server(servicers.sequences, server)  # type: ignore[no-untyped-call]
    pb_grpc.add_AdminServicer_to_server(servicers.admin, server)  # type: ignore[no-untyped-call]
    _add_standard_services(server, servicers.health, reflects=gate is None)
    return server


def server_options(limits: LimitsConfig) -> list[tuple[str, int]]:
    """Every bound that gRPC keeps for us. A peer that went without a word is noticed within half a minute."""
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.so_reuseport", 0),
    ]


def add_ports(server: grpc.aio.Server, config: Config) -> int | None:
    """Bind the Unix socket (its claim is held already) and, if configured, TCP; returns the TCP port.

    Raises UnavailableError naming the config key when an address cannot be bound.
    """
    path = socket_path(config.daemon.socket)
    try:
        with files_of_mode(int(config.daemon.socket_mode, 8)):
            server.add_insecure_port(SCHEME + str(path))
    except RuntimeError as error:
        raise UnavailableError(f"daemon.socket: {path} cannot be bound: {error}") from error
    if not config.daemon.tcp_address:
        return None
    return _add_tcp_port(server, config.daemon)


def _add_tcp_port(server: grpc.aio.Server, daemon: DaemonConfig) -> int:
    try:
        if daemon.tls_cert_path:
            return server.add_secure_port(daemon.tcp_address, _tls(daemon))
        if daemon.tcp_insecure:
            return server.add_insecure_port(daemon.tcp_address)
    except RuntimeError as error:
        raise UnavailableError(f"daemon.tcp_address: {daemon.tcp_address} cannot be bound: {error}") from error
    raise InvalidArgumentError("daemon.tcp_address", "needs TLS, or daemon.tcp_insecure = true")


def _tls(daemon: DaemonConfig) -> grpc.ServerCredentials:
    key, chain = _pem(daemon, "tls_key_path"), _pem(daemon, "tls_cert_path")
    if not daemon.tls_client_ca_path:
        return grpc.ssl_server_credentials([(key, chain)])
    return grpc.ssl_server_credentials([(key, chain)], _pem(daemon, "tls_client_ca_path"), require_client_auth=True)


def _pem(daemon: DaemonConfig, key: str) -> bytes:
    try:
        return Path(getattr(daemon, key)).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"daemon.{key}", f"{getattr(daemon, key)}: {error.strerror}") from error


def _add_standard_services(server: grpc.aio.Server, health: HealthServicer, *, reflects: bool) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if not reflects:
        return
    from grpc_reflection.v1alpha import reflection

    health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    reflection.enable_server_reflection((*SERVICES, health_name, reflection.SERVICE_NAME), server)
