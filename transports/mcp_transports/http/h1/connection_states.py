"""The states of an HTTP/1.1 connection, as a table; nothing else decides what the connection does next.

Rules (RFC 9112 section 9):

* A client may send further requests before it has an answer (pipelining); they are answered in their order.
* After the last answer that a connection will carry, because a side asked for that or because a request was malformed,
  the server takes no further request. It closes its own half and goes on reading for a while, since closing both
  halves at once could lose the answer of a client that is still sending.
* A client that closes its sending half while an answer is outstanding counts as gone: over TCP that looks like a
  close, and a disconnect has to cancel the work. When the answer is complete by then, it is still sent.

Whether bytes are unsent is no state: a slow reader may be sending its next request at the same time. It decides which
event an end causes (`ConnectionEvent.LAST` or `ConnectionEvent.OVER`).
"""

from __future__ import annotations

from enum import Enum

__all__ = ["NEXT_STATE", "STATE_AFTER", "ConnectionEvent", "ConnectionState"]


class ConnectionState(Enum):
    # The hash of Enum is written in Python, and this table is looked up several times for every request.
    __hash__ = object.__hash__

    IDLE = "idle"
    """Between two requests."""
    READING = "reading"
    """A request is half read, and no answer is outstanding."""
    ANSWERING = "answering"
    """An answer is outstanding. Further requests are read and wait."""
    DRAINING = "draining"
    """No further request is taken. Outstanding answers are made and sent; received bytes are dropped."""
    LINGERING = "lingering"
    """Everything is sent and our half is closed. Received bytes are dropped, for `HttpLimits.linger_time`."""
    UPGRADED = "upgraded"
    """Another protocol has the byte stream."""
    CLOSED = "closed"
    """Nothing is read, sent or started any more."""


class ConnectionEvent(Enum):
    __hash__ = object.__hash__

    BYTES = "a part of a request has come"
    REQUEST = "a request is complete"
    ANSWERED = "no answer is outstanding any more"
    LAST = "no further request is taken, but there is something to answer or to send"
    SENT = "the last byte has been sent, and our half is closed"
    UPGRADE = "another protocol takes over"
    OVER = "the connection ends: nothing is outstanding, or nothing can be sent"


_STATE, _EVENT = ConnectionState, ConnectionEvent
_OPEN = (_STATE.IDLE, _STATE.READING, _STATE.ANSWERING)

# A pair that is missing here leaves the state as it is.
NEXT_STATE: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (_STATE.IDLE, _EVENT.BYTES): _STATE.READING,
    (_STATE.IDLE, _EVENT.REQUEST): _STATE.ANSWERING,
    (_STATE.READING, _EVENT.REQUEST): _STATE.ANSWERING,
    (_STATE.ANSWERING, _EVENT.ANSWERED): _STATE.IDLE,
    (_STATE.ANSWERING, _EVENT.UPGRADE): _STATE.UPGRADED,
    **{(each, _EVENT.LAST): _STATE.DRAINING for each in _OPEN},
    (_STATE.DRAINING, _EVENT.SENT): _STATE.LINGERING,
    **{(each, _EVENT.OVER): _STATE.CLOSED for each in _STATE if each is not _STATE.CLOSED},
}

# The same for every pair, since a lookup that cannot fail is the cheapest.
STATE_AFTER = {(state, event): NEXT_STATE.get((state, event), state) for state in _STATE for event in _EVENT}
