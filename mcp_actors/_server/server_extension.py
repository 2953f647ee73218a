"""An extension of a server (SEP-2133): methods, notifications and more, for clients that declare it too."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import attrs
import msgspec
import trio

from mcp_actors._actors.inbound_call import (
    CallOwner,
    Continuation,
    DetachedCall,
    InboundCall,
    SupportsInbox,
    SupportsKept,
    Voice,
)
from mcp_actors._actors.outbound import KINDS
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Invocation, Method, Peer, check_id, declared_names, structured
from mcp_actors._eras.server_negotiation import era_of
from mcp_actors._server import questions
from mcp_actors._server.context import Context, principal_of, request_of
from mcp_actors._server.dispatch import MethodDispatch
from mcp_actors._server.failures import LineNamed
from mcp_actors._server.features import Features
from mcp_actors._server.invoke import check_async
from mcp_actors._server.middleware import Around
from mcp_actors._server.options import PromptOptions, check_options
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.subscriptions import ListenMember
from mcp_actors._wire.codec import RequestId
from mcp_actors.abc import OpenState
from mcp_actors.errors import LocalProtocolError, MethodNotFound, MissingCapability
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import InputRequest, InputResponse, ServerCapabilities

__all__ = [
    "OperatedTasks",
    "ServerExtension",
    "Serving",
    "SupportsInbox",
    "SupportsKept",
    "TaskStatistics",
    "Voice",
    "ask_client",
    "check_answer",
    "detached",
    "has_asked",
    "outcome",
    "progress_token_of",
    "read_answer",
    "remembered",
]


F = TypeVar("F", bound=Callable[..., Any])
ParamsOf = Callable[[Sequence[str], Context], Awaitable[Mapping[str, Mapping[str, Any]]]]


@attrs.frozen(eq=False)
class _Offered:
    """A method of an extension, until it is offered."""

    method: Method
    function: Callable[[dict[str, Any], Context], Awaitable[Any]]
    scopes: Collection[str]
    core: bool


class ServerExtension:
    """An extension of the protocol that a server offers: ``Server(extensions=[extension])``.

    It is complete before it is given to a server, and belongs to that server alone. A client uses it that declares it
    too: one of a stateless revision in each request, one with a session in its handshake. The settings that the client
    declared are ``ctx.extensions[id]``.

    Args:
        id: A reverse domain, a slash and a name, such as ``"com.example/search"``.
        settings: What the server declares of it, as JSON values; by default nothing but that it is there.
        core: Members of `~mcp_actors.types.ServerCapabilities`, such as ``{"tasks": {…}}``, by which revisions that
            have the same in their core know it. In these its methods need no declaration of the client, if the revision
            itself has them.

    Raises:
        ValueError: The id is of another form, or ``core`` has a name that is not such a member.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        core: Mapping[str, Any] | None = None,
    ) -> None:
        with LineNamed():
            self.id = check_id(id)
            self.core: Mapping[str, Any] = dict(core or {})
            unknown = self.core.keys() - {each.name for each in attrs.fields(ServerCapabilities)}
            if unknown:
                raise ValueError(f"no revision has a capability {min(unknown)!r} in its core")
        self.settings: Mapping[str, Any] = dict(settings or {})
        self._methods: list[_Offered] = []
        self._notifications: dict[str, Callable[..., Any]] = {}
        self._around: list[tuple[str, Around]] = []
        self._topics: dict[str, ListenMember] = {}
        self._serving: list[Callable[[Serving], AbstractAsyncContextManager[object]]] = []
        self._features: Features | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self._methods)} methods>"

    # -- what clients use ------------------------------------------------------------------------------------------

    def method(
        self, name: str, *, target: str | None = None, scopes: Collection[str] = (), core: bool = False
    ) -> Callable[[F], F]:
        """Decorator: the function answers a method, ``async def f(params: dict[str, Any], ctx: Context) -> result``.

        A client that has not declared the extension is refused: in a stateless revision with -32021, which names it,
        and in a session with -32601. What the function raises is answered as in `Server.method`.

        Args:
            name: The method, as clients send it.
            target: The member of the params that says what is meant. Over HTTP, clients of stateless revisions repeat
                it in the header ``Mcp-Name``, and the server refuses a request whose header says something else
                (SEP-2243). None by default.
            scopes: A list of those that a caller needs, all of them, as `Server.add_tool` has them.
            core: Whether it is answered only in revisions that have it in their core, and is unknown in all others.

        Raises:
            TypeError: A scope is malformed, or the function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
                check_async(function, "params, ctx")
            # What only revisions with sessions have is mirrored nowhere.
            method = Method(name, dict, dict, target=None if core else target, shown=False)
            self._methods.append(_Offered(method, function, scopes, core))
            return function

        with LineNamed():
            check_options({"scopes": scopes}, PromptOptions)
        return add

    def notification(self, name: str) -> Callable[[F], F]:
        """Decorator: the function takes a notification of clients, as that of `Server.notification` does.

        One of a client that has not declared the extension is dropped.

        Args:
            name: The method of the notification.

        Raises:
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
            self._notifications[name] = function
            return function

        return add

    def around(
        self, method: str, *, when: Callable[[Mapping[str, Any]], bool], meta: str | None = None
    ) -> Callable[[F], F]:
        """Decorator: the function runs round some requests of a method, ``async def f(ctx, call_next) -> result``.

        It runs outside of all middleware, whether the client has declared the extension or not: ``ctx.extensions``
        tells. It returns the result of ``await call_next()``, or another one, or raises. ``call_next(ctx2)`` runs the
        middleware and the handler with another context, such as one of `detached`.

        Args:
            method: The method; ``ping`` and ``initialize`` have nothing round them.
            when: Is called with the params of each request of this method, in the event loop, and says whether the
                function runs. It must be quick; requests for which it says no cost nothing else.
            meta: A member of ``_meta``; requests that have it are not asked about by ``when``. None by default.

        Raises:
            TypeError: The function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
                check_async(function, "ctx, call_next")
            self._around.append((method, Around(function, when, meta)))
            return function

        return add

    def listen(self, member: str, notification: str) -> Callable[[ParamsOf], ParamsOf]:
        """Decorator: a list of keys in the filter of ``subscriptions/listen``. MCP 2026-07-28, Subscriptions.

        The function is ``async def f(keys: Sequence[str], ctx: Context) -> Mapping[str, params]``: of these keys, those
        that the caller may hear of, with the params of the notification for each. It is called once with all keys that
        are asked for, and those that it leaves out are not granted; and then with those for which `publish` was called.
        Several calls for one key before a client has read count as one. A client that has not declared the extension
        is refused with -32021. What the function raises ends the subscription, as an answer.

        Args:
            member: The name of the member, such as ``"taskIds"``.
            notification: The method of the notification.

        Raises:
            TypeError: The function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: ParamsOf) -> ParamsOf:
            with LineNamed():
                self._check_open()
                check_async(function, "keys, ctx")
            self._topics[member] = ListenMember(
                member, f"{self.id}/{member}", notification, self.id, function
            )
            return function

        return add

    def serving(
        self, function: Callable[[Serving], AbstractAsyncContextManager[object]]
    ) -> Callable[[Serving], AbstractAsyncContextManager[object]]:
        """Decorator: an async context manager that is entered once for each `Server.serve`, and given a `Serving`.

        It is entered after the server's lifespan and before the first connection, and left when all transports are
        done, or cancelled with the server. A nursery of the extension lives in it. What it raises ends the ``serve``.

        Args:
            function: ``async def f(serving)`` with one ``yield``, decorated with ``contextlib.asynccontextmanager``.

        Raises:
            LocalProtocolError: A server offers the extension already.
        """
        with LineNamed():
            self._check_open()
        self._serving.append(function)
        return function

    # -- while it is offered -----------------------------------------------------------------------------------------

    def publish(self, member: str, key: str) -> None:
        """Notifies the subscribers of a key that it has changed, at all nodes. Never waits; safe from any thread.

        Args:
            member: A member that `listen` has declared.
            key: The key.

        Raises:
            LocalProtocolError: There is no such member, or no server offers the extension.
        """
        self._offering().bus.publish_key(self._member(member).name, key)

    def subscribed(self, member: str) -> list[str]:
        """Returns the keys that clients have subscribed to at this node, for an extension that looks at them itself.

        Raises:
            LocalProtocolError: There is no such member, or no server offers the extension.
        """
        return self._offering().bus.subscribed_keys(self._member(member).name)

    def is_negotiated(self, ctx: Context) -> bool:
        """Whether a caller may use the extension's method that it calls: see `method`."""
        if (core := ctx.era.server_methods.get(ctx.method)) is not None:
            return core.requires is None or core.requires in declared_names(ctx.server.capabilities)
        return self.id in ctx.extensions

    def offered(self, features: Features) -> None:
        """Is called by the server that it is given to."""
        self._check_open()
        for each in self._methods:
            features.add_handler(each.method, self._handler(each), each.scopes)
        for name, function in self._notifications.items():
            features.notifications.add(name, function, inline=False, extension=self.id)
        for method, around in self._around:
            features.around.setdefault(method, []).append(around)
        for member, topic in self._topics.items():
            if member in features.topics:
                raise LocalProtocolError(f"an extension has the member {member!r} of subscriptions already")
            features.topics[member] = topic
        self._features = features

    @asynccontextmanager
    async def served(
        self, responder: MethodDispatch, owner: CallOwner, shared: OpenState
    ) -> AsyncIterator[None]:
        """Is entered by the server for each ``serve``."""
        serving = Serving(shared, responder, owner)
        async with AsyncExitStack() as stack:
            for each in self._serving:
                await stack.enter_async_context(each(serving))
            yield

    def goes_on_from(self, former: object) -> bool:
        """Whether this one goes on with what ``former`` does, in whose place it is offered while the server serves.

        Then what `serving` was given is not entered again, and that of ``former`` goes on. By default it is entered,
        and that of ``former`` is left after the last call that began with it.

        Args:
            former: The extension that was offered under the same id.
        """
        return False

    def _handler(self, offered: _Offered) -> Callable[[Context], Continuation]:
        def handler(ctx: Context) -> Continuation:
            if offered.core and ctx.method not in ctx.era.server_methods:
                raise MethodNotFound(ctx.method)
            if not self.is_negotiated(ctx):
                if not ctx.era.declares_in_requests:
                    raise MethodNotFound(ctx.method)
                raise MissingCapability({"extensions": {self.id: {}}})
            return Continuation(offered.function, ctx.params, ctx)

        return handler

    def _check_open(self) -> None:
        if self._features is not None:
            raise LocalProtocolError(
                f"the extension {self.id!r} is offered already: complete it before a server is given it"
            )

    def _offering(self) -> Features:
        if self._features is None:
            raise LocalProtocolError(f"no server offers {self.id!r}: write Server(extensions=[…])")
        return self._features

    def _member(self, member: str) -> ListenMember:
        if member not in self._topics:
            raise LocalProtocolError(f"the extension {self.id!r} has no member {member!r} of subscriptions")
        return self._topics[member]


