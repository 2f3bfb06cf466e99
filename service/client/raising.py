"""The client's seam for gRPC's errors."""

from typing import Any

import grpc

from hybridkv.service.client.transport import LostError
from hybridkv.service.status import CLASS_METADATA, error_from
from hybridkv.tiers.errors import HybridKVError

_ON_THE_WAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""What gRPC answers when no daemon did, or the channel was closed meanwhile."""


def raised_by(error: Any) -> HybridKVError:
    """The error that the daemon raised; LostError when the status is gRPC's own and means that it is not there."""
    raised = error_from(error)
    if error.code() in _ON_THE_WAY and not _from_daemon(error):
        return LostError(str(raised))
    return raised


def _from_daemon(error: Any) -> bool:
    return any(key == CLASS_METADATA for key, _ in error.trailing_metadata() or ())
