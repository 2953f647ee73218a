"""The counters of a session and of all of them, and the snapshot of one and of everything below it."""

from __future__ import annotations

import attrs

from mcp_actors._actors.call_statistics import CallStatistics
from mcp_actors._actors.link import LinkStatistics
from mcp_actors._actors.outbound_call import OutboundCallStatistics
from mcp_actors._record import ValueRecord

__all__ = ["Counters", "SessionStatistics", "Totals"]


@attrs.define(eq=False, repr=False)
class Counters(ValueRecord):
    """The events on a session since it began, counted."""

    __hash__ = None  # type: ignore[assignment]

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


@attrs.define(eq=False, repr=False)
class Totals(ValueRecord):
    """The events of all conversations together, those that have ended included, since the server was first served."""

    __hash__ = None  # type: ignore[assignment]

    counters: Counters = attrs.field(factory=Counters)
    sessions: int = 0
    """Sessions and connections that have begun."""
    bytes_in: int = 0
    """Bytes of messages that came over connections; those of single exchanges are not counted."""
    bytes_out: int = 0
    """Bytes of messages that were written to connections."""

    def add(self, counters: Counters, link: LinkStatistics | None = None) -> None:
        """Adds the events of one conversation."""
        self.counters.add(counters)
        if link is not None:
            self.bytes_in += link.bytes_in
            self.bytes_out += link.bytes_out


@attrs.frozen(eq=False, repr=False)
class SessionStatistics(ValueRecord):
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
