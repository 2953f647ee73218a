"""The gateway: a server whose tools, resources and prompts are those of other servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs

from mcp_actors._server.handler import Continuation, string_param
from mcp_actors._server.scope import ServerScope, StateT
from mcp_actors.context import Context
from mcp_actors.errors import invalid_params
from mcp_actors.gateway.client_news import ROOTS_CHANGED, set_log_level, tell_roots_changed
from mcp_actors.gateway.forwarding import forward
from mcp_actors.gateway.live import LiveUpstreams, opened
from mcp_actors.gateway.routes import Route, tool_route
from mcp_actors.gateway.statistics import UpstreamStatistics
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.server import Server
from mcp_actors.types import ListToolsResult, Tool

__all__ = ["Gateway"]


class Gateway(Server[StateT]):
    """A server that offers what other servers offer, and passes requests on to them.

    Its own tools, resources and prompts come first, then those of its upstreams.

    Args:
        upstreams: The servers.
        name: As that of `Server`.
        options: The other options of `Server`.

    Raises:
        ValueError: Two upstreams have the same name; else as `Server`.
    """

    def __init__(self, upstreams: Sequence[Upstream], name: str = "gateway", **options: Any) -> None:
        names = [each.name for each in upstreams]
        if len(set(names)) < len(names):
            raise ValueError("two upstreams have the same name")
        super().__init__(name, capabilities=["tools"], **options)
        self._upstreams = tuple(upstreams)
        self._live: dict[ServerScope, LiveUpstreams] = {}
        self._runtime.upstreams = self._upstream_statistics
        handlers = self._features.handlers
        self._own = {method: handlers[method] for method in ("tools/call", "tools/list")}
        handlers["tools/call"] = self._call_tool
        handlers["tools/list"] = self._list_tools
        own_level = handlers["logging/setLevel"]
        handlers["logging/setLevel"] = lambda ctx: set_log_level(own_level, self._live[ctx._scope], ctx)
        self.notification(ROOTS_CHANGED, inline=True)(self._roots_changed)
        for each in upstreams:
            for method in each.methods:
                self.method(method, scopes=each.scopes)(partial(self._forward_method, each.name))

    @asynccontextmanager
    async def _scope(self) -> AsyncIterator[ServerScope]:
        async with opened(self._upstreams) as live, super()._scope() as scope:
            self._live[scope] = live
            try:
                yield scope
            finally:
                del self._live[scope]

    def _upstream_statistics(self) -> tuple[UpstreamStatistics, ...]:
        live = self._live.values()
        return tuple(actor.statistics() for each in live for actor in each.actors.values())

    def _roots_changed(self, ctx: Context[StateT]) -> None:
        tell_roots_changed(self._live[ctx._scope], ctx)

    async def _forward_method(self, upstream: str, params: dict[str, Any], ctx: Context[StateT]) -> Any:
        return await forward(ctx, Route(self._live[ctx._scope].actors[upstream], ""), params)

    def _call_tool(self, ctx: Context[StateT]) -> Any:
        name = string_param(ctx.params, "name")
        return self._own["tools/call"](ctx) if name in self.tools else Continuation(self._forward_tool, ctx)

    async def _forward_tool(self, ctx: Context[StateT]) -> Any:
        name = ctx.params["name"]
        route = tool_route(self._live[ctx._scope], name)
        if route is None:
            raise invalid_params(f"unknown tool: {name:.200}")
        return await forward(ctx, route, {**ctx.params, "name": route.target})

    def _list_tools(self, ctx: Context[StateT]) -> Any:
        return Continuation(self._merged_tools, ctx)

    async def _merged_tools(self, ctx: Context[StateT]) -> ListToolsResult:
        tools = [entry.tool for entry in self.tools]
        for actor in self._live[ctx._scope].actors.values():
            tools += await _tools_of(actor, ctx)
        return ListToolsResult(tools)


async def _tools_of(actor: UpstreamActor, ctx: Context[Any]) -> list[Tool]:
    connection = actor.at_hand(ctx) or await actor.connect(ctx)
    prefix = actor.settings.name_prefix
    return [attrs.evolve(each, name=prefix + each.name) async for each in connection.client.tools()]
