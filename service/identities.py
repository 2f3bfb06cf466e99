"""Who a caller is: the tenants of the config, and the proofs that each of them accepts.

A token is compared by a keyed digest whose key is drawn at the start, so that how long a comparison takes says nothing
about any token. Thread-safe: `use_tokens` puts a whole new table in place.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridkv.service.config import Config, TenantConfig
from hybridkv.service.tokens import AUTHORIZATION, SCHEME, tokens_of
from hybridkv.tiers.errors import InvalidArgumentError, UnauthenticatedError
from hybridkv.tiers.namespace import owned_fingerprint, owner_tag

_REFUSED = "the caller proves to be no tenant: a token, a client certificate or the user of a Unix socket is needed"


@dataclass(frozen=True, slots=True)
class Identity:
    """A tenant. `operator`: it may do everything; else only what concerns its own blocks."""

    name: str
    operator: bool

    @property
    def tag(self) -> bytes:
        """What the fingerprints of its namespaces begin with."""
        return owner_tag(self.name)

    def own(self, fingerprint: bytes) -> bytes:
        """What its namespace of this fingerprint is known by in the daemon."""
        return owned_fingerprint(self.name, fingerprint)


class Identities:
    """The tenants of one daemon. Make one only where the config has some."""

    def __init__(self, config: Config) -> None:
        """Reads the token files. Raises InvalidArgumentError naming the tenant's key."""
        self._tenants: Mapping[str, TenantConfig] = config.tenants
        self._named = {name: Identity(name, one.role == "operator") for name, one in self._tenants.items()}
        self._by_uid = {one.uid: self._named[name] for name, one in self._tenants.items() if one.uid is not None}
        self._by_certificate = {
            one.certificate_name: self._named[name] for name, one in self._tenants.items() if one.certificate_name
        }
        self._key = secrets.token_bytes(32)
        self._issued = {name: secrets.token_urlsafe(32) for name in self._named}
        self._by_digest = self.read_tokens()

    @property
    def uids(self) -> frozenset[int]:
        """Users whose processes are a tenant."""
        return frozenset(self._by_uid)

    def read_tokens(self) -> Mapping[bytes, Identity]:
        """What the token files say now, for `use_tokens`. Raises as the constructor."""
        found = {self._digest(self._issued[name]): one for name, one in self._named.items()}
        for name, tenant in self._tenants.items():
            key = f"tenants.{name}.token_path"
            for token in tokens_of(Path(tenant.token_path), key) if tenant.token_path else ():
                digest = self._digest(token)
                if found.setdefault(digest, self._named[name]).name != name:
                    raise InvalidArgumentError(key, f"has a token of tenant {found[digest].name} too")
        return found

    def use_tokens(self, read: Mapping[bytes, Identity]) -> None:
        """Go by these tokens from now on, and by no other."""
        self._by_digest = read

    def issued_to(self, uid: int) -> str:
        """A token for processes of this user, good until this daemon ends. Raises UnauthenticatedError."""
        identity = self._by_uid.get(uid)
        if identity is None:
            raise UnauthenticatedError(f"uid {uid} is no tenant")
        return self._issued[identity.name]

    def caller(self, context: Any) -> Identity:
        """Who makes a call, by the token in its metadata or the certificate of its connection; where there are both they
        must be one tenant's. Raises UnauthenticatedError."""
        token = _bearer(context.invocation_metadata() or ())
        by_certificate = self._of_certificate(context.auth_context())
        if token is None:
            if by_certificate is None:
                raise UnauthenticatedError(_REFUSED)
            return by_certificate
        by_token = self._of_token(token)
        if by_token is None or by_certificate not in (None, by_token):
            raise UnauthenticatedError(_REFUSED)
        return by_token

    def _of_token(self, token: str) -> Identity | None:
        return self._by_digest.get(self._digest(token))

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "surrogateescape"), hashlib.sha256)

    def _of_certificate(self, proofs: Mapping[str, Iterable[bytes]]) -> Identity | None:
        """The tenant that a verified client certificate names; None when it names none, or more than one."""
        if not self._by_certificate or not proofs.get("x509_pem_cert"):
            return None
        names = [*proofs.get("x509_common_name", ()), *proofs.get("x509_subject_alternative_name", ())]
        found = {self._by_certificate.get(name.decode("utf-8", "replace")) for name in names} - {None}
        return found.pop() if len(found) == 1 else None


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token of the call; None when it has none. Two are as good as a wrong one."""
    given = [value for key, value in metadata if key == AUTHORIZATION]
    if not given:
        return None
    if len(given) > 1 or not isinstance(given[0], str) or not given[0].startswith(SCHEME):
        raise UnauthenticatedError(_REFUSED)
    return given[0].removeprefix(SCHEME)
