"""Passes a request on to an upstream, and its result back.

Between equal revisions a result passes as it came. Between different ones it is read into the objects of the protocol,
which the revision of the caller then writes in its own way.
"""

from __future__ import annotations

from typing import Any

import attrs

from mcp_actors._client.requests import callers_meta
from mcp_actors._eras.era import read_result
from mcp_actors.client import Progress
from mcp_actors.context import Context
from mcp_actors.errors import CallTimeout, ConnectionLost, RpcError, UpstreamUnavailable
from mcp_actors.gateway.connection import UpstreamConnection
from mcp_actors.gateway.routes import Route
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.middleware.callers import caller_of

__all__ = ["forward"]


async def forward(ctx: Context[Any], route: Route, params: dict[str, Any]) -> Any:
    """Makes the caller's request at an upstream, with ``params`` in place of its own, and returns the result.

    Cancelled, the upstream is sent a cancellation.

    Raises:
        UpstreamUnavailable: There is no connection, or it was lost during the call.
        RpcError: The upstream answered with an error.
        McpError: What else a request of a client raises.
    """
    upstream = route.upstream
    caller = caller_of(ctx)
    upstream.load.begin(caller)
    connection: UpstreamConnection | None = None
    try:
        connection = upstream.at_hand(ctx) or await upstream.connect(ctx)
        connection.begin(ctx)
        return await _request(ctx, upstream, connection, params)
    finally:
        upstream.load.end(caller)
        if connection is not None:
            connection.end(ctx)
            upstream.give_back(connection)


async def _request(
    ctx: Context[Any], upstream: UpstreamActor, connection: UpstreamConnection, params: dict[str, Any]
) -> Any:
    requests = connection.client._requests
    options = requests.options
    meta = callers_meta(ctx.meta)
    if meta:
        options = attrs.evolve(options, meta=meta)
    if ctx.call.invocation.progress_token is not None:

        async def report(progress: Progress) -> None:
            await ctx.progress(progress.progress, progress.total, progress.message)

        options = attrs.evolve(options, on_progress=report)
    try:
        result = await requests.send(ctx.method, params, options)
    except RpcError:
        upstream.answered(connection)
        raise
    except CallTimeout:
        upstream.timed_out()
        raise
    except ConnectionLost as error:
        raise UpstreamUnavailable(
            upstream.settings.name, "the connection was lost during the call"
        ) from error
    upstream.answered(connection)
    if connection.era is ctx.era:
        return result
    return read_result(connection.era, result, ctx.call.invocation.method.result)
