"""Ways to a `KV`: over a daemon's address, or over a host in this process."""

from typing import TYPE_CHECKING

from hybridkv.service.client.kv import KV
from hybridkv.service.client.link import EpochChanged, Link
from hybridkv.service.client.proofs import PathLike, proofs
from hybridkv.service.client.translations import TRANSLATIONS_COUNT
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.namespace import Namespace

if TYPE_CHECKING:
    import grpc

    from hybridkv.service.config import Config

DEFAULT_TIMEOUT_S = 5.0


def connect(
    address: str,
    space: Namespace,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    token: str | None = None,
    token_file: PathLike | None = None,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    credentials: "grpc.ChannelCredentials | None" = None,
    on_epoch_change: EpochChanged | None = None,
    translations_count: int = TRANSLATIONS_COUNT,
) -> KV:
    """Attach to the daemon at `address` ("unix:///path" or "host:port") for the blocks of `space`.

    `timeout_s` is what any call may take beyond the waiting it asks for, this one included: it waits that long for a
    daemon that is not there yet.
    Of a daemon with tenants: `token` or `token_file` (the first line of a file of mode 0600; by default the one that
    HYBRIDKV_TOKEN_FILE names) says who we are; on a Unix socket our user may do.
    TLS, for TCP: `ca` (PEM certificates that the daemon's must be signed by), `cert` and `key` (our own, where the daemon
    asks for one), or ready made `credentials`. Over TCP, and where the side socket cannot be had,
    blocks are copied over streams (`KV.mapped`).
    `translations_count`: the places of so many blocks are remembered, so that they can be read without a call; 0: none.
    Raises UnavailableError, UnauthenticatedError, NamespaceMismatchError and what else attaching is refused with.
    """
    check_address(address, timeout_s)
    from hybridkv.service.client.rpc import RpcDial  # a host in this process needs no gRPC

    ours = proofs(token=token, token_file=token_file, ca=ca, cert=cert, key=key, credentials=credentials)
    kv = KV(space, Link(RpcDial(address, space, ours), timeout_s, on_epoch_change, translations_count))
    kv.session  # noqa: B018 (attaches)
    return kv


def check_address(address: str, timeout_s: float) -> None:
    """Raises InvalidArgumentError."""
    if not address or not timeout_s > 0:
        field = "timeout_s" if address else "address"
        raise InvalidArgumentError(field, f"must be {'positive' if address else 'unix:///path or host:port'}")
    if "/" in address and not address.startswith("unix:"):
        raise InvalidArgumentError("address", f"{address!r}: must be unix:///path or host:port")


def open(config: "Config | None", space: Namespace, *, translations_count: int = TRANSLATIONS_COUNT) -> KV:
    """A host in this process and a handle on it, no daemon; `config` None: the defaults. Closing ends the host.

    With a disk tier, closing first writes what is not yet there (`daemon.drain_s` at most).
    """
    from hybridkv.service.client.local import LocalDial  # a client needs no host
    from hybridkv.service.config import Config
    from hybridkv.service.facade import Host

    chosen = Config() if config is None else config
    host = Host(chosen)

    def end() -> None:
        host.drain(chosen.daemon.drain_s)
        host.close()

    try:
        kv = KV(space, Link(LocalDial(host, space), DEFAULT_TIMEOUT_S, None, translations_count), end)
        kv.session  # noqa: B018 (attaches)
    except BaseException:
        host.close()
        raise
    return kv
