"""The server's side of a connection: which handler answers a call, and what a server says of itself."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs
import msgspec

from mcp_actors import types as t
from mcp_actors._actors.beats import Beats
from mcp_actors._actors.inbound_call import Continuation, InboundCall
from mcp_actors._actors.outbound import KINDS
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import Method
from mcp_actors._eras.modern import LATEST_MODERN, MODERN
from mcp_actors._server.context import Context, check_scopes
from mcp_actors._server.failures import answer_to
from mcp_actors._server.invoke import Handler
from mcp_actors._server.scope import ServerScope
from mcp_actors.abc import Telemetry
from mcp_actors.errors import LocalProtocolError, MethodNotFound, invalid_params
from mcp_actors.types import (
    LOGGING_LEVELS,
    DiscoverResult,
    Implementation,
    InitializeResult,
    ServerCapabilities,
)

__all__ = [
    "CallNext",
    "MethodDispatch",
    "Middleware",
    "NotificationMiddleware",
    "lifecycle_handlers",
    "stamp_of",
    "through",
]


# -- Functions that run round the requests and notifications of clients, and the way from the outermost to the handler
# ---


class CallNext(Protocol):
    """Runs the next middleware, or the handler, and returns its result."""

    def __call__(self, ctx: Context | None = None, /) -> Awaitable[Any]:
        """Calls it with ``ctx``: by default with the context that this middleware was given."""


Middleware = Callable[[Context, CallNext], Awaitable[Any]]
"""``async def f(ctx, call_next)``, which runs round a request; see `Server.middleware`."""


@runtime_checkable
class NotificationMiddleware(Protocol):
    """Middleware that runs round notifications, too; see `Server.middleware`."""

    def __call__(self, ctx: Context, call_next: CallNext, /) -> Awaitable[Any]:
        """Runs round a request."""

    def notification(self, ctx: Context, call_next: CallNext, /) -> Awaitable[Any]:
        """Runs round the function that takes a notification; what it returns is dropped."""


async def through(middleware: Sequence[Middleware], ctx: Context, handler: Handler, passed: int = 0) -> Any:
    """Calls the first middleware, the outermost, round the others, and the handler innermost.

    Args:
        middleware: All of it.
        ctx: The context of the call.
        handler: Answers the call.
        passed: How many of ``middleware`` the call is inside of.

    Raises:
        InvalidResult: A middleware returned nothing, where a result has to be.
    """
    if passed == len(middleware):
        result = handler(ctx)
        return await result() if isinstance(result, Continuation) else result
    of_call: Context | None = ctx

    def call_next(other: Context | None = None, /) -> Awaitable[Any]:
        # It awaits nothing itself: a coroutine more for each middleware would be measurable.
        next_context = other or of_call
        if next_context is None:
            raise LocalProtocolError("the call was answered: go on with a context of `detached`")
        return through(middleware, next_context, handler, passed + 1)

    try:
        result = await middleware[passed](ctx, call_next)
    finally:
        # What goes on behind the call has `call_next`, and must not keep the call, and its session, by it.
        of_call = None
    if result is None and not _may_be_none(ctx.call.invocation.method):
        function = middleware[passed]
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidResult(f"the middleware {name} returned None: write 'return await call_next()'")
    return result


def _may_be_none(method: Method) -> bool:
    """Whether nothing has to be in its result, so that a function may return none."""
    return method.result in (dict, t.EmptyResult, t.SubscriptionsListenResult)


# ----------------------------------------------------------------------------------------------------

# Answered even when everything else waits: a peer whose ping is not answered takes this server for dead.
_NEVER_WAIT = frozenset({"ping", "initialize"})
# The methods whose targets are names, of which a server has few.
_NAMED = frozenset({"tools/call", "prompts/get"})


class Around(Protocol):
    """A function of an extension that runs round some requests of one method, outside of all middleware."""

    @property
    def function(self) -> Middleware: ...

    @property
    def when(self) -> Callable[[Mapping[str, Any]], bool]: ...


class _Named(Container[str], Protocol):
    def is_listed_elsewhere(self, name: str) -> bool:
        """Whether a name is one of a bounded number that another server has listed, for which this one stands."""


class _Tools(_Named, Protocol):
    def is_inline(self, name: str) -> bool:
        """Whether the function of a tool runs where the call arrives, and in no task."""


class FeatureTable(Protocol):
    """The features of a server, as far as dispatching needs them."""

    @property
    def tools(self) -> _Tools: ...
    @property
    def prompts(self) -> _Named: ...

    handlers: dict[str, Handler]
    middleware: list[Middleware]
    layered: bool
    """Whether anything runs round any request."""

    declared: frozenset[str] | None
    """The dotted names of what is declared, ``None`` since something has changed."""

    scoped: bool
    """Whether anything ever needed a scope."""

    @property
    def around(self) -> Mapping[str, Sequence[Around]]:
        """The functions of extensions that run round requests, by method."""

    def declare(self) -> frozenset[str]: ...

    def scopes_needed(self, method: str, params: Mapping[str, Any]) -> frozenset[str]: ...


class MethodDispatch:
    """Answers the calls of one `serve` with the handlers of the server."""

    __slots__ = ("beats", "call_class", "features", "scope", "stamp", "telemetry")

    def __init__(
        self,
        scope: ServerScope,
        features: FeatureTable,
        stamp: Mapping[str, Any],
        beats: Beats,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.telemetry = telemetry
        if telemetry is not None:  # it enters the classes of observed calls
            importlib.import_module("mcp_actors._actors.observed")
        self.call_class = KINDS[telemetry is not None].inbound
        self.beats = beats
        self.scope = scope
        self.features = features
        self.stamp = stamp

    def replace(self, features: FeatureTable, scope: ServerScope, stamp: Mapping[str, Any]) -> None:
        """Answers the calls that come from now on with other features; those that are there keep what they have."""
        self.features, self.scope, self.stamp = features, scope, stamp

    def respond(self, call: InboundCall) -> Any:
        """Returns the result, or a `Continuation` when the call needs a task.

        With middleware in place everything runs in a task but what must never wait.
        """
        features, invocation = self.features, call.invocation
        method = invocation.method
        handler = features.handlers.get(method.name)
        if handler is None or (
            method.requires is not None and method.requires not in (features.declared or features.declare())
        ):
            raise MethodNotFound(method.name)
        if features.scoped:
            check_scopes(call, features.scopes_needed(method.name, invocation.params))
        if invocation.state is not None:
            # A forged state is refused whether or not the handler would have looked at it.
            self.scope.recorded_answers(invocation)
        ctx = Context(call, self.scope)
        if features.layered and method.name not in _NEVER_WAIT:
            layers = features.middleware
            if method.name in features.around:
                params = invocation.params
                around = [each.function for each in features.around[method.name] if each.when(params)]
                layers = around + layers if around else layers
            if layers:
                return Continuation(through, layers, ctx, handler)
        return handler(ctx)

    def is_registered(self, method: str, target: str) -> bool:
        """Whether ``target`` is the name of a tool or prompt. URIs are too many to be told apart by them."""
        features = self.features
        names: _Named = features.tools if method == "tools/call" else features.prompts
        return method in _NAMED and (target in names or names.is_listed_elsewhere(target))

    def runs_in_place(self, method: str, target: str | None) -> bool:
        """Whether `respond` may run a function of the user's: a tool that is not inline runs in a task."""
        return method != "tools/call" or target is None or self.features.tools.is_inline(target)

    async def run_again(self, ctx: Context) -> Any:
        """Runs a request that was run before: through the middleware, and without the functions of extensions."""
        features = self.features
        return await through(features.middleware, ctx, features.handlers[ctx.method])

    def failure(self, call: InboundCall, error: BaseException) -> Any:
        """Returns what answers a call whose handler raised ``error``; see `mcp_actors._server.failures`."""
        return answer_to(call, error, self.scope.mask_errors)


