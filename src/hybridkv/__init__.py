"""hybridkv: the memory manager for LLM KV caches.

The public names are imported when they are first used: `import hybridkv` itself is light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hybridkv.version import __version__

if TYPE_CHECKING:
    from hybridkv.paging.states import PageState, PublishOutcome
    from hybridkv.paging.windows import Window
    from hybridkv.service.client import KV, Found, Lease, PutCounts, Request, Reservation, connect, open
    from hybridkv.service.client.aio import AsyncKV, AsyncLease, AsyncRequest, AsyncReservation, connect_async
    from hybridkv.service.client.block_table import BlockTable
    from hybridkv.service.client.sequence import Sequence
    from hybridkv.service.config import Config, load_config
    from hybridkv.tiers.errors import (
        DeadlineExceededError,
        ExpiredError,
        FailedPreconditionError,
        ForeignHoldError,
        HybridKVError,
        InternalError,
        InvalidArgumentError,
        LawViolationError,
        NamespaceMismatchError,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        UnauthenticatedError,
        UnavailableError,
    )
    from hybridkv.tiers.keys import Keys
    from hybridkv.tiers.layout import BlockLayout
    from hybridkv.tiers.namespace import Namespace
    from hybridkv.tiers.states import Outcome, ReserveOutcome, SealOutcome, Tier

__all__ = [
    "KV",
    "AsyncKV",
    "AsyncLease",
    "AsyncRequest",
    "AsyncReservation",
    "BlockLayout",
    "BlockTable",
    "Config",
    "DeadlineExceededError",
    "ExpiredError",
    "FailedPreconditionError",
    "ForeignHoldError",
    "Found",
    "HybridKVError",
    "InternalError",
    "InvalidArgumentError",
    "Keys",
    "LawViolationError",
    "Lease",
    "Namespace",
    "NamespaceMismatchError",
    "NotFoundError",
    "Outcome",
    "PageState",
    "PermissionDeniedError",
    "PublishOutcome",
    "PutCounts",
    "Request",
    "Reservation",
    "ReserveOutcome",
    "ResourceExhaustedError",
    "SealOutcome",
    "Sequence",
    "Tier",
    "UnauthenticatedError",
    "UnavailableError",
    "Window",
    "__version__",
    "connect",
    "connect_async",
    "load_config",
    "open",
]

_HOMES = {
    "hybridkv.paging.states": ("PageState", "PublishOutcome"),
    "hybridkv.paging.windows": ("Window",),
    "hybridkv.service.client": ("KV", "Found", "Lease", "PutCounts", "Request", "Reservation", "connect", "open"),
    "hybridkv.service.client.aio": ("AsyncKV", "AsyncLease", "AsyncRequest", "AsyncReservation", "connect_async"),
    "hybridkv.service.client.block_table": ("BlockTable",),
    "hybridkv.service.client.sequence": ("Sequence",),
    "hybridkv.service.config": ("Config", "load_config"),
    "hybridkv.tiers.keys": ("Keys",),
    "hybridkv.tiers.layout": ("BlockLayout",),
    "hybridkv.tiers.namespace": ("Namespace",),
    "hybridkv.tiers.states": ("Outcome", "ReserveOutcome", "SealOutcome", "Tier"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF.get(name, "hybridkv.tiers.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
