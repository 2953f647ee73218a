"""A request of a client that is passed on to an upstream, and its result back.

Most calls wait for nothing but the answer. They have no task but two turns (`ForwardedCall`): the task that reads the
request passes it on, and the task that reads the answer passes that back. Each task in between would cost a turn of the
scheduler.

A call needs a task, which then does all of it (`forward`), where something has to be waited for first: a connection, a
log level, answers of the client; where it may become a task of the protocol; and where its client wants reports of
progress. It gets one where the request has to be made again, and where the upstream asks for something.

An upstream without sessions asks by an input-required result (MCP 2026-07-28, Multi Round-Trip Requests). A client that
is asked by results is sent it, with the state sealed once more: so the state is good for the same request of the same
principal alone, and no client can use what an upstream gave to another one. A client with a session is asked by
requests, and the call at the upstream is made again with its answers.

Either way a call takes one `Lease` of its upstream and carries it along until it ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors._actors.inbound_call import Continuation, Deferred, finished
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions, OutboundCall
from mcp_actors._client.repetition import may_be_repeated
from mcp_actors._client.tool_streams import PartStream, streamed
from mcp_actors._eras.era import CALL_MESSAGE, KEY, Era, read_result
from mcp_actors._server.approvals import approve
from mcp_actors._server.failures import failed
from mcp_actors._server.inbox import CallLink, token_of
from mcp_actors._server.questions import missing_capability
from mcp_actors._server.streams import shown
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import (
    URL_ELICITATION_REQUIRED,
    CallEnded,
    CallTimeout,
    ConnectionLost,
    InboxUnavailable,
    McpError,
    MethodNotFound,
    MissingCapability,
    NotApproved,
    RemoteProtocolError,
    RpcError,
    UpstreamMisbehaved,
    UpstreamUnavailable,
)
from mcp_actors.gateway.call_options import call_options
from mcp_actors.gateway.callbacks import is_asked_by_result
from mcp_actors.gateway.connections import ASKING_CAPABILITIES
from mcp_actors.gateway.forwarded_tasks import made_with_tasks, messages_passed_on
from mcp_actors.gateway.held_calls import ASKED_BY, HeldCall
from mcp_actors.gateway.results import asks_for_input, failure_for_client, failure_of, result_for_caller
from mcp_actors.gateway.routes import Route
from mcp_actors.gateway.upstream import Lease, UpstreamActor
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types import ElicitResult, ElicitUrlParams, InputRequest, InputRequiredResult

__all__ = ["ForwardedCall", "forward"]

# How often one call may ask a client, so that no upstream asks without an end.
MAX_ROUNDS = 10
# Characters of arguments that a person is shown who has to approve a call.
LONGEST_ARGUMENTS = 3000
_STATE = "upstream"


class ForwardedCall(Deferred):
    """One request of a client on its way to an upstream. Called, it is `forward`.

    Args:
        ctx: The request of the client.
        route: The upstream, and what is asked for there.
        params: The params for the upstream.
    """

    __slots__ = ("_lease", "_options", "_outbound", "_pending")

    _lease: Lease
    _options: CallOptions
    _outbound: OutboundCalls
    _pending: OutboundCall

    def __new__(cls, ctx: Context[Any], route: Route, params: dict[str, Any]) -> ForwardedCall:
        return super().__new__(cls, forward, ctx, route, params)

    def begin(self, done: Callable[[], None]) -> bool:
        ctx, route, params = self.args
        if _may_be_held(ctx, route.upstream) or _is_confirmed(ctx, route):
            return False
        lease = route.upstream.lease(ctx)
        if lease is None:
            return False
        begun = options = None
        try:
            if not _waits_first(lease):
                self._options = options = call_options(lease)
                method = ctx.call.invocation.method.name
                begun = lease.connection.client._requests.begin(method, params, options)
        except McpError as error:
            if not _is_made_again(lease, error, options):
                raise failure_of(lease, error) from None
        finally:
            if begun is None:
                lease.end()
        if begun is None:
            return False
        self._lease = lease
        self._outbound, self._pending = begun
        self._pending.when_done(done)
        return True

    def __call__(self) -> Any:
        return self._rest() if self.begun else super().__call__()

    async def _rest(self) -> Any:
        try:
            await self._pending.wait()
            self._pending.taken()
        except McpError as error:
            log.debug(
                "a forwarded call has failed", error=str(error)
            )  # `outcome` decides what follows from it
        except BaseException:
            self.abandon()
            raise
        return await finished(self.outcome())

    def outcome(self) -> Any:
        if self._pending.is_open:
            return self
        ctx, route, params = self.args
        lease = self._lease
        try:
            result = self._outbound.take(self._pending, self._options)
        except McpError as error:
            if _is_made_again(lease, error, self._options):
                return Continuation(forward, ctx, route, params, None, not may_be_repeated(error, None))
            failure = failure_of(lease, error)
            raise failure from None
        finally:
            lease.end()
        lease.upstream.answered(lease.connection)
        if asks_for_input(lease.era, result):
            return Continuation(forward, ctx, route, params, result)
        return result_for_caller(ctx, lease, result)

    def abandon(self) -> None:
        self._outbound.give_up(self._pending, self._options)
        self._lease.end()


def _is_made_again(lease: Lease, error: McpError, options: CallOptions | None) -> bool:
    """Whether a request that has failed is made again, over another connection if need be: see `may_be_repeated`."""
    is_made_again = may_be_repeated(error, options)
    if is_made_again and isinstance(error, ConnectionLost):
        lease.upstream.lost(lease.connection, error)
    return is_made_again


def _waits_first(lease: Lease) -> bool:
    """Whether something has to be waited for before the request, or it may become a task of the protocol."""
    ctx, connection = lease.ctx, lease.connection
    if ctx.method == "tools/call" and (connection.server.has_tasks or token_of(ctx.call) is not None):
        return True
    if lease.era.asks_by_retry:
        invocation = ctx.call.invocation
        return invocation.state is not None or invocation.answers is not None
    return connection.level_to_set(ctx) is not None


def _may_be_held(ctx: Context[Any], upstream: UpstreamActor) -> bool:
    """Whether a call is held while its client is asked.

    That is so if a server with sessions could ask a client without one; a server that is still unknown may have them.
    """
    invocation = ctx.call.invocation
    if not invocation.era.asks_by_retry or not invocation.method.may_ask or ctx.call.was_answered:
        return False
    declared = invocation.peer.raw_capabilities
    if not any(name in declared for name in ASKING_CAPABILITIES):
        return False
    return upstream.met is None or not upstream.met.server.negotiated.era.asks_by_retry


async def forward(
    ctx: Context[Any],
    route: Route,
    params: dict[str, Any],
    first: dict[str, Any] | None = None,
    needs_key: bool = False,
) -> Any:
    """Makes the caller's request at an upstream, with ``params`` in place of its own, and returns the result.

    Cancelled, the upstream is sent a cancellation.

    Args:
        ctx: The caller's request.
        route: The upstream.
        params: The params for the upstream.
        first: The result of the first request, if it was made already: it asks for input.
        needs_key: Whether it was lost in the middle, so that it may be made at a server only that takes its key.

    Raises:
        RpcError: The upstream answered with an error, or what `failure_for_client` makes of a failure.
        Overloaded: The caller, or all of them, have too many calls in flight there.
        McpError: What asking a client with a session raises.
    """
    upstream = route.upstream
    if first is None and _is_confirmed(ctx, route):
        try:
            await approve(ctx, _question(ctx, route, params), route.upstream.settings.confirm_by)
        except NotApproved as error:
            return failed(error)
    if first is None and is_asked_by_result(ctx):
        if ctx.call.invocation.state is not None:
            held = upstream.held.held_for(ctx)
            if held is not None:
                held.take_answers(ctx)
                return await held.wait(ctx)
        if _may_be_held(ctx, upstream):
            make = partial(_forward, ctx, upstream, params, needs_key=needs_key)
            return await upstream.held.make(ctx, upstream.settings.name, make)
    return await _forward(ctx, upstream, params, None, first, needs_key=needs_key)


def _is_confirmed(ctx: Context[Any], route: Route) -> bool:
    """Whether a person has to approve a call of a tool."""
    settings = route.upstream.settings
    if not settings.confirm or ctx.method != "tools/call":
        return False
    found = ctx.server._features.tools.elsewhere(ctx.params.get("name"))
    return settings.is_confirmed(route.target, is_destructive=found is None or found.is_destructive)


def _question(ctx: Context[Any], route: Route, params: Mapping[str, Any]) -> str:
    """Returns what a person is asked about a call; the names in it are those that the server has."""
    arguments = encode_value(params.get("arguments") or {}).decode()
    shown = printable(arguments, LONGEST_ARGUMENTS)
    cut = "" if len(arguments) <= LONGEST_ARGUMENTS else f" … {len(arguments)} characters in all"
    return f"Call {printable(route.target, 200)} of {route.upstream.settings.name} with {shown}{cut}?"


async def _forward(
    ctx: Context[Any],
    upstream: UpstreamActor,
    params: dict[str, Any],
    held: HeldCall | None,
    first: dict[str, Any] | None = None,
    *,
    is_again: bool = False,
    needs_key: bool = False,
) -> Any:
    """Makes the request as often as the upstream asks the client for something.

    What was not sent, because the connection had ended, is made again over another one, unless it ``is_again``. So is
    what has a key there, if the server that is there then takes it.
    """
    with await upstream.wait_for_lease(ctx, held) as lease:
        era, name = lease.era, upstream.settings.name
        if era.asks_by_retry:
            params = _with_answers(ctx, params)
        elif (level := lease.connection.level_to_set(ctx)) is not None:
            await lease.connection.set_log_level(level)
        for _ in range(MAX_ROUNDS + 1):
            try:
                if first is None:
                    result, is_answer = await _sent(lease, params, needs_key)
                else:
                    result, is_answer, first = first, False, None
            except ConnectionLost as lost:
                if is_again:
                    raise failure_of(lease, lost) from None
                needs_key = not lost.never_run
                break
            except RpcError as error:
                if held is not None and await _has_visited_urls(held, error, era):
                    continue
                raise
            if is_answer:
                return result
            if not asks_for_input(era, result):
                return result_for_caller(ctx, lease, result)
            try:
                if is_asked_by_result(ctx):
                    return _passed_on(ctx, name, era, result)
                params = await _answered_round(ctx, era, params, result)
            except RemoteProtocolError as error:
                raise failure_for_client(name, error) from error
        else:
            raise UpstreamMisbehaved(name, f"it still asks for input after {MAX_ROUNDS} rounds")
    return await _forward(ctx, upstream, params, held, is_again=True, needs_key=needs_key)


async def _sent(lease: Lease, params: dict[str, Any], needs_key: bool) -> tuple[dict[str, Any], bool]:
    """Makes the request once; with true comes the answer to the caller, which says that a task was made of the call.

    Raises:
        ConnectionLost: The connection had ended, and nothing of the request was sent.
        RpcError: As `forward`.
    """
    ctx, connection, is_answer = lease.ctx, lease.connection, False
    options = None
    try:
        options = call_options(lease)
        if needs_key and KEY not in (options.meta or {}):
            reason = "it was lost in the middle of the call, and takes no keys any more"
            raise UpstreamUnavailable(lease.upstream.settings.name, reason)
        if connection.server.has_tasks and ctx.method == "tools/call":

            def finish(later: Context[Any], result: dict[str, Any]) -> Any:
                return result_for_caller(later, lease, result)

            result, is_answer = await made_with_tasks(lease, params, options, partial(_called, lease), finish)
        else:
            result = await _called(lease, params, options)
    except McpError as error:
        if isinstance(error, ConnectionLost) and _is_made_again(lease, error, options):
            raise
        raise failure_of(lease, error) from None
    lease.upstream.answered(connection)
    return result, is_answer


async def _called(lease: Lease, params: dict[str, Any], options: CallOptions) -> dict[str, Any]:
    """Makes a request; of a call that can be sent messages they are passed on, and the parts of the result come back.

    The upstream is told what is read as the client tells it here, so that a slow client holds the function there.
    """
    ctx, client = lease.ctx, lease.connection.client
    if ctx.method == "tools/call":
        if (link := CallLink.of(ctx.call)) is not None:
            return await _streamed(lease, params, options, link)
        if ctx.inbox.is_open:
            return await _called_by_task(lease, params, options)
    return await client._requests.send(ctx.method, params, options)


async def _called_by_task(lease: Lease, params: dict[str, Any], options: CallOptions) -> dict[str, Any]:
    """Makes the call of a task of the gateway, whose parts are the messages of its state."""
    ctx, client = lease.ctx, lease.connection.client
    stream = PartStream(client._requests, options)
    sent = attrs.evolve(options, meta={**(options.meta or {}), **stream.meta})
    call = partial(client._requests.send, "tools/call", params, sent)
    number = 0
    async with (
        streamed(stream, client._subscriptions.run_owned, call),
        messages_passed_on(ctx, lease.connection, stream.send),
    ):
        while (part := await stream.next_part()) is not None:
            number += 1
            await ctx.progress(number, message=shown(part))
        result: dict[str, Any] = stream.outcome
        return result


async def _streamed(
    lease: Lease, params: dict[str, Any], options: CallOptions, link: CallLink
) -> dict[str, Any]:
    """Makes a request of a client that takes parts."""
    client = lease.connection.client
    stream = PartStream(client._requests, options)
    sent = attrs.evolve(options, meta={**(options.meta or {}), **stream.meta})
    call = partial(client._requests.send, "tools/call", params, sent)
    parts = _PassedParts(partial(_message_passed_on, lease, stream))
    if lease.held is not None:
        lease.held.on_request = parts.attach
    try:
        async with streamed(stream, client._subscriptions.run_owned, call):
            while messages := link.inbox.take_all():
                for message in messages:
                    await _message_passed_on(lease, stream, message)
            parts.attach(lease.present)
            while (part := await stream.next_part()) is not None:
                await parts.send(part)
            result: dict[str, Any] = stream.outcome
            return result
    finally:
        parts.close()
        if lease.held is not None:
            lease.held.on_request = None


class _PassedParts:
    """The parts of one request to an upstream, on their way to the client.

    The client has some already if the request is made again, to bring an answer or because the connection was lost: a
    part comes once. A held call goes on while its client is asked by a result, and with the next request of the client.

    Args:
        take_message: Takes the messages of the client to the call.
    """

    def __init__(self, take_message: Callable[[Any], Awaitable[None]]) -> None:
        self._take_message = take_message
        self._number = 0
        self._link: CallLink | None = None
        self._attached = trio.Event()

    def __repr__(self) -> str:
        return f"<_PassedParts {self._number} through {self._link!r}>"

    def attach(self, ctx: Context[Any] | None) -> None:
        """The client waits by another request now; by none while it is asked by a result."""
        if ctx is None:
            if self._link is not None:
                self._link.let_go()
            self.close()
            self._attached = trio.Event()
            return
        self._link = CallLink.of(ctx.call)
        if self._link is not None:
            self._link.go_on_at(self._number)
            self._link.forward = self._take_message
        self._attached.set()

    async def send(self, part: dict[str, Any]) -> None:
        """Sends the next part, if the client has not had it; raises as `CallLink.send`."""
        while not self._attached.is_set():
            await self._attached.wait()
        number, self._number = self._number, self._number + 1
        if self._link is not None and number >= self._link.sent:
            await self._link.send(part, len(encode_value(part)))

    def close(self) -> None:
        """Takes no more messages of the client."""
        if self._link is not None:
            self._link.forward, self._link = None, None


async def _message_passed_on(lease: Lease, stream: PartStream, message: Any) -> None:
    """Sends a message of a client to its call at the upstream; raises `RpcError` as the handler here does."""
    try:
        await stream.send(message)
    except InboxUnavailable:
        raise MethodNotFound(CALL_MESSAGE) from None
    except CallTimeout:
        raise CallEnded() from None
    except McpError as error:
        raise failure_of(lease, error) from None


def _passed_on(ctx: Context[Any], upstream: str, era: Era, result: dict[str, Any]) -> dict[str, Any]:
    """Returns what a client without a session is sent of an input-required result.

    Raises:
        MissingCapability: The upstream asks for what the client did not declare.
        RemoteProtocolError: The result is malformed.
    """
    asked: InputRequiredResult = read_result(era, result, InputRequiredResult)
    _check(ctx, asked.input_requests or {})
    # Also without a state of the upstream: the retry's answers are for it alone.
    sealed = {ASKED_BY: upstream, _STATE: asked.request_state}
    state = ctx._scope.seal_answers(ctx.call.invocation, sealed, approval=ctx.call.approval)
    return {**result, "requestState": state}


def _with_answers(ctx: Context[Any], params: dict[str, Any]) -> dict[str, Any]:
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


async def _answered_round(
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
            # Sessions want an id, which the stateless revisions do not have; the end of the visit is never reported.
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
