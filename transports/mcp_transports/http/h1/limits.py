"""The limits of one HTTP listener: every bound on its peers, its default and the reason for it; and the clock that
keeps those of time.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import attrs
import trio

__all__ = ["HttpClock", "HttpLimits"]

KIB = 1024
MIB = 1024 * KIB

# The longest and the shortest time between two looks at the clocks of all connections, seconds.
_LONGEST_TICK = 1.0
_SHORTEST_TICK = 0.02


def _positive(_limits: HttpLimits, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than zero, not {value!r}")


@attrs.frozen(kw_only=True)
class HttpLimits:
    """The bounds of a listener; bytes, seconds and numbers. All of them are greater than zero.

    Times are kept by one ticker for all connections, so they are exact to about a second (finer when a limit is
    shorter than four seconds) and never run out early. ``math.inf`` switches one off.
    """

    head_bytes: int = attrs.field(default=32 * KIB, validator=_positive)
    """Request line and headers together: four times what most servers take, since mirrored parameters and tokens
    travel in headers. Over it: 431."""

    headers: int = attrs.field(default=100, validator=_positive)
    """Header lines of a request; a client with proxies in front of it sends about twenty. Over it: 431."""

    target_bytes: int = attrs.field(default=8 * KIB, validator=_positive)
    """The request target; RFC 9112 section 3 asks for 8000 at least. Over it: 414."""

    body_bytes: int = attrs.field(default=16 * MIB, validator=_positive)
    """A request's body, as long as the longest message of the other transports. Over it: 413, at once."""

    held_bytes: int = attrs.field(default=512 * MIB, validator=_positive)
    """The bodies of all requests that are not answered yet, complete or not; those that came whole in one read are not
    counted. Over it: 503 to the request whose body was about to grow."""

    held_bytes_per_address: int = attrs.field(default=256 * MIB, validator=_positive)
    """The part of ``held_bytes`` that one address (of IPv6 a network of 64 bits) may hold: the half, so that a single
    hostile client leaves the other half to others, while a reverse proxy, whose many clients have one address, hardly
    notices. Over it: 503."""

    head_time: float = attrs.field(default=10.0, validator=_positive)
    """From the first byte of a request to the end of its head; also for a TLS handshake. A head is a few packets, so
    a peer that needs longer holds a connection on purpose. Over it: 408."""

    body_time: float = attrs.field(default=30.0, validator=_positive)
    """Without any byte of an announced body; long enough for a lossy mobile network to recover. Over it: 408."""

    body_rate: float = attrs.field(default=KIB, validator=_positive)
    """Bytes a second that a body must bring on average once ``body_time`` is over, so that a byte now and then does
    not hold a request open for hours. Slower: 408."""

    idle_time: float = attrs.field(default=75.0, validator=_positive)
    """Between two requests of a connection; longer than the pools of usual clients keep theirs, so that the client
    closes first and no request crosses our close on its way. Over it: the connection is closed."""

    connections: int = attrs.field(default=20_000, validator=_positive)
    """Open at once; each costs a few KiB and a descriptor, so there are never more than the process may open, less an
    eighth of that for everything else. Over it the connection that has been silent longest is closed, if any has been
    for a second; otherwise: 503 with ``Retry-After``."""

    connections_per_address: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )
    """The part of ``connections`` that one address (of IPv6 a network of 64 bits) may have; ``None`` for the half, so
    that one client leaves the other half to others. Peers at a Unix socket have no address. Over it the one of its
    connections that has been silent longest is closed; otherwise: 503 with ``Retry-After``."""

    pipelined_requests: int = attrs.field(default=64, validator=_positive)
    """Complete requests that wait behind one that is not answered yet. Over it nothing more is read until some are
    answered, and that the peer left is only seen then (or when writing to it)."""

    pipelined_bytes: int = attrs.field(default=256 * KIB, validator=_positive)
    """Bytes read behind a request that is not answered yet. Over it as with ``pipelined_requests``."""

    write_buffer: int = attrs.field(default=256 * KIB, validator=_positive)
    """Unsent bytes from which on ``Response.full`` is true and ``Response.drained`` waits: about what the kernel
    buffers too, so a reader at full speed never finds us empty."""

    max_buffered: int = attrs.field(default=8 * MIB, validator=_positive)
    """Unsent bytes of a stream over which the peer is dropped: for writers that cannot wait. A single piece or a
    whole answer may be longer when nothing else is unsent."""

    write_timeout: float = attrs.field(default=30.0, validator=_positive)
    """Seconds for which a peer may take none of the bytes that wait for it. Over it the connection is dropped."""

    linger_time: float = attrs.field(default=2.0, validator=_positive)
    """Seconds for which bytes that a peer sends after our last answer are read and dropped: closing at once would
    reset the connection, and the answer could be lost (RFC 9112 section 9.6)."""


class HttpClock:
    """The time, as of the last tick. Reading it there spares every request two system calls."""

    __slots__ = ("_date_second", "_limits", "date_line", "heads", "idle_deadline", "now", "tick")

    def __init__(self, limits: HttpLimits) -> None:
        shortest = min(
            limits.head_time,
            limits.body_time,
            limits.idle_time,
            limits.write_timeout,
            limits.linger_time,
        )
        self.tick = max(_SHORTEST_TICK, min(_LONGEST_TICK, shortest / 4))
        """Seconds between two looks at the clocks of all connections."""
        self.date_line = b""
        self.heads: dict[int, bytes] = {}
        """By status: the status line and the date, filled by responses and emptied once a second."""
        self._limits = limits
        self._date_second = 0
        self.refresh()

    def refresh(self) -> None:
        """Looks at the system's clocks."""
        self.now = trio.current_time()
        self.idle_deadline = self.in_seconds(self._limits.idle_time)
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self.date_line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
            self.heads.clear()

    def in_seconds(self, seconds: float) -> float:
        """Returns a deadline that is never early although `now` may be a tick old."""
        return self.now + self.tick + seconds

    def body_deadline(self, began: float, size: int) -> float:
        """Returns the time by which more must have come of a body that began then and has brought ``size`` bytes.

        Once ``body_time`` is over, it must have brought ``body_rate`` bytes a second.
        """
        limits = self._limits
        slowest = began + self.tick + limits.body_time + size / limits.body_rate
        return min(self.in_seconds(limits.body_time), slowest)
