"""How long this engine takes to compute a token of a prompt, learned from its steps."""

from collections.abc import Callable

WEIGHT = 0.2
"""Of the newest step; an exponential mean."""

MIN_TOKENS = 64
"""Steps that compute fewer say more of what a step costs anyway than of what a token does."""


class PrefillRate:
    """Seconds a token, over steps that only compute prompts and load nothing. One thread: the engine's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: float | None = None
        self._tokens = 0
        self._seconds_per_token: float | None = None

    def begin(self, tokens: int, *, pure: bool) -> None:
        """A step with `tokens` of prompts starts; `pure` when it does nothing else."""
        self._began = self._clock() if pure and tokens >= MIN_TOKENS else None
        self._tokens = tokens

    def end(self) -> None:
        """Its computation is over."""
        if self._began is None:
            return
        now = (self._clock() - self._began) / self._tokens
        before = self._seconds_per_token
        self._seconds_per_token = now if before is None else before + WEIGHT * (now - before)
        self._began = None

    def seconds_for(self, tokens: int) -> float | None:
        """What computing `tokens` would take; None before anything was learned."""
        return None if self._seconds_per_token is None else self._seconds_per_token * tokens
