"""The counters of a session, and the snapshot of it and of everything below it."""

from __future__ import annotations

import attrs

from mcp_actors._actors.inbound_call import CallStatistics
from mcp_actors._actors.link import LinkStatistics
from mcp_actors._actors.outbound_call import OutboundCallStatistics

__all__ = ["Counters", "SessionStatistics"]


@attrs.define
class Counters:
    """The events on a session since it began, counted."""

    requests: int = 0
    """Requests that arrived."""
    cancelled: int = 0
    """Calls of the peer that it cancelled in flight."""
    late: int = 0
    """Cancellations of unknown or finished ids, answers that no request waits for, progress without a call."""
    malformed: int = 0
    """Frames that were no message."""
    refused: int = 0
    """Requests answered with an error before a handler saw them."""

    def add(self, other: Counters) -> None:
        """Adds the counts of another session."""
        self.requests += other.requests
        self.cancelled += other.cancelled
        self.late += other.late
        self.malformed += other.malformed
        self.refused += other.refused


@attrs.frozen
class SessionStatistics:
    """A snapshot of a session and of everything below it."""

    name: str
    peer: str
    state: str
    calls: tuple[CallStatistics, ...]
    """Requests of the peer in flight."""
    pending: tuple[OutboundCallStatistics, ...]
    """Requests of ours that wait for an answer."""
    link: LinkStatistics | None
    """``None`` for a session that no connection carries."""
    counters: Counters
    kept_bytes: int = 0
    """Bytes that the session makes the server remember: the description of the client, and subscribed URIs."""
    age: float = 0.0
    """Seconds since it began; 0 on a client."""
    version: str | None = None
    """The revision that server and client have agreed on; ``None`` before that, and on a client."""
    client: str | None = None
    """The name by which a client has introduced itself, with its version; ``None`` before that, and on a client."""
    principal: str | None = None
    """The client's user, if the transport has authenticated one."""
