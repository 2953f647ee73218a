"""The server's side of a connection: which handler answers a call, and what a server says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import attrs
import trio

from mcp_actors._actors.inbound_call import DEFERRED, Call
from mcp_actors._actors.stateless import StatelessCalls
from mcp_actors._eras.modern.eras import LATEST_MODERN, MODERN
from mcp_actors._server.context import Context
from mcp_actors._server.handler import Handler
from mcp_actors._server.scope import ServerScope
from mcp_actors.errors import MethodNotFound, invalid_params
from mcp_actors.types import (
    LOGGING_LEVELS,
    DiscoverResult,
    Implementation,
    InitializeResult,
    ServerCapabilities,
)

__all__ = ["MethodDispatch", "Middleware", "lifecycle_handlers", "stamp_of"]

Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]

# Answered even when everything else waits for its turn: a peer that cannot get through takes us for dead.
_ALWAYS_INLINE = frozenset({"ping", "initialize"})


class MethodDispatch:
    """Answers the calls of one connection with the handlers of the server."""

    __slots__ = ("declared", "handlers", "middleware", "scope", "stamp")

    def __init__(
        self,
        scope: ServerScope,
        handlers: Mapping[str, Handler],
        middleware: Sequence[Middleware],
        declared: Callable[[], frozenset[str]],
        stamp: Mapping[str, Any],
    ) -> None:
        self.scope = scope
        self.handlers = handlers
        self.middleware = middleware
        self.declared = declared
        self.stamp = stamp

    def _handler(self, call: Call) -> Handler:
        method = call.invocation.method
        handler = self.handlers.get(method.name)
        if handler is None or (method.requires is not None and method.requires not in self.declared()):
            raise MethodNotFound(method.name)
        return handler

    def attempt(self, call: Call) -> Any:
        """Answers on the spot what can be; with middleware in place only what must never wait."""
        handler = self._handler(call)
        if call.invocation.state is not None:
            # A forged state is refused whether or not the handler would have looked at it.
            self.scope.recorded_answers(call.invocation)
        ctx = Context(call, self.scope)
        if handler.inline is not None and (
            not self.middleware or call.invocation.method.name in _ALWAYS_INLINE
        ):
            # In a copy of the session's context variables, as a task has one: what a function sets is its own.
            result = copy_context().run(handler.inline, ctx)
            if result is not DEFERRED:
                return result
        call.prepared = handler.run, ctx
        return DEFERRED

    def answer(self, call: Call) -> Awaitable[Any]:
        """Answers in the call's own task, through the middleware, the first one added outermost."""
        run, ctx = call.prepared
        # A call and its context would otherwise keep each other alive until the garbage collector comes by.
        call.prepared = None
        if not self.middleware:
            return run(ctx)  # type: ignore[no-any-return]
        return _through(self.middleware, ctx, run)


async def _through(
    middleware: Sequence[Middleware], ctx: Context, run: Callable[[Context], Awaitable[Any]]
) -> Any:
    if not middleware:
        return await run(ctx)
    outermost, *inner = middleware

    async def call_next() -> Any:
        return await _through(inner, ctx, run)

    return await outermost(ctx, call_next)


def stamp_of(info: Implementation, ttl_ms: int, cache_scope: str) -> dict[str, Any]:
    """What the modern era writes into every result."""
    return {
        "server_info": MODERN[LATEST_MODERN.version].unstructure(info),
        "ttl_ms": ttl_ms,
        "cache_scope": cache_scope,
    }


@attrs.frozen
class _ServerDescription:
    """What a server says of itself, in each era's form."""

    info: Implementation
    instructions: str | None
    versions: Sequence[str]

    def initialize(self, ctx: Context) -> InitializeResult:
        capabilities = ctx.server.capabilities
        if isinstance(ctx.call.conversation, StatelessCalls):
            capabilities = _without_a_session(capabilities)
        return InitializeResult(
            protocol_version=ctx.era.version,
            capabilities=capabilities,
            server_info=self.info,
            instructions=self.instructions,
        )

    def discover(self, ctx: Context) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(self.versions),
            capabilities=ctx.server.capabilities,
            instructions=self.instructions,
        )


def _without_a_session(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Nobody would remember who wants to be told of changes."""
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


def lifecycle_handlers(
    info: Implementation, instructions: str | None, versions: Sequence[str]
) -> dict[str, Handler]:
    """The handlers of the methods that every server answers."""
    itself = _ServerDescription(info, instructions, versions)
    return {
        "initialize": at_once(itself.initialize),
        "server/discover": at_once(itself.discover),
        "ping": at_once(_ping),
        "logging/setLevel": at_once(_set_level),
    }


def at_once(answer: Callable[[Context], Any]) -> Handler:
    """A handler that never waits."""

    async def run(ctx: Context) -> Any:
        await trio.lowlevel.checkpoint()
        return answer(ctx)

    return Handler(run, answer)
