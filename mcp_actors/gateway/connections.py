"""The connections to one upstream: which callers share one, what each one is doing, and how much all of them may do.

====================================  ============================================================================
server, caller                        connection
====================================  ============================================================================
one that keeps no sessions, or        one for all callers
``sessions="shared"``
one that keeps sessions, or           for a caller with a session one, until that ends; callers without a session
``sessions="own"``                    share one for each principal if they declare nothing that a server could ask
                                      for, and otherwise each call has one alone, which the next such call of the
                                      principal gets, unless the server received roots over it
====================================  ============================================================================

A server that keeps sessions asks its client, not a call: so whatever it asks must have one client to go to.

A slow upstream holds so many calls and no more (`UpstreamLoad`), one caller half of them, and what it sends unasked is
read at a bounded pace.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import attrs
import trio

from mcp_actors._actors.session import ReadingPace
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._server.peer_session import PeerSession, is_wanted
from mcp_actors._wire.codec import encode_value
from mcp_actors.client import Client
from mcp_actors.errors import McpError, Overloaded, RpcError
from mcp_actors.gateway.held_calls import RETRY_AFTER, HeldCall
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.tasks import TASKS
from mcp_actors.types import ClientCapabilities, LoggingLevel, ServerCapabilities

__all__ = [
    "ASKING_CAPABILITIES",
    "FIRST",
    "GATEWAYS",
    "LOOP",
    "SHARED",
    "AloneKey",
    "ConnectionTable",
    "GatewayCircle",
    "Key",
    "MetServer",
    "UpstreamConnection",
    "UpstreamLoad",
    "gateways_of",
    "is_gateway",
    "key_of",
]


SHARED = "shared"
"""The key of the connection that all callers share."""
FIRST = "first"
"""The key of the connection that is made before the first call, to see what the server is."""
ASKING_CAPABILITIES = ("sampling", "elicitation", "roots")
"""The capabilities that let a server ask its client."""


# The capability under `experimental`, and the member of `_meta`, by which gateways know each other.
GATEWAYS = "mcp-actors/gateways"
LOOP = 508
"""The code of the refusal of a request that goes round: the HTTP status for a loop (RFC 5842)."""
# Gateways that a request or an entry may have come through, and characters of the id of one.
MOST_GATEWAYS = 64
LONGEST_ID = 32


class GatewayCircle:
    """Ends the circles of gateways that are upstreams of each other, whoever was there first.

    Each gateway has a random id, by which it is known to gateways that are its clients or upstreams.

    ====================================  ==========================================================================
    an upstream that is the caller, or    is hidden from that caller
    one before it
    a connection that has come back       is refused: it declares the gateways before it, if it is for one session
    a request that has come back          is passed on to no upstream, and waits for the list of none; its ``_meta``
                                          has the gateways that it has come through
    an entry of a list that has come      is left out; its ``_meta`` has the gateways that it has come through
    back
    ====================================  ==========================================================================

    A client may send any ids. They are used for its own requests, and for connections that serve it alone.
    """

    def __init__(self) -> None:
        self._own = secrets.token_urlsafe(12)

    def __repr__(self) -> str:
        return f"<GatewayCircle {self._own}>"

    # -- connections ---------------------------------------------------------------------------------------------------

    def declared_in(self, capabilities: ClientCapabilities, *, is_of_session: bool) -> ClientCapabilities:
        """Returns the capabilities with which an upstream is connected to.

        Args:
            capabilities: Those of the caller.
            is_of_session: Whether the connection will serve one session alone, so that the gateways before this one are
                known.
        """
        experimental = capabilities.experimental or {}
        before = _gateways_in(experimental.get(GATEWAYS)) if is_of_session else []
        known = {**experimental, GATEWAYS: _path([self._own, *before])}
        return attrs.evolve(capabilities, experimental=known)

    def declared_to(self, caller: Mapping[str, Any], capabilities: ServerCapabilities) -> ServerCapabilities:
        """Returns the capabilities that a caller with its own is shown: a gateway learns the id of this one."""
        known = {id: each for id, each in (capabilities.experimental or {}).items() if id != GATEWAYS}
        if is_gateway(caller):
            known[GATEWAYS] = _path([self._own])
        return attrs.evolve(capabilities, experimental=known or None)

    def refuse_itself(self, caller: Mapping[str, Any]) -> None:
        """Raises `RpcError` if the client with these capabilities is this gateway, or one behind it."""
        if self._own in gateways_of(caller):
            raise RpcError(LOOP, "this gateway is an upstream of itself")

    # -- requests and entries ------------------------------------------------------------------------------------------

    def has_come_back(self, meta: Mapping[str, Any] | None) -> bool:
        """Whether a request or an entry with this ``_meta`` has come through this gateway, or through too many."""
        if not meta or GATEWAYS not in meta:
            return False
        before = _gateways_in(meta[GATEWAYS])
        return self._own in before or len(before) >= MOST_GATEWAYS

    def require_new(self, ctx: Context[Any]) -> None:
        """Raises `RpcError` if a request has come back."""
        if self.has_come_back(ctx.call.invocation.meta):
            raise RpcError(LOOP, "this request has come back to a gateway that has passed it on already")

    def path_of(self, meta: Mapping[str, Any] | None) -> dict[str, list[str]]:
        """Returns the gateways that a request or an entry with this ``_meta`` has come through behind this one."""
        return _path([self._own, *_gateways_in((meta or {}).get(GATEWAYS))])

    def marked(self, entry: Any) -> Any:
        """Returns an entry of a list as a gateway is shown it."""
        return attrs.evolve(entry, meta={**(entry.meta or {}), GATEWAYS: self.path_of(entry.meta)})


def is_gateway(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client or a server with these capabilities is a gateway of this package."""
    experimental = capabilities.get("experimental")
    return isinstance(experimental, dict) and GATEWAYS in experimental


