"""A request of a client that is passed on to an upstream without a task, where it waits for nothing but the answer.

Most calls that a gateway passes on are of this kind. It has two turns: that of whoever reads the request, who passes it
on, and that of whoever reads the answer, who passes that back. Each task in between would cost a turn of the scheduler.

A call needs a task, which then does all of it (`forward`), where something has to be waited for first: a connection, a
log level, answers of the client; where it may become a task of the protocol; and where its client is told of progress.
It gets one where the request has to be made again, and where the upstream asks for something.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from mcp_actors._actors.inbound_call import Continuation, Deferred
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions, OutboundCall
from mcp_actors._client.requests import may_be_repeated
from mcp_actors._eras.era import Era, read_result
from mcp_actors._server.questions import missing_capability
from mcp_actors.errors import (
    URL_ELICITATION_REQUIRED,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    UpstreamMisbehaved,
)
from mcp_actors.gateway.call_options import call_options
from mcp_actors.gateway.callbacks import is_asked_by_result
from mcp_actors.gateway.connections import ASKING_CAPABILITIES, UpstreamConnection
from mcp_actors.gateway.forwarded_tasks import made_with_tasks
from mcp_actors.gateway.held_calls import HeldCall
from mcp_actors.gateway.results import asks_for_input, failure_for_client, failure_of, result_for_caller
from mcp_actors.gateway.routes import Route
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import Context
from mcp_actors.types import ElicitResult, ElicitUrlParams, InputRequest, InputRequiredResult

__all__ = ["ForwardedCall", "answered_round", "forward", "may_be_held", "passed_on", "with_answers"]


# -- Input-required results of an upstream without sessions (MCP 2026-07-28, Multi Round-Trip Requests) ---
#
# A client that is asked by results is sent them on, with the state sealed once more: so it is good for the same request
# of the same principal alone, and what an upstream gave to one client cannot be used by another one. A client with a
# session is asked by requests, and the call at the upstream is made again with its answers.

_STATE = "upstream"


def passed_on(ctx: Context[Any], era: Era, result: dict[str, Any]) -> dict[str, Any]:
    """Returns what a client without a session is sent of an input-required result.

    Raises:
        MissingCapability: The upstream asks for what the client did not declare.
        RemoteProtocolError: The result is malformed.
    """
    asked: InputRequiredResult = read_result(era, result, InputRequiredResult)
    _check(ctx, asked.input_requests or {})
    if asked.request_state is None:
        return result
    state = ctx._scope.seal_answers(ctx.call.invocation, {_STATE: asked.request_state})
    return {**result, "requestState": state}


def with_answers(ctx: Context[Any], params: dict[str, Any]) -> dict[str, Any]:
    """Returns the params for an upstream without sessions, with what the client's retry has brought.

    Raises:
        RpcError: -32602: The state is forged, too old, or another call's.
    """
    invocation = ctx.call.invocation
    if invocation.state is None and invocation.answers is None:
        return params
    state = ctx._scope.sealed_answers(invocation).get(_STATE)
    retry = dict(params)
    if invocation.answers:
        retry["inputResponses"] = dict(invocation.answers)
    if state is not None:
        retry["requestState"] = state
    return retry


async def answered_round(
    ctx: Context[Any], era: Era, params: Mapping[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """Asks the client of a session what an upstream asks, and returns the params of the next round.

    Raises:
        McpError: What `Context.ask` raises.
        RemoteProtocolError: The result is malformed.
    """
    asked: InputRequiredResult = read_result(era, result, InputRequiredResult)
    questions = asked.input_requests or {}
    if not questions and asked.request_state is None:
        raise RemoteProtocolError("an input-required result has neither questions nor a state")
    for each in questions.values():
        if isinstance(each, ElicitUrlParams) and each.elicitation_id is None:
            # Sessions want an id, of which the stateless revisions know nothing; nobody will tell the end of the visit.
            each.elicitation_id = secrets.token_urlsafe(16)
    answers = await ctx.ask(questions) if questions else {}
    retry = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        retry["inputResponses"] = {key: era.unstructure(each) for key, each in answers.items()}
    if asked.request_state is not None:
        retry["requestState"] = asked.request_state
    return retry


def _check(ctx: Context[Any], questions: Mapping[str, InputRequest]) -> None:
    for each in questions.values():
        needed = missing_capability(each, ctx.peer.raw_capabilities, ctx.era)
        if needed is not None:
            raise MissingCapability(needed)


# -- Passes a request on to an upstream, and its result back ---------------------------------------------
#
# What becomes of results and errors on the way back, is in `mcp_actors.gateway.results`. Calls that wait for
# nothing but the answer go the short way of `mcp_actors.gateway.forwarding`.

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


# ----------------------------------------------------------------------------------------------------


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
