"""What the operator sets: the `"hybridkv"` object within `--hicache-storage-backend-extra-config`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from hybridkv.connectors.guarded import RETRY_S
from hybridkv.tiers.errors import InvalidArgumentError

FIELD = "extra_config.hybridkv"
MAX_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """All optional. SGLang's config names neither revision nor RoPE settings: who changes them says so here.

    A wrong or unknown value raises InvalidArgumentError with its name.
    """

    address: str = ""
    """Of the daemon; empty: the one that hybridkv's own config names."""
    model: str = ""
    """Empty: the name that SGLang serves the model under."""
    revision: str = ""
    config_digest: str = ""
    salt: str = ""
    load_timeout_s: float = 5.0
    """Longest wait of a batch for pages that lie on disk."""
    store_timeout_s: float = 1.0
    """Longest wait of a batch for room."""
    daemon_timeout_s: float = 2.0
    """What a call may take beyond that, attaching included."""
    retry_s: float = RETRY_S
    """How long a daemon that was not there is left alone."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is str or field.type == "str":
                if not isinstance(value, str):
                    raise InvalidArgumentError(f"{FIELD}.{field.name}", f"must be text, got {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
                limit = f"must be within (0, {MAX_SECONDS:g}] seconds, got {value!r}"
                raise InvalidArgumentError(f"{FIELD}.{field.name}", limit)

    @classmethod
    def of(cls, extra_config: Mapping[str, Any] | None) -> Self:
        """From SGLang's extra config; what is not under "hybridkv" is SGLang's own."""
        given = (extra_config or {}).get("hybridkv", {})
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(FIELD, f"must be an object, got {given!r}")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise InvalidArgumentError(f"{FIELD}.{unknown[0]}", f"is not known; known: {', '.join(sorted(known))}")
        return cls(**given)
