"""The snapshot of an inbound call."""

from __future__ import annotations

import attrs

from mcp_actors._record import ValueRecord
from mcp_actors._wire.messages import RequestId

__all__ = ["CallStatistics"]


@attrs.frozen(eq=False, repr=False)
class CallStatistics(ValueRecord):
    """A snapshot of an inbound call."""

    id: RequestId
    method: str
    target: str | None
    """The tool, prompt or resource that is called."""
    age: float
    """Seconds since it arrived."""
    state: str
    """``waiting`` for a place, ``running``, ``cancelled`` (its handler cleans up) or ``replaced`` (likewise, and the
    client is asked for input, or is sent the error with which an operator has ended the call)."""
    principal: str | None = None
    """The caller's name, if the transport has authenticated it."""
