"""The state of a client's connection: the present session, and the version and capabilities agreed in it.

The supervisor keeps this up to date. Requests read it, and wait here for a session that is on its way. The life of a
client is a table, `NEXT_STATE`; nothing else decides what may happen when. Its rules:

* A client is opened once. One that was closed before it was opened cannot be opened any more.
* It is *connecting* until the first handshake has succeeded. If that fails the client is closed, except that a server
  which died of a request it did not know is connected to once more.
* A connection that is lost is made again only if the user asked for that: the client is *reconnecting* until another
  handshake has succeeded. Attempts that fail leave it there. Otherwise the client is closed.
* Closing is idempotent and allowed at any time. It takes until the connection and the server in this process, if there
  is one, have ended; no connection is made meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum

import attrs
import trio

from mcp_actors._actors.session import Session
from mcp_actors._eras.era import IDEMPOTENCY, Era, declared_names
from mcp_actors.errors import (
    AuthorizationError,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    SessionExpired,
)
from mcp_actors.supervision.arguments import require_trio
from mcp_actors.types import DiscoverResult, Implementation, ServerCapabilities

__all__ = ["NEXT_STATE", "OPENED_BEFORE", "ClientEvent", "ClientState", "Connectivity", "Negotiated"]


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

OPENED_BEFORE = "a Client is good for one 'async with' block; make a new one"
_NOT_CONNECTED = "not connected: use 'async with Client(...) as client'"
_NO_SESSION_TO_COME = {ClientState.NEW, ClientState.DISCARDED, ClientState.CLOSING, ClientState.CLOSED}


@attrs.frozen
class Negotiated:
    """The result of a handshake: the version and the capabilities that client and server agreed on."""

    era: Era
    capabilities: ServerCapabilities
    info: Implementation
    instructions: str | None
    discovered: DiscoverResult | None
    """The answer to discovery, where the revision has that."""

    @property
    def takes_keys(self) -> bool:
        """Whether the server keeps the answers to calls with keys."""
        return IDEMPOTENCY in (self.capabilities.extensions or {})

    @functools.cached_property
    def declared(self) -> frozenset[str]:
        """The dotted names of the capabilities that the server declared."""
        return declared_names(self.capabilities)


class Connectivity:
    """The connection of one client as those see it who use it.

    Args:
        restarts: Whether a connection that is lost is made again; one whose session was forgotten always is.
    """

    def __init__(self, restarts: bool) -> None:
        self.restarts = restarts
        self.state = ClientState.NEW
        self.on_lost: Callable[[ConnectionLost | SessionExpired], None] = _ignore_loss
        """Is called once for each connection that is lost, but not for one that the user closes."""
        self.loss: McpError | None = None
        """Why there is no session, once one was lost."""
        self.attempted: Session | None = None
        """The session whose handshake is being performed."""
        self._session: Session | None = None
        self._negotiated: Negotiated | None = None
        self._changed = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Connectivity {self.state.value}>"

    # -- for the supervisor ----------------------------------------------------------------------------------------

    def move(self, event: ClientEvent) -> None:
        """Applies the table of `lifecycle`; raises for what it does not allow, which only a user's ``OPEN`` can be.

        Raises:
            LocalProtocolError: The client was opened before.
            ConnectionLost: The client was closed before it was opened.
        """
        state = NEXT_STATE.get((self.state, event))
        if state is None:
            if self.state is ClientState.DISCARDED:
                raise ConnectionLost("the client was closed before it was connected")
            raise LocalProtocolError(OPENED_BEFORE)
        self.state = state
        if state is ClientState.CLOSED:
            # It belongs to the client, which has this, and must not wait for the garbage collector.
            self.on_lost = _ignore_loss
        self._changed.unpark_all()

    def connected(self, session: Session, negotiated: Negotiated) -> None:
        """Takes a session whose handshake has succeeded."""
        self._session, self._negotiated = session, negotiated
        self.attempted = None
        if not self.is_closing:
            self.move(ClientEvent.CONNECTED)

    def disconnected(self, loss: McpError | None) -> None:
        """Takes note that the session, or the attempt to make one, has ended."""
        had_session, self._session = self._session is not None, None
        self.attempted = None
        self.loss = loss
        if had_session and not self.is_closing and isinstance(loss, ConnectionLost | SessionExpired):
            self.on_lost(loss)

    @property
    def is_closing(self) -> bool:
        """Whether the client is being closed, so that no connection is made any more."""
        return self.state is ClientState.CLOSING

    # -- for requests ------------------------------------------------------------------------------------------------

    @property
    def negotiated(self) -> Negotiated:
        """The result of the last handshake; raises `LocalProtocolError` before the first one."""
        if self._negotiated is None:
            require_trio("a Client", "Client")
            raise LocalProtocolError(_NOT_CONNECTED)
        return self._negotiated

    @property
    def has_met_server(self) -> bool:
        """Whether a handshake has ever succeeded."""
        return self._negotiated is not None

    @property
    def is_connected(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def session(self) -> Session:
        """The session of the moment; raises `ConnectionLost`, `ConnectFailed` or `SessionExpired` without one."""
        if self._session is None:
            raise self._why_not()
        return self._session

    async def live_session(self, seconds: float, lost: Session | None = None) -> Session:
        """Returns a session that has not ended, waiting for one that is on its way.

        Args:
            seconds: The longest wait.
            lost: A session that is over, though the supervisor may not have noticed its end yet.

        Raises:
            ConnectionLost: There is no session, and none came in time.
            ConnectFailed: The last attempt to connect again failed.
            SessionExpired: The server has forgotten the session.
        """
        if not self._has_live_session(lost):
            with trio.move_on_after(seconds):
                while (
                    (lost is not None or self._comes_again())
                    and self.state not in _NO_SESSION_TO_COME
                    and not self._has_live_session(lost)
                ):
                    await self._changed.park()
        return self.session

    def _has_live_session(self, lost: Session | None) -> bool:
        session = self._session
        return session is not None and session is not lost and not session.outbound.ended

    def _comes_again(self) -> bool:
        """Whether another connection is made after the end of the present one."""
        loss = self.loss if self._session is None else self._session.loss
        return self.restarts or isinstance(loss, SessionExpired)

    def _why_not(self) -> McpError:
        """Makes an exception of its own for each caller: one that is raised twice mixes up two tracebacks."""
        loss = self.loss
        if isinstance(loss, AuthorizationError):
            return loss.as_new()
        if isinstance(loss, ConnectFailed):
            failed = ConnectFailed(str(loss))
            failed.__cause__ = loss.__cause__
            return failed
        if isinstance(loss, SessionExpired):
            return SessionExpired(*loss.args)
        if isinstance(loss, ConnectionLost):
            return loss.renewed()
        require_trio("a Client", "Client")
        return ConnectionLost(_NOT_CONNECTED)


def _ignore_loss(lost: ConnectionLost | SessionExpired) -> None:
    """Takes a loss where the user has no handler for it."""
