"""Passes a request on to an upstream, and its result back.

What becomes of results and errors on the way back, is in `mcp_actors.gateway.forwarding.results`. Calls that wait for
nothing but the answer go the short way of `mcp_actors.gateway.forwarding.forwarded_call`.
"""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.era import Era
from mcp_actors._server.client_requests import missing_capability
from mcp_actors.context import Context
from mcp_actors.errors import (
    URL_ELICITATION_REQUIRED,
    McpError,
    RemoteProtocolError,
    RpcError,
    UpstreamMisbehaved,
)
from mcp_actors.gateway.forwarding.call_options import call_options
from mcp_actors.gateway.forwarding.failures import failure_for_client
from mcp_actors.gateway.forwarding.results import asks_for_input, failure_of, result_for_caller
from mcp_actors.gateway.forwarding.tasks import made_with_tasks
from mcp_actors.gateway.lists.routes import Route
from mcp_actors.gateway.questions.callbacks import is_asked_by_result
from mcp_actors.gateway.questions.held_calls import HeldCall
from mcp_actors.gateway.questions.rounds import answered_round, passed_on, with_answers
from mcp_actors.gateway.upstream.actor import UpstreamActor
from mcp_actors.gateway.upstream.connection import UpstreamConnection
from mcp_actors.gateway.upstream.connections import ASKING_CAPABILITIES
from mcp_actors.middleware.callers import caller_of
from mcp_actors.types import ElicitResult, ElicitUrlParams

__all__ = ["forward", "may_be_held"]

# How often one call may ask a client, so that no upstream asks without an end.
MAX_ROUNDS = 10


async def forward(
    ctx: Context[Any], route: Route, params: dict[str, Any], first: dict[str, Any] | None = None
) -> Any:
    """Makes the caller's request at an upstream, with ``params`` in place of its own, and returns the result.

    Cancelled, the upstream is sent a cancellation.

    Args:
        ctx: The caller's request.
        route: The upstream.
        params: The params for the upstream.
        first: The result of the first request, if it was made already: it asks for input.

    Raises:
        RpcError: The upstream answered with an error, or what `failure_for_client` makes of a failure.
        Overloaded: The caller, or all of them, have too many calls in flight there.
        McpError: What asking a client with a session raises.
    """
    upstream = route.upstream
    if first is not None or not is_asked_by_result(ctx):
        return await _forward(ctx, upstream, params, None, first)
    if ctx.call.invocation.state is not None:
        held = upstream.held.held_for(ctx)
        if held is not None:
            held.take_answers(ctx)
            return await held.wait(ctx)
    if may_be_held(ctx, upstream):
        return await upstream.held.make(ctx, lambda held: _forward(ctx, upstream, params, held))
    return await _forward(ctx, upstream, params, None)


def may_be_held(ctx: Context[Any], upstream: UpstreamActor) -> bool:
    """Whether a call is held while its client is asked.

    That is so if a server with sessions, which this one is as far as anybody knows, could ask a client without one.
    """
    if not is_asked_by_result(ctx):
        return False
    declared = ctx.peer.raw_capabilities
    if not ctx.call.invocation.method.may_ask or not any(name in declared for name in ASKING_CAPABILITIES):
        return False
    return upstream.met is None or not upstream.met.era.asks_by_retry


async def _forward(
    ctx: Context[Any],
    upstream: UpstreamActor,
    params: dict[str, Any],
    held: HeldCall | None,
    first: dict[str, Any] | None = None,
) -> Any:
    caller = caller_of(ctx)
    upstream.load.begin(caller)
    connection: UpstreamConnection | None = None
    try:
        connection = upstream.at_hand(ctx) or await upstream.connect(ctx)
        connection.begin(ctx, held)
        return await _made(ctx, upstream, connection, params, held, first)
    finally:
        upstream.load.end(caller)
        if connection is not None:
            connection.end(ctx)
            upstream.give_back(connection)


async def _made(
    ctx: Context[Any],
    upstream: UpstreamActor,
    connection: UpstreamConnection,
    params: dict[str, Any],
    held: HeldCall | None,
    first: dict[str, Any] | None,
) -> Any:
    """Makes the request as often as the upstream asks the client for something."""
    era, name = connection.era, upstream.settings.name
    if era.asks_by_retry:
        params = with_answers(ctx, params)
    elif (level := connection.level_to_set(ctx)) is not None:
        await connection.set_log_level(level)
    for _ in range(MAX_ROUNDS + 1):
        try:
            if first is None:
                result, is_answer = await _sent(ctx, upstream, connection, params, held)
            else:
                result, is_answer, first = first, False, None
        except RpcError as error:
            if held is not None and await _has_visited_urls(held, error, era):
                continue
            raise
        if is_answer:
            return result
        if asks_for_input(era, result):
            try:
                if is_asked_by_result(ctx):
                    return passed_on(ctx, era, result)
                params = await answered_round(ctx, era, params, result)
            except RemoteProtocolError as error:
                raise failure_for_client(name, error) from error
            continue
        return result_for_caller(ctx, upstream, era, result)
    raise UpstreamMisbehaved(name, f"it still asks for input after {MAX_ROUNDS} rounds")


async def _sent(
    ctx: Context[Any],
    upstream: UpstreamActor,
    connection: UpstreamConnection,
    params: dict[str, Any],
    held: HeldCall | None,
) -> tuple[dict[str, Any], bool]:
    """Makes the request once; with true comes the answer to the caller, which says that a task was made of the call."""
    options = call_options(ctx, connection, (lambda: ctx) if held is None else (lambda: held.ctx))
    is_answer = False
    try:
        if connection.traits.has_tasks and ctx.method == "tools/call":

            def finish(later: Context[Any], result: dict[str, Any]) -> Any:
                return result_for_caller(later, upstream, connection.era, result)

            result, is_answer = await made_with_tasks(
                ctx, upstream.settings.name, connection, params, options, finish
            )
        else:
            result = await connection.client._requests.send(ctx.method, params, options)
    except McpError as error:
        raise failure_of(upstream, connection, error) from None
    upstream.answered(connection)
    return result, is_answer


async def _has_visited_urls(held: HeldCall, error: RpcError, era: Era) -> bool:
    """Whether a server of sessions asked for visits to URLs by an error, and they were made: then it is called again.

    MCP 2025-11-25, Elicitation, URL Elicitation Required Error.
    """
    if error.code != URL_ELICITATION_REQUIRED or not era.client.visits_urls_on_error or held.ctx is None:
        return False
    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if not isinstance(listed, list) or not listed:
        return False
    peer = held.ctx.peer
    for each in listed:
        try:
            question = era.structure(each, ElicitUrlParams)
        except Exception:  # cattrs raises whatever the member's own conversion raised
            return False
        if missing_capability(question, peer.raw_capabilities, peer.era) is not None:
            return False
        answer = await held.ask(question)
        if not isinstance(answer, ElicitResult) or answer.action != "accept":
            return False
    return True
