"""The settings that all streams of a listener share."""

from __future__ import annotations

from typing import Literal

import attrs

from mcp_actors.abc import EventLog
from mcp_transports.http.server.sse_response import OpenSseResponses

__all__ = ["SessionEnding", "StreamSettings"]

SessionEnding = Literal["deleted", "closed", "failed"]
"""Why a session ended: its client deleted it, this side closed it, or it failed."""


@attrs.frozen
class StreamSettings:
    """The settings that all streams of a listener share."""

    open_responses: OpenSseResponses
    """The registry of the responses that carry events now."""
    longest: int
    """Bytes of the longest message that is sent."""
    store: EventLog | None
    """Keeps events for clients that resume a stream; without a store no stream can be resumed."""
    json_replies: bool
    """Whether a POST is always answered with JSON."""
    retry: int
    """Milliseconds after which a client comes back when its stream was closed on purpose (SEP-1699)."""

    @property
    def waits_for_log(self) -> bool:
        """Whether an event may leave only once the log has kept it, because other nodes have to find it then."""
        return self.store is not None and self.store.spans_processes
