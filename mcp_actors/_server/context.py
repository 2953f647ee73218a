"""The context of a call, which a tool, resource or prompt function takes by annotating a parameter with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Era, Peer
from mcp_actors._eras.sampling_history import history_problem
from mcp_actors._schema.signature import JsonType
from mcp_actors._server.access import principal_of, request_of
from mcp_actors._server.asking import ask_by_requests, ask_by_retry
from mcp_actors._server.client_requests import flat_form, missing_capability
from mcp_actors._server.peer_session import PeerSession, is_wanted
from mcp_actors._server.scope import ServerScope
from mcp_actors._wire.messages import RequestId
from mcp_actors.abc import HttpRequest
from mcp_actors.errors import LocalProtocolError, MissingCapability
from mcp_actors.logging import logger
from mcp_actors.principal import Principal
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequest,
    ListRootsParams,
    LoggingLevel,
    Root,
    SamplingMessage,
    TextContent,
)

__all__ = ["Context"]

_TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class Context:
    """One call, seen from the function that answers it; of no use after that function has returned.

    A function takes it by annotating a parameter with this class; the parameter is not part of any schema. ``call`` is
    the engine's side of the call. All methods belong to the event loop; a plain ``def`` is given a `SyncContext`, whose
    methods wait in its worker thread. With ``loop="asyncio"`` they are awaited in the function's asyncio loop, and wait
    in threads that the function starts there.

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
    def state(self) -> Any:
        """The value that the server's lifespan yielded, ``None`` without a lifespan."""
        return self._scope.state

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

    # -- asking the client -----------------------------------------------------------------------------------------

    async def elicit(
        self,
        message: str,
        schema: Mapping[str, Any] | type,
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> ElicitResult:
        """Asks the person at the client to fill in a form. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Elicitation.

        Args:
            message: The question, for the person.
            schema: The form: a flat JSON Schema, or a class with such fields (text, numbers, booleans, choices).
            key: The name of the question in every run of the function; by default one that counts up.
            ttl: As `ask`.

        Returns:
            What the person did (``action``) and, if that was to accept, the ``content`` of the form, which fits the
            schema.

        Raises:
            LocalProtocolError: No form can ask for what ``schema`` describes; else as `ask`.
            TypeError: The class cannot be described by a schema.
            McpError: As `ask`.
        """
        requested = schema if isinstance(schema, Mapping) else JsonType(schema).schema
        question = ElicitFormParams(message=message, requested_schema=flat_form(requested))
        result: ElicitResult = await self._ask_one(question, key, ttl)
        return result

    async def elicit_url(
        self, message: str, url: str | Callable[[str], str], *, key: str | None = None
    ) -> ElicitResult:
        """Asks the person to do something at a URL. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Elicitation. The result says whether the person agreed to open the URL, not what came of it:
        what handles the page tells the client of a session by `Server.elicitation_complete`, with the elicitation's id.

        Args:
            message: The reason, for the person.
            url: The page; it must hold no secrets. Or a function that is given the elicitation's id, an unguessable
                text that is another one in each run, and returns the page.
            key: The name of the question in every run of the function; by default one that counts up.

        Raises:
            McpError: As `ask`.
            Exception: What ``url`` raises.
        """
        id = secrets.token_urlsafe(16)
        page = url if isinstance(url, str) else url(id)
        question = ElicitUrlParams(message=message, url=page, elicitation_id=id)
        result: ElicitResult = await self._ask_one(question, key)
        return result

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        ttl: float | None = None,
        **more: Any,
    ) -> CreateMessageResult:
        """Asks the client's model. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Sampling.

        Args:
            messages: The messages, or the text of one message of the user.
            max_tokens: How many tokens the model may generate.
            key: The name of the question in every run of the function; by default one that counts up.
            ttl: As `ask`.
            more: Further fields of `~mcp_actors.types.CreateMessageParams`. ``tools`` need the client's capability
                ``sampling.tools``, and ``include_context`` needs ``sampling.context``.

        Raises:
            TypeError: `~mcp_actors.types.CreateMessageParams` has no such field.
            McpError: As `ask`.
        """
        if isinstance(messages, str):
            messages = [SamplingMessage(role="user", content=TextContent(text=messages))]
        question = CreateMessageParams(messages=list(messages), max_tokens=max_tokens, **more)
        result: CreateMessageResult = await self._ask_one(question, key, ttl)
        return result

    async def list_roots(self, *, key: str | None = None) -> list[Root]:
        """Asks for the folders that the server may work in. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Roots.

        Args:
            key: The name of the question in every run of the function; by default one that counts up.

        Raises:
            McpError: As `ask`.
        """
        return list((await self._ask_one(ListRootsParams(), key)).roots)

    async def ask(self, questions: Mapping[str, InputRequest], *, ttl: float | None = None) -> dict[str, Any]:
        """Asks the client several things at once. Code before this line may run again.

        A legacy client is sent requests while this call waits, each for at most `Limits.ask_timeout` seconds. To a
        modern client the call is answered with an input-required result (MCP 2026-07-28, Multi Round-Trip Requests):
        this never returns, the function sees `trio.Cancelled`, and the client's retry runs it again from its start with
        the recorded answers. So side effects belong after the last question, and keys must be the same in each run;
        those made by default are, as long as the questions come in the same order.

        Cancelled, it sends a cancellation of the question that a legacy client has not answered yet.

        Args:
            questions: The questions by their keys: params objects of `mcp_actors.types`, such as `ElicitFormParams`.
            ttl: Seconds for which a legacy client that has tasks of its own may take instead (MCP 2025-11-25, Tasks).

        Returns:
            The answers by the same keys: `ElicitResult`, `CreateMessageResult` or `ListRootsResult`.

        Raises:
            MissingCapability: The client did not declare that it can answer; nothing was sent. If the function does
                not catch it, it answers the call.
            LocalProtocolError: There is no session, or the request is a modern one that is neither for a tool nor for
                a prompt nor for a resource, or a question is longer than the connection carries, or the tool uses and
                tool results of a sampling question do not belong together.
            RpcError: A legacy client answered with an error, or the answer that a modern one's retry carries is
                malformed.
            RemoteProtocolError: A legacy client's answer is malformed, does not fit the form, or has a root that is no
                ``file://`` URI.
            CallTimeout: A legacy client did not answer within `Limits.ask_timeout` seconds.
            ConnectionLost: The connection ended before the answer.
            SessionExpired: The session ended before the answer.
        """
        for each in questions.values():
            if isinstance(each, CreateMessageParams) and (problem := history_problem(each.messages)):
                raise LocalProtocolError(problem)
            needed = missing_capability(each, self.peer.raw_capabilities, self.era)
            if needed is not None:
                raise MissingCapability(needed)
        if (voice := self.call.voice) is not None:
            return dict(await voice.ask(questions))
        if not self.era.asks_by_retry:
            return await ask_by_requests(self.call, self._scope, questions, ttl)
        if not self.call.invocation.method.may_ask:
            raise LocalProtocolError(
                f"protocol version {self.era.version} lets {self.method} ask for nothing"
            )
        return await ask_by_retry(self.call, self._scope, self._kept, questions)

    async def _ask_one(self, question: InputRequest, key: str | None, ttl: float | None = None) -> Any:
        if key is None:
            self._asked += 1
            key = f"{question.method.partition('/')[0]}-{self._asked}"
        return (await self.ask({key: question}, ttl=ttl))[key]
