"""Asks the client: in a session by requests while the call waits, else by a result, after which it calls again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._server.asked_tasks import answer_later, hosts_tasks
from mcp_actors._server.client_requests import input_required, read_answer, read_recorded
from mcp_actors._server.scope import ServerScope

__all__ = ["ask_by_requests", "ask_by_retry"]


async def ask_by_requests(
    call: InboundCall, scope: ServerScope, questions: Mapping[str, t.InputRequest], ttl: float | None
) -> dict[str, Any]:
    """Sends one question after the other, each for at most `Limits.ask_timeout` seconds, and returns the answers.

    With a ``ttl`` a client that has tasks may answer in so many seconds, see `mcp_actors._server.asked_tasks`.

    Cancelled, it sends a cancellation of the question that is not answered yet. Raises what `Context.ask` raises.
    """
    answers: dict[str, Any] = {}
    for key, each in questions.items():
        if isinstance(each, t.ElicitUrlParams) and each.elicitation_id is not None:
            answers[key] = await _send_to_url(call, scope, each, each.elicitation_id, ttl)
        else:
            answers[key] = await _answer(call, scope, each, ttl)
    return answers


async def _answer(
    call: InboundCall, scope: ServerScope, question: t.InputRequest, ttl: float | None
) -> t.InputResponse:
    seconds, era, method = scope.limits.ask_timeout, call.invocation.era, question.method
    params = era.unstructure(question)
    if ttl is not None and hosts_tasks(call.invocation.peer.raw_capabilities, era, method):
        raw = await answer_later(call, method, params, ttl, seconds)
    else:
        raw = await call.ask(method, params, idle=seconds, cap=seconds)
    return read_answer(question, raw, era)


async def _send_to_url(
    call: InboundCall, scope: ServerScope, question: t.ElicitUrlParams, id: str, ttl: float | None
) -> t.InputResponse:
    """Asks for a visit to a URL. Once that is agreed to, the client can be told of its end by the id."""
    session = scope.session_of(call.owner)
    if session is not None:
        # Before the answer, since the person may be done before the client says that they have begun.
        scope.elicitations.begin(id, session)
    agreed = False
    try:
        answer = await _answer(call, scope, question, ttl)
        agreed = isinstance(answer, t.ElicitResult) and answer.action == "accept"
        return answer
    finally:
        if not agreed:
            scope.elicitations.forget(id)


async def ask_by_retry(
    call: InboundCall, scope: ServerScope, kept: dict[str, Any], questions: Mapping[str, t.InputRequest]
) -> dict[str, Any]:
    """Returns the answers that the request carries; if one is missing, ends the call with the questions.

    ``kept`` are the answers that the function has used so far, and what the next round carries. Raises what
    `Context.ask` raises.
    """
    era, recorded = call.invocation.era, scope.recorded_answers(call.invocation)
    answers = {key: read_recorded(each, key, recorded, era) for key, each in questions.items()}
    missing = {key: each for key, each in questions.items() if answers[key] is None}
    if missing:
        kept.update((key, recorded[key]) for key in questions if key in recorded)
        await call.replace(input_required(missing, scope.seal_answers(call.invocation, kept), era))
    await trio.lowlevel.checkpoint()
    kept.update((key, recorded[key]) for key in questions)
    return answers
