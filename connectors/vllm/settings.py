"""What a user may say in `kv_connector_extra_config`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from hybridkv.tiers.checks import checked_text
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import checked_seconds
from hybridkv.tiers.namespace import MAX_TEXT_BYTES

MAX_SECONDS = 600.0


class LoadMode(StrEnum):
    """SYNC: in the step that needs the blocks, layer by layer ahead of the computation. ASYNC: before the request is
    scheduled, other requests run meanwhile. AUTO: ASYNC where a block has to come from disk first, else SYNC."""

    SYNC = "sync"
    ASYNC = "async"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The connector's settings; docs/engines.md describes each. Wrong and unknown keys raise InvalidArgumentError.

    address             the daemon's; "" = `daemon.socket` of the config that the command line uses
    salt                keeps this deployment's blocks from all others'
    load                how blocks are brought in
    store               whether computed blocks are stored
    timeout_s           what one call to the daemon may take
    load_timeout_s      what a load waits for blocks that are on their way up
    retry_s             between two tries to reach a daemon that is not there
    use_recompute_s     do not load what would land later than it can be computed here
    """

    address: str = ""
    salt: str = ""
    load: LoadMode = LoadMode.AUTO
    store: bool = True
    timeout_s: float = 0.5
    load_timeout_s: float = 5.0
    retry_s: float = 1.0
    use_recompute_s: bool = True

    def __post_init__(self) -> None:
        for name in ("address", "salt"):
            checked_text(f"{PREFIX}.{name}", getattr(self, name), MAX_TEXT_BYTES, allow_empty=True)
        for name in ("store", "use_recompute_s"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(f"{PREFIX}.{name}", f"must be true or false, got {getattr(self, name)!r}")
        for name in ("timeout_s", "load_timeout_s", "retry_s"):
            if not checked_seconds(f"{PREFIX}.{name}", getattr(self, name), MAX_SECONDS) > 0:
                raise InvalidArgumentError(f"{PREFIX}.{name}", "must be more than 0 seconds")
        try:
            object.__setattr__(self, "load", LoadMode(self.load))
        except ValueError:
            known = ", ".join(LoadMode)
            raise InvalidArgumentError(f"{PREFIX}.load", f"{self.load!r} is none of {known}") from None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From what the user wrote; without an address, the one that the command line would use."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise InvalidArgumentError(f"{PREFIX}.{unknown[0]}", f"unknown; known are {', '.join(sorted(known))}")
        settings = cls(**given)
        if settings.address:
            return settings
        from hybridkv.service.config import load_config

        return cls(**{**given, "address": load_config().daemon.socket})


PREFIX = "kv_connector_extra_config"
