"""The snapshot of an inbound call."""

from __future__ import annotations

import attrs

from mcp_actors._eras.era import Invocation
from mcp_actors._record import ValueRecord
from mcp_actors._wire.messages import RequestId

__all__ = ["CallStatistics", "statistics_of"]


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


def statistics_of(invocation: Invocation, age: float, state: str) -> CallStatistics:
    """Returns the snapshot of a call in flight, by its request."""
    method, principal = invocation.method, invocation.principal
    target = invocation.params.get(method.target) if method.target and method.shown else None
    name = target if isinstance(target, str) else None
    user = None if principal is None else principal.subject
    return CallStatistics(invocation.id, method.name, name, age, state, user)
