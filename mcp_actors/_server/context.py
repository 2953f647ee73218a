"""The context of a call, which a tool, resource or prompt function takes by annotating a parameter with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Era, Peer
from mcp_actors._server.access import principal_of, request_of
from mcp_actors._server.peer_session import PeerSession, is_wanted
from mcp_actors._server.questions import Questions
from mcp_actors._server.scope import ServerScope, StateT
from mcp_actors._wire.messages import RequestId
from mcp_actors.abc import HttpRequest
from mcp_actors.logging import logger
from mcp_actors.principal import Principal
from mcp_actors.types import LoggingLevel

__all__ = ["Context"]

_TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class Context(Questions, Generic[StateT]):
    """One call, seen from the function that answers it; of no use after that function has returned.

    A function takes it by annotating a parameter with this class; the parameter is not part of any schema. With
    ``ctx: Context[Database]`` type checkers know that the server's lifespan yields a ``Database``, which ``ctx.state``
    is; at run time it is the same class. ``call`` is the engine's side of the call. All methods belong to the event
    loop; a plain ``def`` is given a `SyncContext`, whose methods wait in its worker thread. With ``loop="asyncio"``
    they are awaited in the function's asyncio loop, and wait in threads that the function starts there.

    When the client cancels the call, or its connection ends, the function sees `trio.Cancelled` at its next checkpoint
    (`asyncio.CancelledError` in asyncio, nothing in a worker thread); what it returns or raises then is not sent.
    """

    __slots__ = ("_asked", "_kept", "_logger", "_scope", "call", "params")

    def __init__(self, call: InboundCall, scope: ServerScope) -> None:
        self.call = call
        self.params = call.invocation.params
        """The params as they arrived, without ``_meta``."""
        self._scope = scope
        self._kept: dict[str, Any] = {}
        self._asked = 0
        self._logger: Any = None

    def __repr__(self) -> str:
        return f"<Context of {self.call!r}>"

    # -- the client and its request ---------------------------------------------------------------------------------

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id, with its JSON type."""
        return self.call.id

    @property
    def method(self) -> str:
        """The protocol method, such as ``tools/call``."""
        return self.call.invocation.method.name

    @property
    def meta(self) -> dict[str, Any]:
        """The request's ``_meta``, unknown keys included."""
        return self.call.invocation.meta

    @property
    def trace(self) -> dict[str, str]:
        """The W3C trace context of the request: ``traceparent``, ``tracestate`` and ``baggage``, those that came."""
        meta = self.meta
        return {key: value for key in _TRACE_KEYS if isinstance(value := meta.get(key), str)}

    @property
    def era(self) -> Era:
        """The protocol revision of this call."""
        return self.call.invocation.era

    @property
    def peer(self) -> Peer:
        """The client's own description: ``version``, ``capabilities`` and ``info``. Nothing of it is authenticated.

        Reading a capability or info that is malformed raises `RpcError` (-32602), which answers the call.
        """
        return self.call.invocation.peer

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions that both sides have (SEP-2133): the settings that the client declared, by the ids.

        A stateless client declares them in each request, and one with a session in its handshake.
        """
        declared = self.peer.raw_capabilities.get("extensions")
        if not isinstance(declared, dict):
            return {}
        offered = self.server.capabilities.extensions or {}
        return {id: settings for id, settings in declared.items() if id in offered}

    @property
    def principal(self) -> Principal | None:
        """The caller that the transport authenticated, ``None`` if it authenticates nobody.

        In a session its ``scopes`` and ``claims`` are those of the token that brought this call.
        """
        return principal_of(self.call)

    @property
    def request(self) -> HttpRequest | None:
        """The HTTP request that brought this call: its ``headers``, ``path``, ``query``, ``peer`` and ``principal``.

        In a session over Streamable HTTP it is the POST of this call, on a WebSocket the request for the upgrade, and
        with HTTP+SSE the GET that opened the stream. ``None`` with other transports. Where a `ResourceServer` has
        verified it, the headers ``authorization`` and ``dpop`` are left out, so that no token is passed on (MCP
        2026-07-28, Authorization, Access Token Privilege Restriction).
        """
        return request_of(self.call)

    @property
    def log_level(self) -> str | None:
        """The least severe level of log messages that the client wants, ``None`` if it wants none."""
        return self.era.wanted_log_level(self.call.invocation)

    @property
    def server(self) -> Any:
        """The `Server` that answers."""
        return self._scope.server

    @property
    def state(self) -> StateT:
        """The value that the server's lifespan yielded, ``None`` without a lifespan."""
        state: StateT = self._scope.state
        return state

    @property
    def session(self) -> PeerSession | None:
        """The session of this call, with a place for state of your own: ``ctx.session.get(Cart)``.

        ``None`` where each request stands for itself: for stateless clients over HTTP (MCP 2026-07-28), where sessions
        are off, and once the session has ended. State then belongs into ``ctx.state`` under a key of your own, such as
        ``ctx.principal`` or an id that one tool returns and others take. On a connection (stdio, WebSocket, sockets,
        memory) it is that of the connection, in every revision.
        """
        return self._scope.session_of(self.call.owner)

    @property
    def logger(self) -> Any:
        """A structlog logger with this session, request and method, for the operator; `log` is for the client."""
        if self._logger is None:
            self._logger = logger().bind(
                session=self.call.owner.name, request=self.call.id, method=self.method
            )
        return self._logger

    # -- messages to the client ------------------------------------------------------------------------------------

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, if the client wants that; always a checkpoint. MCP 2026-07-28, Progress.

        Waits while the client reads more slowly than this is called. Cancelled, the report may have been sent.

        Args:
            progress: How much is done, in any unit. A report that is not greater than the last one is not sent. One
                that is not greater than a beat of the engine since then (`Limits.beat`) is raised just above it.
            total: How much there is to do in all, if that is known.
            message: A text for people; clients of the revision 2024-11-05 do not get it.

        Raises:
            LocalProtocolError: The message is longer than the connection carries.
            trio.BrokenResourceError: The client cannot be reached any more, or has not read for
                `Limits.stall_timeout` seconds.
        """
        await trio.lowlevel.checkpoint()
        reports = self.call.reports
        if reports is not None:
            await reports.report(progress, total, message if self.era.progress_message else None)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification that belongs to this call, for methods that are not part of the protocol.

        Waits while the client reads slowly; sends nothing after the call was cancelled. Cancelled, the notification
        may have been sent.

        Args:
            method: The method of the notification.
            params: Its parameters, as JSON values.

        Raises:
            LocalProtocolError: The message is longer than the connection carries.
            trio.BrokenResourceError: The client cannot be reached any more, or has not read for
                `Limits.stall_timeout` seconds.
        """
        await self.call.notify(method, params)

    async def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:
        """Sends a log message to the client, if it wants messages of this level; always a checkpoint.

        MCP 2026-07-28, Logging. It must hold no secrets. Waits while the client reads slowly; cancelled, the message
        may have been sent.

        Args:
            level: One of `mcp_actors.types.LOGGING_LEVELS`.
            data: Any JSON value.
            logger: The name of the part of the server that logs.

        Raises:
            LocalProtocolError: There is no such level, or the message is longer than the connection carries.
            trio.BrokenResourceError: The client cannot be reached any more, or has not read for
                `Limits.stall_timeout` seconds.
        """
        wanted = is_wanted(level, self.log_level)
        await trio.lowlevel.checkpoint()
        if not wanted:
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        await self.call.notify("notifications/message", params)

    def close_stream(self) -> None:
        """Closes the HTTP response that waits for this call; the client requests the rest of it later (SEP-1699).

        For long calls, so that no connection is held for them. Nothing happens with clients of revisions in which they
        do not come back by themselves, and with other transports. The call goes on.
        """
        self.call.close_stream()

    def _key_of(self, question: t.InputRequest) -> str:
        self._asked += 1
        return f"{question.method.partition('/')[0]}-{self._asked}"