def stamp_of(info: Implementation, ttl_ms: int, cache_scope: str) -> dict[str, Any]:
    """Returns the members that the modern era writes into every result."""
    return {
        "server_info": MODERN[LATEST_MODERN.version].unstructure(info),
        "ttl_ms": ttl_ms,
        "cache_scope": cache_scope,
    }


class _ServerDescription(msgspec.Struct, frozen=True):
    """Answers ``initialize`` and ``server/discover``: the server's own description in each era's form."""

    info: Implementation
    instructions: str | None

    def initialize(self, ctx: Context) -> InitializeResult:
        capabilities = ctx.server.capabilities
        if not ctx.call.owner.rules.session:
            capabilities = _without_a_session(capabilities)
        elif ctx.session is not None:
            ctx.session.declared(capabilities)
        return InitializeResult(
            protocol_version=ctx.era.version,
            capabilities=capabilities,
            server_info=self.info,
            instructions=self.instructions,
        )

    def discover(self, ctx: Context) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(ctx.server.versions),
            capabilities=ctx.server.capabilities,
            instructions=self.instructions,
        )


def _without_a_session(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Takes back what needs a session: without one nobody remembers which client wants to be notified of changes."""
    prompts, resources, tools = capabilities.prompts, capabilities.resources, capabilities.tools
    return attrs.evolve(
        capabilities,
        prompts=prompts and attrs.evolve(prompts, list_changed=None),
        resources=resources and attrs.evolve(resources, list_changed=None, subscribe=None),
        tools=tools and attrs.evolve(tools, list_changed=None),
    )


def _ping(ctx: Context) -> dict[str, Any]:
    return {}


def _set_level(ctx: Context) -> dict[str, Any]:
    level = ctx.params.get("level")
    if level not in LOGGING_LEVELS:
        raise invalid_params(f"level must be one of {', '.join(LOGGING_LEVELS)}")
    ctx.peer.log_level = level
    return {}


def lifecycle_handlers(info: Implementation, instructions: str | None) -> dict[str, Handler]:
    """The handlers of the methods that every server answers."""
    itself = _ServerDescription(info, instructions)
    return {
        "initialize": itself.initialize,
        "server/discover": itself.discover,
        "ping": _ping,
        "logging/setLevel": _set_level,
    }
