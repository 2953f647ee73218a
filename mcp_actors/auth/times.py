"""When something that was noted by the time of day ends: the same on both sides of authorization."""

from __future__ import annotations

__all__ = ["is_ahead"]


def is_ahead(until: float, longest: float, now: float) -> bool:
    """Returns whether a time is still to come, and no further away than it was when it was noted.

    A clock that was set back would lengthen every wait by as much, and what was found out for half a minute would count
    for a day.

    Args:
        until: The time, in seconds since the epoch.
        longest: The seconds for which it was noted.
        now: The time that it is.
    """
    # With a second for clocks that are corrected by a little, and for rounding errors.
    return 0 < until - now <= longest + 1.0
