"""How a client proves who it is: a token, a client certificate, or the user its process runs as."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridkv.service.listening import side_socket_path
from hybridkv.service.side.client import fetch_token
from hybridkv.service.tokens import bearer_metadata, check_token
from hybridkv.service.tokens import token_file as token_in
from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError, UnauthenticatedError

if TYPE_CHECKING:
    import grpc

UNIX = "unix:"
ENV_TOKEN_FILE = "HYBRIDKV_TOKEN_FILE"
"""Of a client: where its token is, unless the caller says it. In a file, never in the environment itself."""

Metadata = tuple[tuple[str, str], ...]
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Proofs:
    """Made by `proofs`. `token_path` is read anew for each attach, so that a token may be replaced. No token is shown."""

    token: str
    token_path: Path | None
    credentials: "grpc.ChannelCredentials | None"

    def __repr__(self) -> str:
        return f"Proofs(token: {'yes' if self.token else self.token_path}, TLS: {self.credentials is not None})"

    def metadata(self) -> Metadata:
        """What goes with each call. Raises InvalidArgumentError when the token's file is no good."""
        return bearer_metadata(self.token or (token_in(self.token_path, "token_file") if self.token_path else ""))

    def of_user(self, address: str, refusal: UnauthenticatedError, timeout_s: float) -> Metadata:
        """What the daemon gives this process for its user, where the caller named no token. Raises `refusal` when that
        is nothing."""
        path = beside(address)
        if path is None or self.token or self.token_path:
            raise refusal
        try:
            return bearer_metadata(fetch_token(path, timeout_s))
        except HybridKVError as error:
            raise refusal from error


def proofs(
    *,
    token: str | None = None,
    token_file: PathLike | None = None,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    credentials: "grpc.ChannelCredentials | None" = None,
) -> Proofs:
    """Checked. `ca`, `cert` and `key` are PEM files; see `connect`. Raises InvalidArgumentError naming the argument."""
    if token is not None and token_file is not None:
        raise InvalidArgumentError("token_file", "is given, and token too; one of them belongs")
    if token is not None:
        check_token(token, "token")
    if credentials is not None and (ca, cert, key) != (None, None, None):
        raise InvalidArgumentError("credentials", "are given, and ca, cert or key too")
    if (cert is None) != (key is None):
        raise InvalidArgumentError("cert", "must be given together with key")
    if (ca, cert) != (None, None):
        credentials = _tls(ca, cert, key)
    if token is None and token_file is None:
        token_file = os.environ.get(ENV_TOKEN_FILE) or None
    return Proofs(token or "", None if token_file is None else Path(token_file), credentials)


def beside(address: str) -> Path | None:
    """Where the side socket lies by default; None when the address is no Unix socket's."""
    if not address.startswith(UNIX):
        return None
    path = address.removeprefix(UNIX)
    return side_socket_path(Path(path[2:] if path.startswith("//") else path))


def _tls(ca: PathLike | None, cert: PathLike | None, key: PathLike | None) -> "grpc.ChannelCredentials":
    """Without `ca`: the roots that gRPC comes with."""
    import grpc

    parts = {"ca": ca, "key": key, "cert": cert}
    return grpc.ssl_channel_credentials(*(_pem(name, path) for name, path in parts.items()))


def _pem(field: str, path: PathLike | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(field, f"{os.fspath(path)}: {error.strerror}") from error