def gateways_of(capabilities: Mapping[str, Any]) -> list[str]:
    """Returns the ids of gateways in the capabilities of a client or a server; none if it is no gateway."""
    return _gateways_in(capabilities["experimental"][GATEWAYS]) if is_gateway(capabilities) else []


def _path(ids: list[str]) -> dict[str, list[str]]:
    # An experimental capability is an object in every revision, and other SDKs refuse anything else.
    return {"ids": ids[:MOST_GATEWAYS]}


def _gateways_in(path: object) -> list[str]:
    ids = path.get("ids") if isinstance(path, dict) else None
    if not isinstance(ids, list):
        return []
    return [each for each in ids[:MOST_GATEWAYS] if isinstance(each, str) and len(each) <= LONGEST_ID]


class UpstreamLoad:
    """The calls in flight at one upstream, in all and of each caller.

    Args:
        limit: How many there may be; one caller may have half of them.
        notifications: How many notifications a second are read from all its connections.
    """

    def __init__(self, limit: int, notifications: int) -> None:
        self.limit = limit
        self.pace = ReadingPace(notifications)
        self.limit_of_caller = max(1, limit // 2)
        self.in_flight = 0
        self._of_callers: dict[object, int] = {}

    def __repr__(self) -> str:
        return f"<UpstreamLoad {self.in_flight}/{self.limit} callers={len(self._of_callers)}>"

    @property
    def callers(self) -> int:
        """The number of callers that have a call in flight."""
        return len(self._of_callers)

    def begin(self, caller: object) -> None:
        """Counts a call that begins.

        Raises:
            Overloaded: There are too many already, of this caller or in all.
        """
        of_caller = self._of_callers.get(caller, 0)
        if of_caller >= self.limit_of_caller:
            raise Overloaded.for_caller("calls at one server", self.limit_of_caller, RETRY_AFTER)
        if self.in_flight >= self.limit:
            raise Overloaded.for_caller("calls of all callers at one server", self.limit, RETRY_AFTER)
        self.in_flight += 1
        self._of_callers[caller] = of_caller + 1

    def end(self, caller: object) -> None:
        """Counts a call that has ended."""
        self.in_flight -= 1
        left = self._of_callers[caller] - 1
        if left:
            self._of_callers[caller] = left
        else:
            del self._of_callers[caller]


@attrs.frozen
class MetServer:
    """The server of a connection, as its handshake has shown it."""

    negotiated: Negotiated
    names_requests: bool
    """Whether the binding says with which request a notification came, as HTTP does."""
    has_tasks: bool
    """Whether calls of tools may become tasks, in either dialect."""
    keeps_session: bool
    """Whether it may remember something from one request to the next."""
    gateway: str | None
    """Its id, if it is a gateway of this package."""


class UpstreamConnection:
    """A client of an upstream's server, for one caller or for all.

    Args:
        declared: What the client declares: the capabilities of the caller that it is for.
        caller: The caller that it is made for, as limits count callers; ``None`` if it is made before the first call.
    """

    client: Client
    """The client, which the upstream's actor makes with callbacks into this connection."""
    server: MetServer
    """Its server, once it is open."""

    def __init__(self, declared: ClientCapabilities, caller: str | None) -> None:
        self.key: Hashable = None
        """Whose it is: what `key_of` returns, `SHARED` or `FIRST`."""
        self.caller = caller
        self.declared = declared
        self.is_of_one = False
        """Whether it serves one session of a client, or one call at a time."""
        self.calls: dict[Context[Any], HeldCall | None] = {}
        """The calls that are forwarded over it now, in the order in which they came; with those that may be held."""
        self.followed: set[str] = set()
        """The resources that are subscribed to over it."""
        self.log_level: LoggingLevel | None = None
        """The log level that its server was given."""
        self.has_answered = False
        """Whether its server has answered anything since the handshake."""
        self.has_sent_roots = False
        """Whether its server has received the roots of a client."""
        self.idle_since = trio.current_time()
        """When the last call over it ended."""

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self.client!r} calls={len(self.calls)}>"

    def opened(self) -> None:
        """Takes note of what the handshake has shown of the server."""
        negotiated = self.client._connectivity.negotiated
        channel = self.client._connectivity.session.link.channel
        extensions = negotiated.capabilities.extensions or {}
        is_stateless = negotiated.era.declares_in_requests
        has_tasks = TASKS in extensions if is_stateless else self.client._tool_tasks.may_augment()
        keeps_session = not is_stateless and channel.keeps_session
        ids = _gateways_in((negotiated.capabilities.experimental or {}).get(GATEWAYS))
        gateway = ids[0] if ids else None
        self.server = MetServer(negotiated, channel.mirrors, has_tasks, keeps_session, gateway)

    @property
    def is_open(self) -> bool:
        """Whether requests can be made over it."""
        return self.client._connectivity.is_connected

    @property
    def knows_whose_logs(self) -> bool:
        """Whether it is known for whom a log message is."""
        return self.is_of_one or self.server.names_requests

    def level_to_set(self, ctx: Context[Any]) -> LoggingLevel | None:
        """Returns the log level that the server's session needs before a call, ``None`` if it needs no other one."""
        wanted: Any = ctx.log_level
        if wanted is None or wanted == self.log_level or not self.is_of_one:
            return None
        if ctx.era.declares_in_requests and is_wanted(wanted, self.log_level):
            # Other calls of the same session may want more, and each gets no more than it wants.
            return None
        level: LoggingLevel = wanted
        return None if self.server.negotiated.capabilities.logging is None else level

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Gives the session of the server a log level; what it refuses costs no call."""
        self.log_level = level
        try:
            await self.client.set_log_level(level)
        except McpError as error:
            log.debug("an upstream was not given a log level", wanted=level, error=printable(str(error), 200))


@attrs.frozen
class AloneKey:
    """The key of connections that have one call at a time: of one principal's that declare the same."""

    principal: str | None
    declared: bytes