# -- Functions that go on after their call was answered, and the part of a server that runs them ---

# Bytes by which an outcome is shorter than the longest message: so much surrounds it in the answer in which a
# client receives it later, such as a status message of a thousand characters, each escaped.
_AROUND = 8192
# Bytes of the longest message, by default, of every transport: a function that is run again has no client.
_LONGEST_MESSAGE = 16 * 1024 * 1024


class _Remembered(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it is kept outside of this process."""

    version: str
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    capabilities: dict[str, Any]
    info: Any = None
    log_level: str | None = None
    subject: str | None = None
    issuer: str | None = None
    client: str | None = None
    scopes: list[str] = []
    claims: dict[str, Any] = {}
    until: float | None = None
    """Seconds since the epoch: when the caller gives up."""


def detached(ctx: Context, voice: Voice, *, with_answers: bool = False) -> Context:
    """Returns a context for a function that goes on after its call was answered.

    Its params, client, principal, revision, server and state are those of the call; the session is, for as long as it
    lives. What it sends and asks the client goes to ``voice``, and never through the call.

    Args:
        ctx: The context of the call.
        voice: Takes reports of progress, log messages and other notifications, and answers questions.
        with_answers: Whether its client waits for the outcome, and not for something that was made of the call. Then
            the function has the answers that came with the request, and what an earlier run of it has done (MCP
            2026-07-28, Multi Round-Trip Requests).
    """
    call = ctx.call
    invocation = msgspec.structs.replace(
        call.invocation,
        params=dict(call.invocation.params),
        progress_token=None,
        principal=principal_of(call),
        reported=False,
    )
    if not with_answers:
        invocation.answers = invocation.state = None
    owner = _LaterOwner(call.owner)
    longest = _longest_outcome(call.outlet.longest)
    kinds = KINDS[owner.responder.telemetry is not None]
    later = kinds.detached.of(
        invocation, owner, request_of(call), longest, voice, was_answered=not with_answers
    )
    if with_answers:
        later.effects = ctx._scope.effects_of(call)
    session_of = partial(_while_it_lives, weakref.ref(call.owner), ctx._scope.session_of)
    return Context(later, invocation.params, msgspec.structs.replace(ctx._scope, session_of=session_of))


def _while_it_lives(
    held: weakref.ref[CallOwner], session_of: Callable[[CallOwner], PeerSession | None], _: CallOwner
) -> PeerSession | None:
    owner = held()
    return None if owner is None else session_of(owner)


class _LaterOwner:
    """Replaces the dispatcher of a call that was answered, so that an ended session is not kept with its buffers."""

    def __init__(self, owner: CallOwner) -> None:
        self.name = owner.name
        self.peer = owner.peer
        self.responder = owner.responder
        self.rules = owner.rules
        self.limiters = owner.limiters

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: InboundCall | None = None
    ) -> dict[str, Any]:
        """Raises `LocalProtocolError`: the call that could ask has been answered, and its function asks its voice."""
        raise LocalProtocolError("the call was answered: its function asks by ctx.ask")

    def forget(self, call: InboundCall) -> None:
        """Does nothing: the call is in no table."""


def _longest_outcome(longest_message: int) -> int:
    return max(longest_message - _AROUND, longest_message // 2)


async def outcome(ctx: Context, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Runs a function and returns what the client of a plain call would be sent: ``{"result": …}`` or ``{"error": …}``.

    What it raises is logged, masked and reported as for any call. Cancelled, it raises `trio.Cancelled`.

    Args:
        ctx: A context that `detached` or `Serving.begin_again` has made.
        function: Such as ``lambda: call_next(ctx)``.
    """
    call = ctx.call
    assert isinstance(call, DetachedCall)
    detached_calls = ctx._scope.detached
    detached_calls.add(call)
    try:
        return await call.outcome(function)
    finally:
        detached_calls.discard(call)


def remembered(ctx: Context) -> bytes:
    """Returns the request of a context as JSON, so that another process can run it again: `Serving.begin_again`.

    It has the params, what the client says of itself, and the principal with its claims, but no token.

    Raises:
        TypeError: JSON cannot hold a claim of the principal.
    """
    peer, principal = ctx.peer, ctx.principal
    kept = _Remembered(
        peer.era.version,
        ctx.method,
        ctx.params,
        ctx.meta,
        peer.raw_capabilities,
        peer.raw_info,
        peer.log_level,
    )
    deadline = ctx.call.invocation.deadline
    if deadline is not None:
        kept.until = time.time() + deadline - trio.current_time()
    if principal is not None:
        kept.subject, kept.issuer, kept.client = principal.subject, principal.issuer, principal.client
        kept.scopes, kept.claims = sorted(principal.scopes), dict(principal.claims)
    return msgspec.json.encode(kept)


@attrs.frozen
class TaskStatistics:
    """A snapshot of one task that runs, for operators."""

    key: str
    """Names it in an action, and is not its id: that is a secret of the client that created it."""
    tool: str
    principal: str | None
    """The subject of the caller that created it."""
    state: str
    """``"working"`` or ``"input_required"``."""
    message: str | None
    """A sentence on its progress."""
    age: float
    """Seconds since it was created."""
    left: float | None
    """Seconds until it is dropped, ``None`` for no end."""
    runs: int
    """How often it was begun."""


class OperatedTasks(NamedTuple):
    """The tasks of an extension, which operators of the live view see and cancel."""

    statistics: Callable[[], Sequence[TaskStatistics]]
    """Returns those that run in this process. Never waits."""
    cancel: Callable[[str, str], Awaitable[bool]]
    """Cancels the task of a key, with a message for its client; returns whether there was one. Bounded in time."""


@attrs.frozen(eq=False)
class Serving:
    """One `Server.serve`, as an extension sees it: `ServerExtension.serving`."""

    shared: OpenState
    """What outlives a session, and what other nodes share."""
    _responder: MethodDispatch
    _owner: CallOwner
    longest: int = _longest_outcome(_LONGEST_MESSAGE)

    @property
    def server(self) -> Any:
        """The `Server`."""
        return self._responder.scope.server

    @property
    def state(self) -> Any:
        """The value that the server's lifespan yielded; ``None`` without a lifespan."""
        return self._responder.scope.state

    def has_call(self, ctx: Context) -> bool:
        """Whether a call came to this `Server.serve`.

        Args:
            ctx: The call.
        """
        return self._responder.scope == ctx._scope

    @contextmanager
    def operated(self, tasks: OperatedTasks) -> Iterator[None]:
        """Lets operators of the live view see and cancel tasks, for the length of a ``with`` block.

        Args:
            tasks: The tasks.
        """
        self._responder.operated.append(tasks)
        try:
            yield
        finally:
            self._responder.operated.remove(tasks)

    def begin_again(self, request: bytes, voice: Voice) -> tuple[Context, Callable[[], Awaitable[Any]]]:
        """Returns the context of a remembered request, and the function that runs it: middleware, then the handler.

        Args:
            request: What `remembered` returned, in this process or in another one.
            voice: As `detached` has it.

        Raises:
            ValueError: It was made by another version of this program, which remembers otherwise, or this server has
                no such method or revision.
        """
        try:
            kept = msgspec.json.decode(request, type=_Remembered)
            era = era_of(kept.version)
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"the request was remembered in another form: {error}") from None
        features = self._responder.features
        method = era.server_methods.get(kept.method)
        if method is None or kept.method not in features.handlers:
            raise ValueError(f"this server does not answer {kept.method!r:.80}")
        peer = Peer(era, kept.capabilities, kept.info, kept.log_level)
        principal = None
        if kept.subject is not None:
            principal = Principal(kept.subject, kept.issuer, kept.client, frozenset(kept.scopes), kept.claims)
        id = f"again-{kept.method}"
        invocation = Invocation(era, method, kept.params, kept.meta, peer, id, None, kept.log_level)
        invocation.principal = principal
        if kept.until is not None:
            invocation.deadline = trio.current_time() + kept.until - time.time()
        kinds = KINDS[self._responder.telemetry is not None]
        call = kinds.detached.of(invocation, self._owner, None, self.longest, voice)
        ctx = Context(call, kept.params, self._responder.scope)
        return ctx, lambda: self._responder.run_again(ctx)


