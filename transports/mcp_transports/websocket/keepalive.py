"""Finds lost peers: a silent one is pinged, and one that stays silent, or reads nothing, is dropped.

RFC 6455 section 5.5.2 has pings as a keep-alive and as a means to learn whether the peer is still there.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs

__all__ = ["KeepAliveAction", "KeepAliveTimes", "PeerActivity"]

# The ticker's longest and shortest sleep, seconds.
_LONGEST_TICK = 5.0
_SHORTEST_TICK = 0.02


def _positive(_times: KeepAliveTimes, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than zero, not {value!r}")


@attrs.frozen(kw_only=True)
class KeepAliveTimes:
    """The time limits for an inactive peer, in seconds. A ticker applies them: never early, and up to two ticks late.

    Raises:
        ValueError: if one of them is not greater than zero.
    """

    ping_interval: float = attrs.field(default=20.0, validator=_positive)
    """Silence after which a ping asks whether the peer is there; under the minute after which proxies hang up."""

    ping_timeout: float = attrs.field(default=20.0, validator=_positive)
    """Further silence after which the peer counts as gone. Any byte ends the silence."""

    write_timeout: float = attrs.field(default=30.0, validator=_positive)
    """Time without reading any byte that is sent to it after which a peer is dropped."""

    close_timeout: float = attrs.field(default=0.5, validator=_positive)
    """Time for which closing waits for the peer's Close frame; shorter than the engine's limit for closing."""

    @property
    def tick(self) -> float:
        """Seconds from one look at a peer to the next: a quarter of the shortest limit, within reason."""
        shortest = min(self.ping_interval, self.ping_timeout, self.write_timeout)
        return max(_SHORTEST_TICK, min(_LONGEST_TICK, shortest / 4))


class KeepAliveAction(Enum):
    """The actions that a check of a peer may lead to."""

    FINE = "nothing"
    PING = "a ping shall ask whether it is there"
    SILENT = "it was silent, also after a ping, and is to be dropped"
    STUCK = "it takes nothing that is sent to it, and is to be dropped"


class PeerActivity:
    """The recent activity of one peer. Its channel sets ``has_received`` and ``listening``."""

    __slots__ = (
        "_pinged",
        "_progress",
        "_silent_since",
        "_stuck_since",
        "has_received",
        "is_dropped",
        "listening",
    )

    def __init__(self, now: float) -> None:
        self._pinged = False
        self._progress = 0
        self._silent_since = self._stuck_since = now
        self.has_received = False
        """Whether any byte has come since the last look."""
        self.listening = False
        """Whether a task waits for bytes; without one a peer counts as active, because its bytes are not read."""
        self.is_dropped = False
        """Whether a look found it gone; from then on every look finds nothing to do."""

    def look(self, now: float, times: KeepAliveTimes, *, progress: int, sending: bool) -> KeepAliveAction:
        """Decides what is to be done at the time ``now``.

        Args:
            now: seconds on Trio's clock.
            times: the time limits.
            progress: grows with everything that the stream took.
            sending: whether a write is under way.
        """
        if self.is_dropped:
            return KeepAliveAction.FINE
        if progress != self._progress or not sending:
            self._progress = progress
            self._stuck_since = now
        elif now - self._stuck_since >= times.write_timeout:
            self.is_dropped = True
            return KeepAliveAction.STUCK
        if self.has_received or not self.listening:
            self.has_received = self._pinged = False
            self._silent_since = now
            return KeepAliveAction.FINE
        silence = now - self._silent_since
        if silence >= times.ping_interval and not self._pinged:
            self._pinged = True
            # However late this look is, the peer has the whole timeout for its answer.
            self._silent_since = now - times.ping_interval
            return KeepAliveAction.PING
        if self._pinged and silence >= times.ping_interval + times.ping_timeout:
            self.is_dropped = True
            return KeepAliveAction.SILENT
        return KeepAliveAction.FINE
