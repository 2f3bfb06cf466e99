"""The gate: every call of a daemon with tenants is made by one of them, and touches its own sessions only.

It stands in the boundary, before any handler: who calls, whether its role may, and whether the session it names is its
own. A session of another tenant and one that never was are refused by the same words, in the same place.
"""

from contextvars import ContextVar
from typing import Any, Protocol

from hybridkv.service.identities import Identities, Identity
from hybridkv.tiers.errors import FailedPreconditionError, NotFoundError, PermissionDeniedError

_OF_WORKERS = frozenset({"Admin.Stats", "Admin.Explain", "Admin.Clear"})
"""What a worker may ask of Admin: it is told of, and clears, its own blocks only. Whatever else Admin has is the operator's."""

_WRITES_THROUGH_MAPPINGS = frozenset({"KVCache.Reserve", "KVCache.Seal"})

_caller: ContextVar[Identity | None] = ContextVar("hybridkv_caller", default=None)


class SessionOwners(Protocol):
    """What the gate asks of the host."""

    def owner_of(self, session: int) -> str | None:
        """The tenant's name; None when the session is not known."""

    def maps(self, session: int) -> bool:
        """Whether the session's process was handed the regions."""


def caller() -> Identity | None:
    """Who makes the call that is being served; None where the daemon has no tenants."""
    return _caller.get()


def check_owner(host: SessionOwners, session: int) -> None:
    """For streams, whose session comes with their first message. Raises NotFoundError unless it is the caller's own."""
    identity = _caller.get()
    if identity is not None and host.owner_of(session) != identity.name:
        raise NotFoundError(f"session: {session} is not attached")


class Gate:
    """Admits calls. Used by the event loop's thread only."""

    def __init__(self, identities: Identities, host: SessionOwners) -> None:
        self._identities = identities
        self._host = host

    def admit(self, method: str, request: Any, context: Any) -> None:
        """`method`: "KVCache.Acquire". Raises UnauthenticatedError, PermissionDeniedError, NotFoundError, and
        FailedPreconditionError for what needs mapped memory."""
        identity = self._identities.caller(context)
        of_all = method == "Sequences.AdjustPageSize" and not request.HasField("sequence")
        if not identity.operator and (of_all or (method.startswith("Admin.") and method not in _OF_WORKERS)):
            raise PermissionDeniedError(f"{method}: tenant {identity.name} is no operator")
        _caller.set(identity)
        session = getattr(request, "session", None)
        if session is None or of_all:
            return
        check_owner(self._host, session)
        if (method in _WRITES_THROUGH_MAPPINGS or method.startswith("Sequences.")) and not self._host.maps(session):
            # It could publish a slot that it never filled, and read what another tenant left there.
            raise FailedPreconditionError(f"{method}: this session maps no memory; use Write and Read")
