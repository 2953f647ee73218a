"""The run of a task, which telemetry is told of as a call of its own: the call that created it was answered before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors._actors.detached_call import DetachedCall
from mcp_actors._actors.observed_call import MESSAGE_CHARACTERS, observed_request
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc.telemetry import CallEnding, Observation, ObservedRequest, current_call, guarded

__all__ = ["observed_outcome"]


async def observed_outcome(call: DetachedCall, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Returns `DetachedCall.outcome`, and tells telemetry of the run. Cancelled, it raises `trio.Cancelled`."""
    request, observation = guarded(_observe, call) or (None, None)
    if request is None or observation is None:
        return await call.outcome(function)
    token, began = current_call.set((request, observation)), trio.current_time()
    guarded(observation.enter)
    answer: dict[str, Any] | None = None
    try:
        answer = await call.outcome(function)
    finally:
        guarded(observation.leave)
        current_call.reset(token)
        guarded(observation.ended, _ending(answer, trio.current_time() - began))
    return answer


def _observe(call: DetachedCall) -> tuple[ObservedRequest, Observation | None]:
    telemetry = call.owner.responder.telemetry
    assert telemetry is not None
    request = observed_request(call.invocation, call.owner, is_task=True)
    return request, telemetry.inbound(request)


def _ending(answer: dict[str, Any] | None, seconds: float) -> CallEnding:
    if answer is None:
        return CallEnding("cancelled", seconds)
    error = answer.get("error")
    if error is not None:
        return CallEnding("error", seconds, error["code"], error["message"][:MESSAGE_CHARACTERS])
    result = answer["result"]
    failed = type(result) is dict and result.get("isError") is True
    return CallEnding("tool_error" if failed else "answered", seconds, size=len(encode_value(result)))
