"""The lifecycle of a legacy session as a table; nothing else decides what is allowed when.

Rules (lifecycle page of the revisions up to the last with ``initialize``):

* Before the ``initialize`` result the client may send ``initialize`` and ``ping`` only.
* ``initialize`` is sent once, and never in a batch.
* Once ``initialize`` is answered, requests are good even before ``notifications/initialized`` arrives: over HTTP the
  two travel in separate POSTs and may overtake each other.
* Until ``notifications/initialized`` the server sends pings and log messages only. A client that forgets to send it
  but goes on with requests is taken at its word.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["NEXT_STATE", "Event", "State"]


class State(Enum):
    # The hash of Enum is written in Python, and this table is looked up for every request.
    __hash__ = object.__hash__

    NEW = "new"
    ANSWERED = "answered"
    OPERATING = "operating"


class Event(Enum):
    __hash__ = object.__hash__

    INITIALIZE = "initialize"
    INITIALIZED = "notifications/initialized"
    PING = "ping"
    REQUEST = "any other request"


# A pair that is missing here is not allowed.
NEXT_STATE: dict[tuple[State, Event], State] = {
    (State.NEW, Event.INITIALIZE): State.ANSWERED,
    (State.NEW, Event.PING): State.NEW,
    (State.ANSWERED, Event.INITIALIZED): State.OPERATING,
    (State.ANSWERED, Event.PING): State.ANSWERED,
    (State.ANSWERED, Event.REQUEST): State.OPERATING,
    (State.OPERATING, Event.INITIALIZED): State.OPERATING,
    (State.OPERATING, Event.PING): State.OPERATING,
    (State.OPERATING, Event.REQUEST): State.OPERATING,
}
