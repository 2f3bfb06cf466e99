"""How fast a lane is, measured from the batches it carried."""

STALE_S = 60.0
"""A speed measured longer ago is not known any more, so that a lane that was slow once is tried again."""

_KEEP = 0.8
"""What one batch leaves of the weight of those before it."""


class LaneSpeed:
    """Bytes per second over recent batches, each weighing what it carried: an exponentially weighted average.

    Shared by the workers of one lane. Thread-safe: state is replaced as a whole; of two batches that end in one moment
    one may go uncounted.
    """

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0)

    def __repr__(self) -> str:
        nbytes, seconds, _ = self._sums
        return f"LaneSpeed({nbytes / seconds / 1e9:.2f} GB/s)" if seconds else "LaneSpeed(unknown)"

    def note(self, nbytes: int, seconds: float, now: float) -> None:
        """A batch of `nbytes` took `seconds`; one that took no measurable time says nothing."""
        if nbytes <= 0 or seconds <= 0:
            return
        before, took, _ = self._sums
        self._sums = (_KEEP * before + nbytes, _KEEP * took + seconds, now)

    def bytes_per_s(self, now: float) -> float | None:
        """None when nothing was carried lately."""
        nbytes, seconds, measured_at = self._sums
        return nbytes / seconds if seconds and now - measured_at <= STALE_S else None
