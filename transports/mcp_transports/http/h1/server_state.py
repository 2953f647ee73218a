"""The state that the connections of one server share: time, parsers, a receive buffer, a poller, counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Literal, Protocol

import attrs
import trio

from mcp_actors.supervision.budget import BudgetStatistics
from mcp_transports._poller import open_poller
from mcp_transports._ticker import Ticker, Timed
from mcp_transports.http.h1.byte_stream import RECEIVE_BYTES
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.parser import ParserPool
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

__all__ = ["App", "ConnectionCounts", "HttpClock", "ServerState"]

App = Callable[[Request, Response], None]

# The longest and the shortest time between two looks at the clocks of all connections, seconds.
_LONGEST_TICK = 1.0
_SHORTEST_TICK = 0.02


class ServedConnection(Timed, Protocol):
    """A connection, as far as its server is concerned."""

    @property
    def busy(self) -> bool: ...
    @property
    def unsent(self) -> int: ...
    def stop(self) -> None: ...


@attrs.frozen(kw_only=True)
class ConnectionCounts:
    """A snapshot; counters count from the start of the server."""

    connections: int
    """Open now."""
    busy: int
    """Of these, how many have a request that is not answered completely, or bytes that are not sent."""
    requests: int
    """Handed to the application."""
    refused: int
    """Answered by the server itself, because they were malformed, too long or too slow."""
    rejected: int
    """Connections turned away because too many were open, of one address or in all."""
    lost: int
    """Connections that broke, or whose peer left, while an answer was outstanding."""
    unsent: int
    """Bytes that wait for peers to take them."""
    bodies: BudgetStatistics
    """Bytes of bodies of requests that are not answered yet, by address."""
    by_address: BudgetStatistics
    """Open connections by address, those that became WebSockets included."""


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


class ServerState:
    """Shared by all connections of a server.

    Args:
        app: The application, called with each request and its response. It must not wait.
        limits: The bounds on peers.
    """

    def __init__(self, app: App, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.stopping: bool | Literal["accepting"] = False
        """Whether every answer that begins from now on closes its connection; ``"accepting"`` where new connections
        still get one."""
        self.clock = HttpClock(limits)
        self.ticker: Ticker[ServedConnection] = Ticker(self.clock.tick, self.clock.refresh)
        self.poller = open_poller()
        self.parsers = ParserPool(limits)
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.requests = self.refused = self.rejected = self.lost = 0

    def close(self) -> None:
        """Closes the poller, and the parsers that are kept for later requests."""
        self.poller.close()
        self.parsers.close()

    def statistics(self, by_address: BudgetStatistics) -> ConnectionCounts:
        """Returns a snapshot of the counters."""
        members = self.ticker.members
        return ConnectionCounts(
            connections=len(members),
            busy=sum(each.busy for each in members),
            requests=self.requests,
            refused=self.refused,
            rejected=self.rejected,
            lost=self.lost,
            unsent=sum(each.unsent for each in members),
            bodies=self.parsers.bodies.statistics(),
            by_address=by_address,
        )
