"""Asks a session's client with a task: the client answers later, and is looked at meanwhile (MCP 2025-11-25, Tasks)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Era
from mcp_actors.abc import TaskState
from mcp_actors.errors import INTERNAL_ERROR, CallTimeout, McpError, RemoteProtocolError, RpcError
from mcp_actors.logging import log

__all__ = ["answer_later", "hosts_tasks"]

# Seconds between two looks at a task, whatever its client says, and where it says nothing: people are slow.
SHORTEST_PAUSE, USUAL_PAUSE, LONGEST_PAUSE = 0.1, 1.0, 60.0
# Seconds for telling a client that nobody waits for its answer any more.
CANCEL_BOUND = 2.0
# Characters of the longest id that is taken from a client.
LONGEST_ID = 256


def hosts_tasks(declared: Mapping[str, Any], era: Era, method: str) -> bool:
    """Whether a client answers a method later, as a task of its own. MCP 2025-11-25, Tasks, Capabilities."""
    place: Any = declared
    for name in ("tasks", "requests", *method.split("/")):
        place = place.get(name) if isinstance(place, dict) else None
    return isinstance(place, dict) and "tasks/get" in era.client_methods


async def answer_later(
    call: InboundCall, method: str, params: Mapping[str, Any], ttl: float, seconds: float
) -> dict[str, Any]:
    """Asks, waits until the client's task has ended, and returns the answer. Cancelled, it cancels the task.

    Args:
        call: The call that asks.
        method: The question's method.
        params: Its params.
        ttl: Seconds that the client has.
        seconds: Seconds that it has for each message about the task.

    Raises:
        RpcError: The client answered with an error, or the task was cancelled there.
        RemoteProtocolError: What the client says of the task is malformed.
        CallTimeout: The time is up, or the client does not answer any more.
        ConnectionLost, SessionExpired: The client has gone.
    """
    asked = {**params, "task": {"ttl": round(ttl * 1000)}}
    created = await call.ask(method, asked, idle=seconds, cap=seconds)
    task = created.get("task")
    if not isinstance(task, dict):
        # Who does not know tasks passes over the wish, and answers at once.
        return created
    id = task.get("taskId")
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise RemoteProtocolError("the client's task has no id")
    ended = False
    try:
        with trio.move_on_after(ttl):
            # What is asked by the task itself comes while its result is waited for: Input Required Status.
            while (status := _status(task)) == "working":
                await trio.sleep(_pause(task.get("pollInterval")))
                task = await call.ask("tasks/get", {"taskId": id}, idle=seconds, cap=seconds)
            ended = status != "input_required"
            if status == "cancelled":
                raise RpcError(INTERNAL_ERROR, f"the client has cancelled its task for {method}")
            answer = await call.ask("tasks/result", {"taskId": id}, idle=math.inf, cap=math.inf)
            ended = True
            return answer
        raise CallTimeout(method, "cap", ttl)
    finally:
        if not ended:
            with trio.move_on_after(CANCEL_BOUND, shield=True):
                await _cancel(call, id)


def _status(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    if not isinstance(status, str) or status not in get_args(TaskState):
        raise RemoteProtocolError("the client's task is in no state that tasks have")
    return status


async def _cancel(call: InboundCall, id: str) -> None:
    # On the stream of a call that is cancelled nothing more is sent.
    stream = call if call.state == "running" else None
    options = CallOptions(idle=CANCEL_BOUND, cap=CANCEL_BOUND)
    try:
        await call.owner.request("tasks/cancel", {"taskId": id}, options, call=stream)
    except McpError as error:
        log.debug("a client's task could not be cancelled", task=id[:6], error=str(error))


def _pause(told: Any) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float) or not 0 < told < math.inf:
        return USUAL_PAUSE
    return max(min(told, LONGEST_PAUSE * 1000) / 1000, SHORTEST_PAUSE)