# -- The parts of a call that functions of extensions need beside its `Context` ---


def has_asked(ctx: Context) -> bool:
    """Whether the functions of a call have asked the client, so that the result is good for this call alone.

    Args:
        ctx: The call.
    """
    invocation = ctx.call.invocation
    return bool(ctx._kept) or invocation.answers is not None or invocation.state is not None


def progress_token_of(ctx: Context) -> RequestId | None:
    """Returns the token for reports of progress that a call was made with, ``None`` if it wants none.

    Args:
        ctx: The call.
    """
    return ctx.call.invocation.progress_token


async def ask_client(ctx: Context, method: str, params: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Sends a request to the client of a session, on the stream of a call, and returns its raw result.

    Cancelled, it sends a cancellation of the request.

    Args:
        ctx: The call.
        method: The method.
        params: Its params.
        seconds: How long the answer may take.

    Raises:
        RpcError: The client answered with an error.
        CallTimeout: It did not answer in time.
        LocalProtocolError: There is no session.
        ConnectionLost: The connection ended before the answer.
        SessionExpired: The session ended before the answer.
    """
    return await ctx.call.ask(method, params, idle=seconds, cap=seconds)


def read_answer(ctx: Context, question: InputRequest, raw: Any) -> InputResponse:
    """Returns the typed answer to a question.

    Args:
        ctx: The call of the client that was asked, whose revision the answer has.
        question: The question.
        raw: The answer, as JSON values.

    Raises:
        RemoteProtocolError: The answer is malformed, or does not fit the form.
    """
    return questions.read_answer(question, raw, ctx.era)


def check_answer(ctx: Context, question: Mapping[str, Any], key: str, answers: Mapping[str, Any]) -> None:
    """Checks one of the answers that came with a request (``inputResponses``).

    Args:
        ctx: The call that brought them.
        question: The question, with its ``method`` and ``params`` as JSON values.
        key: The key of the question.
        answers: The answers, by key.

    Raises:
        RpcError: -32602: the answer is malformed, or does not fit the form.
    """
    method = ctx.era.client_methods[question["method"]]
    asked: Any = structured(ctx.era, question["params"], method.params)
    questions.read_recorded(asked, key, answers, ctx.era)
