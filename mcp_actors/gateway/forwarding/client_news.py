"""The news of a client with a session outside of calls, for the upstreams with a connection of that client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from mcp_actors._server.handler import Handler
from mcp_actors.context import Context
from mcp_actors.gateway.upstream.actor import UpstreamActor
from mcp_actors.gateway.upstream.connection import UpstreamConnection
from mcp_actors.task_kinds import UPSTREAM_LOG_LEVEL

__all__ = ["ROOTS_CHANGED", "pass_roots_changed", "set_log_level"]

ROOTS_CHANGED = "notifications/roots/list_changed"


def set_log_level(own: Handler, actors: Iterable[UpstreamActor], ctx: Context[Any]) -> Any:
    """Answers ``logging/setLevel``, and gives the client's own connections the level, each in a task of it.

    Connections that are made later are given it before the first call over them.

    Args:
        own: The handler of the server.
        actors: The upstreams.
        ctx: The request.
    """
    result = own(ctx)
    for each in _connections_of(actors, ctx):
        level = each.level_to_set(ctx)
        if level is not None:
            dispatcher = each.client._connectivity.session.dispatcher
            dispatcher.start_task(UPSTREAM_LOG_LEVEL, partial(each.set_log_level, level))
    return result


def pass_roots_changed(actors: Iterable[UpstreamActor], ctx: Context[Any]) -> None:
    """Tells the servers that were told of the client's roots that these have changed. Never waits."""
    for each in _connections_of(actors, ctx):
        if each.declared.roots is not None and ROOTS_CHANGED in each.era.client_notifications:
            each.client._connectivity.session.dispatcher.post(ROOTS_CHANGED)


def _connections_of(actors: Iterable[UpstreamActor], ctx: Context[Any]) -> Iterator[UpstreamConnection]:
    session = ctx.session
    if session is not None:
        for actor in actors:
            for each in actor.connections:
                if each.key is session and each.is_open:
                    yield each
