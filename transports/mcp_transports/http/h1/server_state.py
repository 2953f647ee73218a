"""What the connections of one server share: time, parsers, a receive buffer, a poller, counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol

import attrs
import trio

from mcp_transports._poller import Poller
from mcp_transports.http.h1.byte_stream import RECEIVE_BYTES
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.parser import RequestParser
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

__all__ = ["App", "ConnectionCounts", "ServerState"]

App = Callable[[Request, Response], None]

# The ticker's longest and shortest sleep, seconds.
_LONGEST_TICK = 1.0
_SHORTEST_TICK = 0.02
# Parsers kept for the next request; a few more than are half-way through one at a time.
_SPARE_PARSERS = 64


class Member(Protocol):
    """A connection, as far as the hub is concerned."""

    read_deadline: float

    @property
    def write_deadline(self) -> float: ...
    @property
    def busy(self) -> bool: ...
    @property
    def unsent(self) -> int: ...
    def expire(self, now: float) -> None: ...
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
    """Answered by the server itself because what came was no request, was too much or took too long."""
    rejected: int
    """Connections turned away because too many were open."""
    lost: int
    """Connections that broke, or whose peer left, while an answer was outstanding."""
    unsent: int
    """Bytes that wait for peers to take them."""


class ServerState:
    """Shared by all connections of a server."""

    def __init__(self, app: App, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.members: set[Member] = set()
        self.stopping = False
        self.open = 0  # connections, those included whose task has not run yet
        self.requests = self.refused = self.rejected = self.lost = 0
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        times = (
            limits.head_time,
            limits.body_time,
            limits.idle_time,
            limits.write_timeout,
            limits.linger_time,
        )
        self.tick = max(_SHORTEST_TICK, min(_LONGEST_TICK, min(times) / 4))
        self.now = 0.0
        self.date_line = b""
        self.heads: dict[int, bytes] = {}
        self.idle_deadline = 0.0
        self._date_second = 0
        self._spare: list[RequestParser] = []
        self._awake = trio.Event()
        self.poller = Poller()
        self.refresh()

    def refresh(self) -> None:
        """Looks at the clocks. Between two ticks nobody does, which spares every request two system calls."""
        self.now = trio.current_time()
        self.idle_deadline = self.in_seconds(self.limits.idle_time)
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self.date_line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
            self.heads.clear()

    def in_seconds(self, seconds: float) -> float:
        """A deadline that is never early although `now` may be a tick old."""
        return self.now + self.tick + seconds

    async def keep_time(self) -> None:
        """Expires what is over; sleeps for good while there is no connection, so that an idle server costs nothing."""
        while True:
            if not self.members:
                self._awake = trio.Event()
                await self._awake.wait()
            await trio.sleep(self.tick)
            self.refresh()
            now = self.now
            expired = [
                each for each in self.members if each.read_deadline <= now or each.write_deadline <= now
            ]
            for member in expired:
                member.expire(now)

    def add(self, member: Member) -> None:
        """A connection begins."""
        self.members.add(member)
        self._awake.set()

    def take_parser(self) -> RequestParser:
        """A parser that is between two requests."""
        return self._spare.pop() if self._spare else RequestParser(self.limits)

    def give_parser(self, parser: RequestParser) -> None:
        """Takes back a parser that is between two requests."""
        if len(self._spare) < _SPARE_PARSERS:
            self._spare.append(parser)
        else:
            parser.close()

    def close(self) -> None:
        """Frees what is kept for later."""
        self.poller.close()
        while self._spare:
            self._spare.pop().close()

    def statistics(self) -> ConnectionCounts:
        """How things are now."""
        members = self.members
        return ConnectionCounts(
            connections=len(members),
            busy=sum(each.busy for each in members),
            requests=self.requests,
            refused=self.refused,
            rejected=self.rejected,
            lost=self.lost,
            unsent=sum(each.unsent for each in members),
        )
