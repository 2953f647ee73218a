"""The lifecycle of a session as a state table. Nothing else decides which message is allowed in which state.

The rules (MCP 2025-11-25, Lifecycle; the same in earlier revisions):

* Before the result of ``initialize`` the client may send only ``initialize`` and ``ping``.
* ``initialize`` is sent once, and never in a batch.
* After the result of ``initialize`` requests are accepted even before ``notifications/initialized``: over HTTP the two
  arrive in separate POSTs, which may overtake each other.
* Until ``notifications/initialized`` the server sends only pings and log messages. A request from the client counts as
  this notification, for clients that forget to send it.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["NEXT_STATE", "LifecycleEvent", "LifecycleState"]


class LifecycleState(Enum):
    """The states of a session on the server's side."""

    # The hash of Enum is written in Python, which is slow, and every request is looked up in the table.
    __hash__ = object.__hash__

    NEW = "new"
    ANSWERED = "answered"
    OPERATING = "operating"


class LifecycleEvent(Enum):
    """The messages of a client that the states tell apart."""

    __hash__ = object.__hash__

    INITIALIZE = "initialize"
    INITIALIZED = "notifications/initialized"
    PING = "ping"
    REQUEST = "any other request"


# A message is refused in a state if the pair is missing here.
NEXT_STATE: dict[tuple[LifecycleState, LifecycleEvent], LifecycleState] = {
    (LifecycleState.NEW, LifecycleEvent.INITIALIZE): LifecycleState.ANSWERED,
    (LifecycleState.NEW, LifecycleEvent.PING): LifecycleState.NEW,
    (LifecycleState.ANSWERED, LifecycleEvent.INITIALIZED): LifecycleState.OPERATING,
    (LifecycleState.ANSWERED, LifecycleEvent.PING): LifecycleState.ANSWERED,
    (LifecycleState.ANSWERED, LifecycleEvent.REQUEST): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.INITIALIZED): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.PING): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.REQUEST): LifecycleState.OPERATING,
}
