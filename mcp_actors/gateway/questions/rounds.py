"""Input-required results of an upstream without sessions (MCP 2026-07-28, Multi Round-Trip Requests).

A client that is asked by results is sent them on, with the state sealed once more: so it is good for the same request
of the same principal alone, and what an upstream gave to one client cannot be used by another one. A client with a
session is asked by requests, and the call at the upstream is made again with its answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from mcp_actors._eras.era import Era, read_result
from mcp_actors._server.client_requests import missing_capability
from mcp_actors.context import Context
from mcp_actors.errors import MissingCapability, RemoteProtocolError
from mcp_actors.types import ElicitUrlParams, InputRequest, InputRequiredResult

__all__ = ["answered_round", "passed_on", "with_answers"]

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
