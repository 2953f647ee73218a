"""The life of a client as a table; nothing else decides what may happen when.

Rules:

* A client is opened once. One that was closed before it was opened cannot be opened any more.
* It is *connecting* until the first handshake has succeeded. If that fails the client is closed, except that a server
  which died of a request it did not know is connected to once more.
* A connection that is lost is made again only if the user asked for that: the client is *reconnecting* until another
  handshake has succeeded. Attempts that fail leave it there. Otherwise the client is closed.
* Closing is allowed at any time, any number of times. It takes until the connection and the server in this process, if
  there is one, have ended; no connection is made meanwhile.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["NEXT_STATE", "ClientEvent", "ClientState"]


class ClientState(Enum):
    NEW = "not connected"
    DISCARDED = "closed before it was opened"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "ended"


class ClientEvent(Enum):
    OPEN = "the user enters the client"
    CONNECTED = "a handshake has succeeded"
    LOST = "a connection, or an attempt to make one, has failed, and another attempt follows"
    CLOSE = "the user closes the client"
    END = "there is no connection and none will be made"


# A pair that is missing here is not allowed.
NEXT_STATE: dict[tuple[ClientState, ClientEvent], ClientState] = {
    (ClientState.NEW, ClientEvent.OPEN): ClientState.CONNECTING,
    (ClientState.NEW, ClientEvent.CLOSE): ClientState.DISCARDED,
    (ClientState.DISCARDED, ClientEvent.CLOSE): ClientState.DISCARDED,
    (ClientState.CONNECTING, ClientEvent.CONNECTED): ClientState.CONNECTED,
    (ClientState.CONNECTING, ClientEvent.LOST): ClientState.CONNECTING,
    (ClientState.CONNECTING, ClientEvent.CLOSE): ClientState.CLOSING,
    (ClientState.CONNECTING, ClientEvent.END): ClientState.CLOSED,
    (ClientState.CONNECTED, ClientEvent.LOST): ClientState.RECONNECTING,
    (ClientState.CONNECTED, ClientEvent.CLOSE): ClientState.CLOSING,
    (ClientState.CONNECTED, ClientEvent.END): ClientState.CLOSED,
    (ClientState.RECONNECTING, ClientEvent.CONNECTED): ClientState.CONNECTED,
    (ClientState.RECONNECTING, ClientEvent.LOST): ClientState.RECONNECTING,
    (ClientState.RECONNECTING, ClientEvent.CLOSE): ClientState.CLOSING,
    (ClientState.RECONNECTING, ClientEvent.END): ClientState.CLOSED,
    (ClientState.CLOSING, ClientEvent.CLOSE): ClientState.CLOSING,
    (ClientState.CLOSING, ClientEvent.END): ClientState.CLOSED,
    (ClientState.CLOSED, ClientEvent.CLOSE): ClientState.CLOSED,
}
