"""A two-mark switch, used for watermarks and for memory pressure."""


def latched(value: float, *, high: float, low: float, before: bool) -> bool:
    """On above `high`, off at or below `low`, unchanged between. A `high` of 1.0 or more is off."""
    if high >= 1.0 or value <= low:
        return False
    return before or value > high
