"""Token bucket for background bytes. No clock, no sleep, no lock: the owner passes the time and does the waiting."""

from hybridkv.tiers.errors import InvalidArgumentError


class TokenBucket:
    """`rate_bytes_per_s` in the long run, up to `burst_bytes` at once; a rate of None is no limit.

    A single request may exceed the burst: it goes through and its excess is waited for. Not thread-safe.
    """

    def __init__(self, rate_bytes_per_s: float | None, burst_bytes: int, now: float) -> None:
        self._rate = _checked(rate_bytes_per_s)
        self._burst = burst_bytes
        self._tokens = float(burst_bytes)
        self._at = now

    def take(self, nbytes: int, now: float) -> float:
        """Account for `nbytes`; the seconds to wait from `now` before moving them."""
        if self._rate is None:
            return 0.0
        self._refill(self._rate, now)
        self._tokens -= nbytes
        return max(0.0, -self._tokens / self._rate)

    @property
    def capped(self) -> bool:
        """There is a limit."""
        return self._rate is not None

    def give_back(self, nbytes: int) -> None:
        """Undo `take` for bytes that were not moved after all."""
        self._tokens = min(float(self._burst), self._tokens + nbytes)

    def set_rate(self, rate_bytes_per_s: float | None, now: float) -> None:
        """Change the rate from `now` on; what was taken before stays taken."""
        checked = _checked(rate_bytes_per_s)
        if self._rate is not None:
            self._refill(self._rate, now)
        self._rate, self._at = checked, max(self._at, now)

    def __repr__(self) -> str:
        return f"TokenBucket(rate={self._rate}, burst={self._burst}, tokens={self._tokens:.0f})"

    def _refill(self, rate: float, now: float) -> None:
        elapsed = max(0.0, now - self._at)  # a clock that went back earns nothing
        self._tokens = min(float(self._burst), self._tokens + elapsed * rate)
        self._at = max(self._at, now)


def _checked(rate: float | None) -> float | None:
    if rate is not None and rate <= 0:
        raise InvalidArgumentError("rate_bytes_per_s", f"{rate} is not above 0 (leave it unset for no limit)")
    return rate
