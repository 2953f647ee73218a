"""The dispatch of calls: the handler that answers each one, and the methods in which a server describes itself."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from mcp_actors._actors.beats import Beats
from mcp_actors._actors.inbound_call import Continuation, InboundCall
from mcp_actors._actors.outbound import KINDS
from mcp_actors._eras.era import DEADLINES
from mcp_actors._eras.modern import LATEST_MODERN, SERVER_INFO
from mcp_actors._server.context import Context, check_scopes
from mcp_actors._server.failures import answer_to
from mcp_actors._server.features import Features
from mcp_actors._server.invoke import Handler
from mcp_actors._server.middleware import through
from mcp_actors._server.registry import Registry
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.streams import STREAM_METHODS
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import Telemetry
from mcp_actors.errors import MethodNotFound, invalid_params
from mcp_actors.types import (
    LOGGING_LEVELS,
    DiscoverResult,
    Implementation,
    InitializeResult,
    ServerCapabilities,
)

__all__ = ["MethodDispatch", "lifecycle_handlers", "stamp_of"]


# Answered even when everything else waits: a peer whose ping is not answered takes this server for dead, and calls wait
# for what their clients say of them.
_NEVER_WAIT = frozenset({"ping", "initialize", *STREAM_METHODS})
# The methods whose targets are names, of which a server has few.
_NAMED = frozenset({"tools/call", "prompts/get"})


class MethodDispatch:
    """Answers the calls of one `serve` with the handlers of the server."""

    __slots__ = ("beats", "call_class", "features", "operated", "scope", "stamp", "telemetry")

    def __init__(
        self,
        scope: ServerScope,
        features: Features,
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
        self.operated: list[Any] = []
        """What extensions let operators see and cancel: `mcp_actors.extensions.OperatedTasks`."""

    def replace(self, features: Features, scope: ServerScope, stamp: Mapping[str, Any]) -> None:
        """Answers later calls with other features; calls in flight keep those that they began with."""
        self.features, self.scope, self.stamp = features, scope, stamp

    def respond(self, call: InboundCall) -> Any:
        """Returns the result, or a `Continuation` when the call needs a task.

        With middleware every call runs in a task, except those that must never wait.
        """
        features, invocation = self.features, call.invocation
        method = invocation.method
        handler = features.handlers.get(method.name)
        if handler is None or (
            method.requires is not None and method.requires not in (features.declared or features.declare())
        ):
            raise MethodNotFound(method.name)
        if features.scoped:
            check_scopes(call, self.scope, features.scopes_needed(method.name, invocation.params))
            if features.visibility.is_active:
                features.check_seen(Context(call, invocation.params, self.scope))
        if invocation.state is not None:
            # A forged state is refused even if the handler would not have read it.
            self.scope.recorded_answers(invocation)
        ctx = Context(call, invocation.params, self.scope)
        if features.layered and method.name not in _NEVER_WAIT:
            layers = features.middleware
            if method.name in features.around:
                params, meta = invocation.params, invocation.meta
                around = [
                    each.function for each in features.around[method.name] if each.concerns(params, meta)
                ]
                layers = around + layers if around else layers
            if layers:
                return Continuation(through, layers, ctx, handler)
        return handler(ctx)

    def is_registered(self, method: str, target: str) -> bool:
        """Whether ``target`` is the name of a tool or prompt. There are too many URIs to count calls by them."""
        features = self.features
        names: Registry[Any] = features.tools if method == "tools/call" else features.prompts
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
    server_info = LATEST_MODERN.describe(info)
    return {
        "server_info": server_info,
        "meta": msgspec.Raw(encode_value({SERVER_INFO: server_info})),
        "ttl_ms": ttl_ms,
        "cache_scope": cache_scope,
    }


class _ServerDescription(msgspec.Struct, frozen=True):
    """Answers ``initialize`` and ``server/discover``: the server's own description in each era's form."""

    info: Implementation
    instructions: str | None

    def initialize(self, ctx: Context) -> InitializeResult:
        capabilities = _with_deadlines(ctx, ctx.server.capabilities)
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
            capabilities=_with_deadlines(ctx, ctx.server.capabilities),
            instructions=self.instructions,
        )


def _with_deadlines(ctx: Context, capabilities: ServerCapabilities) -> ServerCapabilities:
    """Declares the extension of deadlines (SEP-2133) to those clients that declare it themselves."""
    declared = ctx.peer.raw_capabilities.get("extensions")
    if not isinstance(declared, dict) or DEADLINES not in declared:
        return capabilities
    return attrs.evolve(capabilities, extensions={**(capabilities.extensions or {}), DEADLINES: {}})


def _without_a_session(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Leaves out what needs a session, which remembers that a client wants to be notified of changes."""
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
