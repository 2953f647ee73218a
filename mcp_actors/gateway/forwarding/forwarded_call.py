"""A request of a client that is passed on to an upstream without a task, where it waits for nothing but the answer.

Most calls that a gateway passes on are of this kind. It has two turns: that of whoever reads the request, who passes it
on, and that of whoever reads the answer, who passes that back. Each task in between would cost a turn of the scheduler.

A call needs a task, which then does all of it (`forward`), where something has to be waited for first: a connection, a
log level, answers of the client; where it may become a task of the protocol; and where its client is told of progress.
It gets one where the request has to be made again, and where the upstream asks for something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_actors._actors.continuation import Continuation, Deferred
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions, OutboundCall
from mcp_actors._client.requests import may_be_repeated
from mcp_actors.context import Context
from mcp_actors.errors import McpError
from mcp_actors.gateway.forwarding.call_options import call_options
from mcp_actors.gateway.forwarding.forwarding import forward, may_be_held
from mcp_actors.gateway.forwarding.results import asks_for_input, failure_of, result_for_caller
from mcp_actors.gateway.lists.routes import Route
from mcp_actors.gateway.upstream.connection import UpstreamConnection
from mcp_actors.middleware.callers import caller_of

__all__ = ["ForwardedCall"]


class ForwardedCall(Deferred):
    """One request of a client on its way to an upstream. Called, it is `forward`.

    Args:
        ctx: The request of the client.
        route: The upstream, and what is asked for there.
        params: The params for the upstream.
    """

    __slots__ = ("_caller", "_connection", "_options", "_outbound", "_pending")

    _caller: str
    _connection: UpstreamConnection | None
    _options: CallOptions
    _outbound: OutboundCalls
    _pending: OutboundCall

    def __new__(cls, ctx: Context[Any], route: Route, params: dict[str, Any]) -> ForwardedCall:
        return super().__new__(cls, forward, ctx, route, params)

    def begin(self, done: Callable[[], None]) -> bool:
        ctx, route, params = self.args
        upstream = route.upstream
        if may_be_held(ctx, upstream):
            return False
        self._connection = connection = begun = None
        self._caller = caller = caller_of(ctx)
        upstream.load.begin(caller)
        try:
            self._connection = connection = upstream.at_hand(ctx)
            if connection is not None:
                connection.begin(ctx)
                if not _waits_first(ctx, connection):
                    self._options = options = call_options(ctx, connection, lambda: ctx)
                    begun = connection.client._requests.begin(ctx.method, params, options)
        except McpError as error:
            if connection is None:
                raise
            if not may_be_repeated(error):
                raise failure_of(upstream, connection, error) from None
        finally:
            if begun is None:
                self._ended()
        if begun is None:
            return False
        self._outbound, self._pending = begun
        self._pending.when_done(done)
        return True

    def outcome(self) -> Any:
        ctx, route, params = self.args
        upstream, connection = route.upstream, self._connection
        assert connection is not None
        try:
            result = self._outbound.take(self._pending, self._options)
        except McpError as error:
            if may_be_repeated(error):
                return Continuation(forward, ctx, route, params)
            failure = failure_of(upstream, connection, error)
            raise failure from None
        finally:
            self._ended()
        upstream.answered(connection)
        era = connection.era
        if asks_for_input(era, result):
            return Continuation(forward, ctx, route, params, result)
        return result_for_caller(ctx, upstream, era, result)

    def abandon(self) -> None:
        self._outbound.give_up(self._pending, self._options)
        self._ended()

    def _ended(self) -> None:
        ctx, route, _ = self.args
        upstream, connection = route.upstream, self._connection
        upstream.load.end(self._caller)
        if connection is not None:
            connection.end(ctx)
            upstream.give_back(connection)


def _waits_first(ctx: Context[Any], connection: UpstreamConnection) -> bool:
    """Whether something has to be waited for before the request, or it may become a task of the protocol."""
    if connection.traits.has_tasks and ctx.method == "tools/call":
        return True
    invocation = ctx.call.invocation
    if connection.era.asks_by_retry:
        return invocation.state is not None or invocation.answers is not None
    return connection.level_to_set(ctx) is not None
