"""A watcher: a response of server-sent events, one for each snapshot."""

from __future__ import annotations

import trio

from mcp_actors.admin import Feed
from mcp_actors.logging import log
from mcp_transports.admin.access import Caller
from mcp_transports.http.h1.response import Response

__all__ = ["EventStream"]

# Snapshots that a watcher may miss one after the other, while what was sent before is still not read.
MOST_BEHIND = 5


class EventStream:
    """Shows every snapshot to one client, and drops it when it does not read.

    Args:
        response: Has begun.
        feed: Where the snapshots come from.
        caller: Whose it is. It ends when their access does.
    """

    def __init__(self, response: Response, feed: Feed, caller: Caller) -> None:
        self._response = response
        self._feed = feed
        self._name = caller.name
        self._ends = trio.current_time() + caller.seconds_left
        self._behind = 0

    def __repr__(self) -> str:
        return f"<EventStream to {self._name}, {self._behind} behind>"

    def begin(self) -> None:
        """Shows snapshots from now on, until the client leaves or is dropped."""
        self._response.on_gone = lambda: self._feed.remove(self)
        self._feed.add(self)

    def show(self, snapshot: bytes) -> None:
        """Sends a snapshot, or leaves it out while the client has not read what was sent before."""
        response = self._response
        if response.gone:
            self._feed.remove(self)
        elif trio.current_time() > self._ends:
            self._feed.remove(self)
            response.abort()
        elif response.full:
            self._behind += 1
            if self._behind > MOST_BEHIND:
                log.warning("a watcher that does not read was dropped", who=self._name)
                self._feed.remove(self)
                response.abort()
        else:
            self._behind = 0
            try:
                response.write(b"data: %b\n\n" % snapshot)
            except trio.BrokenResourceError:
                self._feed.remove(self)
