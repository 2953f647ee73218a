"""The context of a call, which a tool, resource or prompt function takes by annotating a parameter with it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, Unpack, overload

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import InboundCall, SupportsInbox
from mcp_actors._eras.era import Era, Peer
from mcp_actors._server import isolated_process
from mcp_actors._server.inbox import CallLink, Inbox, SyncInbox
from mcp_actors._server.invoke import current, on_loop
from mcp_actors._server.once import Effect, boxed, is_awaitable
from mcp_actors._server.peer_session import PeerSession, is_wanted
from mcp_actors._server.questions import FormResult, Questions
from mcp_actors._server.scope import ServerScope, StateT
from mcp_actors._server.user_state import SyncUserState, UserState, user_place
from mcp_actors._wire.codec import RequestId
from mcp_actors.abc import HttpRequest
from mcp_actors.errors import CallCancelled, InsufficientScope, LocalProtocolError
from mcp_actors.supervision.logging import logger
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import LoggingLevel
from mcp_actors.types.apps import APP_MIME, APPS

__all__ = [
    "Context",
    "SyncContext",
    "check_scopes",
    "current_context",
    "has_scopes",
    "holder_of",
    "note_listing",
    "principal_of",
    "request_of",
    "scopes_suffice",
]


T = TypeVar("T")
ArgumentsT = TypeVarTuple("ArgumentsT")

_TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class Context(Questions, msgspec.Struct, Generic[StateT], eq=False):
    """One call, seen from the function that answers it; of no use after that function has returned.

    A function takes it by annotating a parameter with this class; the parameter is not part of any schema. With
    ``ctx: Context[Database]`` type checkers know that the server's lifespan yields a ``Database``, which ``ctx.state``
    is; at run time it is the same class. ``call`` is the engine's side of the call. All methods belong to the event
    loop; a plain ``def`` is given a `SyncContext`, whose methods wait in its worker thread. With ``loop="asyncio"``
    they are awaited in the function's asyncio loop, and wait in threads that the function starts there.

    When the client cancels the call, or its connection ends, the function sees `trio.Cancelled` at its next checkpoint
    (`asyncio.CancelledError` in asyncio, nothing in a worker thread); what it returns or raises then is not sent.
    """

    # A struct, since one is made for each call: msgspec fills it without a function of ours.
    call: InboundCall
    params: dict[str, Any]
    """The params as they arrived, without ``_meta``."""
    _scope: ServerScope
    _kept: dict[str, Any] = {}
    _asked: int = 0
    _logger: Any = None

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
    def deadline(self) -> float:
        """When the caller gives up, in the time of `trio.current_time`; `math.inf` if it has not said.

        The function is cancelled then, and its caller is sent `DeadlineExceeded`: ``trio.move_on_at(ctx.deadline - 1)``
        ends something before that.
        In a worker thread it is in the time of `time.monotonic`, and in an asyncio loop in that of ``loop.time``.
        """
        deadline = self.call.invocation.deadline
        return math.inf if deadline is None else deadline

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
    def shows_apps(self) -> bool:
        """Whether the client shows the pages of tools (SEP-1865): it has declared that it takes HTML of this kind.

        A tool may return less text to a host that shows its page, and has to return some all the same.
        """
        declared = self.peer.raw_capabilities.get("extensions")
        settings = declared.get(APPS) if isinstance(declared, dict) else None
        types = settings.get("mimeTypes") if isinstance(settings, dict) else None
        return isinstance(types, list) and APP_MIME in types

    @property
    def principal(self) -> Principal | None:
        """The caller that the transport authenticated, ``None`` if it does not authenticate.

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

        ``None`` where each request is independent: for stateless clients over HTTP (MCP 2026-07-28), where sessions
        are off, and once the session has ended. State then belongs into ``ctx.state`` under a key of your own, such as
        ``ctx.principal`` or an id that one tool returns and others take. On a connection (stdio, WebSocket, sockets,
        memory) it is that of the connection, in every revision.
        """
        return self._scope.session_of(self.call.owner)

    @property
    def user_state(self) -> UserState:
        """The values that are kept for the caller, over all its calls, in any process with the same shared state.

        The caller is the principal of the call. Without one they belong to the session, and end with it.

        Raises:
            LocalProtocolError: The transport authenticates no callers, and there is no session.
        """
        return UserState(user_place(self._scope, self.principal, self.session))

    @property
    def inbox(self) -> Inbox:
        """The messages that the client sends to this call while it runs: ``async for message in ctx.inbox``.

        They are JSON values, in the order in which they were sent; those that came before the function looked are kept.
        Clients send them by the handle of `Client.stream_tool`, and to a task by its handle. For any other client
        ``inbox.is_open`` is false, and the iteration ends at once.
        """
        voice = self.call.client_link
        if isinstance(voice, SupportsInbox):
            inbox: Inbox = voice.inbox
            return inbox
        link = CallLink.of(self.call)
        return Inbox(is_open=False) if link is None else link.inbox

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

    # -- what happens once -----------------------------------------------------------------------------------------

    @overload
    async def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], Awaitable[T]],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> T: ...

    @overload
    async def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], T],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> T: ...

    async def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], Any],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> Any:
        """Runs a function once for this call, however often the call's own function runs; always a checkpoint.

        A function that asks a stateless client runs again from its start for each answer (see `ask`), and that of a
        restartable task where another process goes on with it. What has been done by ``once`` before is not done again
        then: this returns what it returned. It is sealed in the state that the client sends back (MCP 2026-07-28,
        Multi Round-Trip Requests), and kept in the shared state where that has no room, and where a retry or a task may
        run twice. A call takes at most a day from its first question.

        Cancelled, it cancels the function; then nobody knows what that has done, and a later run gets `OutcomeUnknown`.

        Args:
            name: The name of the effect, another one for each of a call. Effects come one after the other, before and
                after the same questions in each run.
            function: An ``async def``, or a plain function, which runs in a worker thread; one that only makes the
                coroutine, as a ``lambda`` does, is awaited, too. What it returns is kept as JSON, of the type that it
                declares.
            arguments: Its arguments. They are not compared: those of the first run count.
            retry_errors: Whether an exception of the function means that it has done nothing, so that a later run
                begins it again. By default the exception is kept as a result is.

        Raises:
            OnceConflict: The effect does not fit to what this run or an earlier one has done; nothing was run.
            OutcomeUnknown: It was begun by a run of which nobody knows the end.
            OnceFailed: It has failed in an earlier run. A `ToolError` or `RpcError` is raised as it was.
            SharedStateUnavailable: The shared state is needed and cannot be reached. Nothing was run, unless it is the
                result that is too large for the seal.
            TypeError: What the function returns has no form in JSON.
            Exception: What the function raises.
        """
        effect = await self._effect(name, function)
        if effect.is_over:
            return effect.recall()
        try:
            if effect.is_async:
                value = await function(*arguments)
            else:
                value = (await self._scope.threads.run(self, partial(boxed, function, *arguments)))[0]
                if is_awaitable(value):
                    value = await value
        except BaseException as error:
            await effect.raised(error, retry_errors)
            raise
        return await effect.returned(value)

    def _effect(self, name: str, function: Callable[..., Any]) -> Awaitable[Effect]:
        scope = self._scope
        assert scope.shared is not None
        return scope.effects_of(self.call).begin(scope.shared, scope.claims, name, function)

    def _key_of(self, question: t.InputRequest) -> str:
        self._asked += 1
        return f"{question.method.partition('/')[0]}-{self._asked}"


# -- The context of a sync function: in a worker thread its methods wait, since there is nothing to be awaited ---


class SyncContext(Context[StateT]):
    """The `Context` that a plain ``def`` is given: ``ctx.progress(1)`` in place of ``await ctx.progress(1)``.

    In a worker thread, and in any other that the function starts, each method runs on the event loop while the thread
    waits for it, and so does what is called of ``ctx.session`` and ``ctx.server`` that never waits: ``log``,
    ``elicitation_complete``, ``add_tool``, ``stop``. The parameter may be annotated with either class; with this one
    type checkers know that nothing is to be awaited. Each method raises what the
    one of `Context` raises, and `CallCancelled` when the client has cancelled the call, its time is up, or the question
    ends it. A function that is declared ``inline`` runs on the event loop itself and cannot wait there: the methods
    raise `LocalProtocolError`.
    """

    _inline: bool = False
    _over: bool = False
    _scopes: set[trio.CancelScope] = set()

    @classmethod
    def of(cls, ctx: Context, inline: bool, **more: Any) -> Self:
        """Returns the context of a function that is not of the engine's loop, for a call that has ``ctx``."""
        return cls(ctx.call, ctx.params, ctx._scope, ctx._kept, ctx._asked, ctx._logger, inline, **more)

    @property
    def deadline(self) -> float:
        """When the caller gives up, in the time of `time.monotonic`; see `Context.deadline`."""
        return self._deadline_by(time.monotonic)

    def _deadline_by(self, clock: Callable[[], float]) -> float:
        deadline = super().deadline
        if deadline == math.inf:
            return deadline
        return clock() + deadline - on_loop(self._scope.token, trio.current_time)

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:  # type: ignore[override]
        """Reports progress; see `Context.progress`."""
        return self._wait(super().progress, progress, total, message)

    def notify(self, method: str, params: dict[str, Any]) -> None:  # type: ignore[override]
        """Sends a notification that belongs to this call; see `Context.notify`."""
        return self._wait(super().notify, method, params)

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:  # type: ignore[override]
        """Sends a log message to the client; see `Context.log`."""
        return self._wait(super().log, level, data, logger)

    @property
    def user_state(self) -> SyncUserState:
        """The values that are kept for the caller; see `Context.user_state`."""
        return SyncUserState(user_place(self._scope, self.principal, self.session), self._wait)

    @property
    def inbox(self) -> SyncInbox:  # type: ignore[override]
        """The messages of the client: ``for message in ctx.inbox``; see `Context.inbox`."""
        return SyncInbox(super().inbox, self._wait)

    def close_stream(self) -> None:
        """Closes the HTTP response that waits for this call; see `Context.close_stream`."""
        on_loop(self._scope.token, super().close_stream)

    @overload  # type: ignore[override]
    def elicit(
        self,
        message: str,
        schema: type[T],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> FormResult[T]: ...

    @overload
    def elicit(
        self,
        message: str,
        schema: Mapping[str, Any],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> t.ElicitResult: ...

    def elicit(
        self,
        message: str,
        schema: Any,
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> Any:
        """Asks the person at the client to fill in a form; see `Context.elicit`."""
        return self._wait(super().elicit, message, schema, key=key, ttl=ttl)

    def elicit_url(  # type: ignore[override]
        self, message: str, url: str | Callable[[str], str], *, key: str | None = None
    ) -> t.ElicitResult:
        """Asks the person to do something at a URL; see `Context.elicit_url`."""
        return self._wait(super().elicit_url, message, url, key=key)

    def sample(  # type: ignore[override]
        self,
        messages: str | Sequence[t.SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        ttl: float | None = None,
        **more: Any,
    ) -> t.CreateMessageResult:
        """Asks the client's model; see `Context.sample`."""
        return self._wait(super().sample, messages, max_tokens=max_tokens, key=key, ttl=ttl, **more)

    def list_roots(self, *, key: str | None = None) -> list[t.Root]:  # type: ignore[override]
        """Asks for the folders that the server may work in; see `Context.list_roots`."""
        return self._wait(super().list_roots, key=key)

    def ask(  # type: ignore[override]
        self, questions: Mapping[str, t.InputRequest], *, ttl: float | None = None
    ) -> dict[str, Any]:
        """Asks the client several things at once; see `Context.ask`."""
        return self._wait(super().ask, questions, ttl=ttl)

    @overload  # type: ignore[override]
    def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], Awaitable[T]],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> T: ...

    @overload
    def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], T],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> T: ...

    def once(
        self,
        name: str,
        function: Callable[[Unpack[ArgumentsT]], Any],
        *arguments: *ArgumentsT,
        retry_errors: bool = False,
    ) -> Any:
        """Runs a function once for this call; see `Context.once`. A plain one runs in the thread that calls this."""
        return self._once(name, function, arguments, retry_errors)

    def _once(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], retry_errors: bool
    ) -> Any:
        if trio.lowlevel.in_trio_run():
            return self._wait(super().once, name, function, *arguments, retry_errors=retry_errors)
        effect: Effect = self._wait(self._effect, name, function)
        if effect.is_over:
            return effect.recall()
        # What a thread has done is kept although its call may have ended meanwhile.
        keep = partial(trio.from_thread.run, trio_token=self._scope.token)
        try:
            try:
                value = self._wait(function, *arguments) if effect.is_async else function(*arguments)
                if is_awaitable(value):
                    value = self._wait(lambda: value)
            except BaseException as error:
                keep(effect.raised, error, retry_errors)
                raise
            return keep(effect.returned, value)
        except trio.RunFinishedError:
            raise CallCancelled(f"{self.method}: the server's event loop has ended") from None
        finally:
            effect.lost()

    def end(self) -> None:
        """The call no longer waits for the function: what its thread waits for ends with `CallCancelled`."""
        self._over = True
        for scope in self._scopes:
            scope.cancel(reason="the call has ended, while its function runs on in a worker thread")

    def _wait(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if not trio.lowlevel.in_trio_run():
            try:
                return trio.from_thread.run(
                    self._bounded, method, args, options, trio_token=self._scope.token
                )
            except trio.RunFinishedError:
                raise CallCancelled(f"{self.method}: the server's event loop has ended") from None
        if self._inline:
            raise LocalProtocolError(
                f"ctx.{getattr(method, '__name__', '')}() waits, which an inline function must not: write async def, "
                "or remove inline=True"
            )
        # The coroutine of a plain function that has called an async one; that one awaits this.
        awaited: Any = method(*args, **options)
        return awaited  # type: ignore[no-any-return]

    async def _bounded(
        self, method: Callable[..., Awaitable[T]], args: tuple[Any, ...], options: dict[str, Any]
    ) -> T:
        # Trio runs this in a task of its own, which the end of the call does not cancel.
        if not self._over:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    return await method(*args, **options)
                finally:
                    self._scopes.discard(scope)
        raise CallCancelled(f"{self.method}: nothing waits for its result any more")


# -- The caller of a call, the request over HTTP that brought it, and the check of its scopes ---


def request_of(call: InboundCall) -> HttpRequest | None:
    """Returns the HTTP request that brought a call, ``None`` with other bindings."""
    return getattr(call.outlet, "http_request", None)


def principal_of(call: InboundCall) -> Principal | None:
    """Returns the caller, ``None`` if the binding does not authenticate.

    The owner of a session may show another token with each request: the scopes are those of the latest.
    """
    request = request_of(call)
    if request is not None and request.principal is not None:
        return request.principal
    return call.invocation.principal


def holder_of(ctx: Context[Any]) -> str | None:
    """Returns who is charged for what a call makes the server keep: its principal or, without one, its address.

    ``None`` where neither is known, as in memory.

    Args:
        ctx: The call.
    """
    memory = ctx.call.owner.limiters.memory
    return None if memory is None else memory.holder(ctx.call.invocation)


def has_scopes(call: InboundCall, needed: frozenset[str]) -> bool:
    """Whether the caller has all ``needed`` scopes.

    A binding that does not authenticate, such as stdio, has no scopes to check: its peer is the user. A caller over
    HTTP or a WebSocket that is not authenticated has none.
    """
    return not needed or scopes_suffice(principal_of(call), request_of(call), needed)


def scopes_suffice(principal: Principal | None, request: HttpRequest | None, needed: frozenset[str]) -> bool:
    """As `has_scopes`, for a caller and the HTTP request that it came with."""
    if not needed:
        return True
    if principal is None:
        return request is None
    return needed <= principal.scopes


def current_context() -> Context[Any]:
    """Returns the context of the call that is answered here, for helpers that it is not handed to.

    It is the object that the function of the tool, resource, prompt, completion or method would take as ``ctx``: a
    `Context` in the event loop, and in tasks that the function starts there; a `SyncContext` in a plain ``def``. What
    a thread of one's own is to see has to be started with `contextvars.copy_context`, as `asyncio.to_thread` does.

    Raises:
        LocalProtocolError: No call is answered here. Middleware has a context of its own, which it is called with.
    """
    found = current.get() or isolated_process.context()
    if found is None:
        raise LocalProtocolError(
            "no call is answered here: current_context() is for what the function of a tool, resource or prompt calls"
        )
    if found.__class__ is tuple:
        for_sync, ctx = found
        found = for_sync(ctx, True)
    context: Context[Any] = found
    return context


def note_listing(ctx: Context[Any]) -> None:
    """Takes note that a list was made for the scopes of a caller: see `PeerSession.called_with`."""
    principal, session = principal_of(ctx.call), ctx.session
    if principal is not None and session is not None:
        session.listed_for(principal.scopes)


def check_scopes(call: InboundCall, scope: ServerScope, needed: frozenset[str]) -> None:
    """Checks that the caller has all ``needed`` scopes; see `has_scopes`. Its client is told if its lists differ now.

    Raises:
        InsufficientScope: One is missing.
    """
    if not has_scopes(call, needed):
        raise InsufficientScope(needed)
    if needed and (principal := principal_of(call)) is not None:
        session = scope.session_of(call.owner)
        if session is not None:
            session.called_with(principal.scopes)