Key = Hashable


def key_of(ctx: Context[Any]) -> Key:
    """Returns the key of a caller's connection to a server that keeps sessions."""
    session: PeerSession | None = ctx.session
    if session is not None and not ctx.call.was_answered:
        # The call of a task goes on when its session has ended.
        return session
    principal = None if ctx.principal is None else ctx.principal.key
    declared = ctx.peer.raw_capabilities
    asked = {name: declared[name] for name in ASKING_CAPABILITIES if name in declared}
    if asked or ctx.log_level is not None or ctx.call.was_answered:
        return AloneKey(principal, encode_value(asked))
    return ("principal", principal)


class ConnectionTable:
    """The connections of one upstream, by whose they are.

    Args:
        limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opening = 0
        """Connections that are being made."""
        self._of_key: dict[Key, UpstreamConnection] = {}
        self._free: dict[AloneKey, list[UpstreamConnection]] = {}
        self._lent: dict[UpstreamConnection, AloneKey] = {}

    def __repr__(self) -> str:
        return f"<ConnectionTable {len(self)}/{self.limit}>"

    def __len__(self) -> int:
        return len(self._of_key) + len(self._lent) + sum(map(len, self._free.values()))

    def __contains__(self, connection: object) -> bool:
        return any(each is connection for each in self)

    def __iter__(self) -> Iterator[UpstreamConnection]:
        yield from list(self._of_key.values())
        yield from list(self._lent)
        for each in list(self._free.values()):
            yield from list(each)

    def take(self, key: Key) -> UpstreamConnection | None:
        """Returns the open connection for a caller, ``None`` if one has to be made.

        One that the caller has alone is lent to it until `give_back`.
        """
        if key.__class__ is not AloneKey:
            connection = self._of_key.get(key)
            return connection if connection is not None and connection.is_open else None
        assert isinstance(key, AloneKey)
        free = self._free.get(key, [])
        for connection in reversed(free):
            if connection.is_open and not connection.has_sent_roots:
                self._out_of_free(key, connection)
                self._lent[connection] = key
                return connection
        return None

    def put(self, key: Key, connection: UpstreamConnection) -> None:
        """Adds a connection; one alone is free at first."""
        connection.key = key
        connection.is_of_one = isinstance(key, PeerSession | AloneKey)
        if isinstance(key, AloneKey):
            self._free.setdefault(key, []).append(connection)
        else:
            self._of_key[key] = connection

    def give_back(self, connection: UpstreamConnection) -> bool:
        """A call has ended: a connection that it had alone is free for the next one. Others stay where they are.

        Returns:
            Whether it has to be closed: its server may remember the roots that it received, and the next call may be
            another client's.
        """
        if connection not in self._lent:
            return False
        if connection.has_sent_roots and not connection.followed:
            return True
        key = self._lent.pop(connection)
        if connection.is_open:
            self._free.setdefault(key, []).append(connection)
        return False

    def remove(self, connection: UpstreamConnection) -> bool:
        """Forgets a connection; returns whether it was there."""
        key = connection.key
        if not isinstance(key, AloneKey):
            was_there = self._of_key.get(key) is connection
            if was_there:
                del self._of_key[key]
            return was_there
        if self._lent.pop(connection, None) is not None:
            return True
        was_there = connection in self._free.get(key, ())
        if was_there:
            self._out_of_free(key, connection)
        return was_there

    def _out_of_free(self, key: AloneKey, connection: UpstreamConnection) -> None:
        free = self._free[key]
        free.remove(connection)
        if not free:
            del self._free[key]

    def adopt(self, key: Key, caller: str) -> bool:
        """Gives the connection that was made first to a caller; returns whether there is one that is open."""
        first = self._of_key.get(FIRST)
        if first is None or not first.is_open:
            return False
        del self._of_key[FIRST]
        first.caller = caller
        self.put(key, first)
        return True

    def idle(self) -> list[UpstreamConnection]:
        """Returns the connections that no session, call or subscription has, the one that is idle longest first.

        That of all callers is not among them.
        """
        found = [
            each
            for key, each in self._of_key.items()
            if key != SHARED and not isinstance(key, PeerSession) and not each.calls and not each.followed
        ]
        for free in self._free.values():
            found += [each for each in free if not each.followed]
        return sorted(found, key=lambda each: each.idle_since)

    def idle_for(self, seconds: float) -> list[UpstreamConnection]:
        """Returns those of `idle` that have been so for so many seconds."""
        now = trio.current_time()
        return [each for each in self.idle() if now - each.idle_since >= seconds]

    def require_room(self, caller: str | None, opening: int) -> UpstreamConnection | None:
        """Returns an idle connection that has to make room for another one, ``None`` if there is room.

        Args:
            caller: The caller for whom the other one is, ``None`` before the first call: one may have half of all.
            opening: How many are being made for the same caller.

        Raises:
            Overloaded: All of them are in use.
        """
        of_caller = max(1, self.limit // 2)
        if caller is not None and opening + sum(each.caller == caller for each in self) >= of_caller:
            raise Overloaded.for_caller("connections to one server", of_caller, RETRY_AFTER)
        if len(self) + self.opening < self.limit:
            return None
        idle = self.idle()
        if not idle:
            raise Overloaded.for_caller("connections of all callers to one server", self.limit, RETRY_AFTER)
        return idle[0]
