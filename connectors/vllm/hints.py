"""What a caller may say of one request, in its `kv_transfer_params`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridkv.tiers.errors import HybridKVError, InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints, Importance

log = logging.getLogger(__name__)

PREFIX = "hybridkv."


@dataclass(frozen=True, slots=True)
class RequestHints:
    """`store`: whether its blocks are stored; `hints`: what the daemon is told of them (`end_of_session` at the end)."""

    store: bool = True
    hints: Hints = NO_HINTS


def hints_of(params: Mapping[str, Any] | None) -> RequestHints:
    """The hints in `kv_transfer_params`: keys that start with "hybridkv."; all others are other connectors'.

    hybridkv.priority              "low", "normal" or "high"
    hybridkv.no_store              true: nothing of this request is stored
    hybridkv.end_of_session        true: nothing will continue this chain
    hybridkv.expected_next_use_s   seconds from the request's end
    hybridkv.request_class         0..255

    Advice only: one that is wrong is logged and left out, since a request must not fail over it.
    """
    given = {name: value for name, value in (params or {}).items() if name.startswith(PREFIX)}
    known: dict[str, Any] = {}
    store = True
    for name, value in given.items():
        short = name.removeprefix(PREFIX)
        try:
            if short == "no_store":
                store = not _flag(name, value)
            else:
                known[short] = _value(short, name, value)
                Hints(**{short: known[short]})
        except HybridKVError as error:
            known.pop(short, None)
            log.warning("kv_transfer_params: %s; the hint is left out", error)
    return RequestHints(store, Hints(**known))


def _value(short: str, name: str, value: Any) -> Any:
    if short == "priority":
        if not isinstance(value, str) or value.upper() not in Importance.__members__:
            raise InvalidArgumentError(name, f"{value!r} is none of low, normal, high")
        return Importance[value.upper()]
    if short == "end_of_session":
        return _flag(name, value)
    if short in ("expected_next_use_s", "request_class"):
        return value
    raise InvalidArgumentError(name, "unknown")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(name, f"must be true or false, got {value!r}")
    return value
