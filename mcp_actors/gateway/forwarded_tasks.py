"""Calls that become tasks, at the gateway and at an upstream, each in its own dialect.

The gateway keeps the tasks of its clients itself (`mcp_actors.tasks`), and the function of such a task makes the call
at the upstream. So every dialect goes with every upstream:

=====================================  =============================================================================
the upstream                           its calls
=====================================  =============================================================================
lists a tool with ``taskSupport``      may become tasks of the gateway, as a client of either dialect wants it; the
(MCP 2025-11-25)                       call at the upstream is a plain one, and a task where the tool runs in no
                                       other way
answers with a task (SEP-2663)         becomes a task of the gateway for a client that has the extension; for a client
                                       with a session the gateway waits until it has ended
=====================================  =============================================================================

An upstream without sessions learns that its caller takes tasks where the caller does, and where the upstream insists on
it. The task of the gateway asks what the task of the upstream asks, and passes its messages on to that, or to the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._eras.era import Era, read_result
from mcp_actors._eras.modern import CAPABILITIES
from mcp_actors.errors import LocalProtocolError, McpError, MethodNotFound, MissingCapability, RpcError
from mcp_actors.gateway.connections import UpstreamConnection
from mcp_actors.gateway.results import failure_for_client
from mcp_actors.gateway.upstream import Lease
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.tasks import TASKS, Tasks
from mcp_actors.types import CallToolResult, InputRequiredResult

__all__ = ["made_with_tasks", "messages_passed_on", "run_as_task", "takes_task"]

_METHOD = "tools/call"
Outcome = dict[str, Any]


def takes_task(ctx: Context[Any]) -> bool:
    """Whether a caller without a session may be answered with a task."""
    return ctx.era.declares_in_requests and not ctx.call.was_answered and TASKS in ctx.extensions


async def run_as_task(ctx: Context[Any], function: Callable[[Context[Any]], Awaitable[Any]]) -> Outcome:
    """Makes a task of the gateway of all that is done for a call, and returns the answer to it.

    For what goes on with the result of an upstream that may answer with a task of its own: that is waited for then.

    Args:
        ctx: The call of a caller that `takes_task`.
        function: Returns the result, with the context that it is given.
    """
    answer: Outcome = await _tasks_of(ctx).go_on(ctx, function)
    return answer


async def made_with_tasks(
    lease: Lease,
    params: dict[str, Any],
    options: CallOptions,
    send: Callable[[dict[str, Any], CallOptions], Awaitable[Outcome]],
    finish: Callable[[Context[Any], Outcome], Any],
) -> tuple[Outcome, bool]:
    """Calls a tool of a server that has tasks.

    Args:
        lease: The caller's call, and the connection.
        params: The params for the server.
        options: How the request is made.
        send: Makes one request for the caller, with params and options.
        finish: Makes the caller's result from that of the server.

    Returns:
        The result of the server; or with true the answer to the caller, whose call has become a task of the gateway.

    Raises:
        McpError: What a request of a client raises.
    """
    ctx, connection = lease.ctx, lease.connection
    began = trio.current_time()
    if not lease.era.declares_in_requests:
        if ctx.era.declares_in_requests:
            # Callers without sessions have no such param (SEP-2663), but this server would take it as one.
            params.pop("task", None)
        return await _made_in_session(lease, params, options, send, began), False
    takes = takes_task(ctx)
    try:
        result = await send(params, _with_tasks(options) if takes else options)
    except MissingCapability as error:
        if takes or not _is_about_tasks(error) or (ctx.era.asks_by_retry and not ctx.call.was_answered):
            raise
        result = await send(params, _with_tasks(options))
    if result.get("resultType") != "task":
        return result, False
    if not takes:
        return await _waited(ctx, connection, options, began, result), False

    async def go_on(later: Context[Any]) -> Any:
        # A task as a whole is bounded by its own time to live.
        longer = attrs.evolve(options, cap=float("inf"), on_progress=None)
        try:
            outcome = await _waited(later, connection, longer, began, result)
        except McpError as error:
            raise failure_for_client(lease.upstream.settings.name, error) from error
        return finish(later, outcome)

    return await _tasks_of(ctx).go_on(ctx, go_on), True


async def _made_in_session(
    lease: Lease,
    params: dict[str, Any],
    options: CallOptions,
    send: Callable[[dict[str, Any], CallOptions], Awaitable[Outcome]],
    began: float,
) -> Outcome:
    """Calls a tool plainly, and as a task if it runs in no other way, MCP 2025-11-25, Tasks, Tool-Level Negotiation."""
    client, name = lease.connection.client, params["name"]
    if lease.ctx.inbox.is_open and name not in client._task_support:
        # An attempt that is refused would take the messages that come meanwhile.
        await client._tool_tasks.turns_out_required(name, options)
    if client._task_support.get(name) != "required":
        try:
            result = await send(params, options)
        except MethodNotFound:
            if not await client._tool_tasks.turns_out_required(name, options):
                raise
        else:
            # The official servers refuse a plain call with an error of the tool.
            if not result.get("isError") or not await client._tool_tasks.turns_out_required(name, options):
                return result
    handle = await client._tool_tasks.begin_as_task(name, params, options)
    if handle.id is None:
        plain: Outcome = lease.era.unstructure(await handle.result())
        return plain
    async with messages_passed_on(lease.ctx, lease.connection, handle.send):
        return await handle.wait_or_cancel(options, began)


async def _waited(
    ctx: Context[Any], connection: UpstreamConnection, options: CallOptions, began: float, created: Outcome
) -> Outcome:
    """Waits for a task of a server without sessions; cancelled, it cancels the task."""
    tasks = connection.client._tasks
    era: Era = tasks.era
    look = tasks.dialect.created(era, created)

    def read(raw: dict[str, Any]) -> CallToolResult:
        result: CallToolResult = read_result(era, raw, CallToolResult)
        return result

    async def answer(questions: Mapping[str, Any]) -> dict[str, Any]:
        plain = {"resultType": "input_required", "inputRequests": dict(questions)}
        asked: InputRequiredResult = read_result(era, plain, InputRequiredResult)
        answers = await ctx.ask(asked.input_requests or {})
        return {key: era.unstructure(each) for key, each in answers.items()}

    handle = TaskHandle(tasks, look.status.id, read, first=look)
    async with messages_passed_on(ctx, connection, handle.send):
        return await handle.wait_or_cancel(options, began, answer)


@asynccontextmanager
async def messages_passed_on(
    ctx: Context[Any], connection: UpstreamConnection, send: Callable[[Any], Awaitable[None]]
) -> AsyncIterator[None]:
    """Passes messages of the caller on, one after the other, while the block runs; what does not arrive is logged.

    Where the caller's call became a task it has its answer already: it learns of no failure.
    """
    inbox = ctx.inbox
    if not inbox.is_open:
        yield
        return
    scope, ended = trio.CancelScope(), trio.Event()

    async def pass_on() -> None:
        try:
            with scope:
                async for message in inbox:
                    try:
                        await send(message)
                    except McpError as error:
                        log.warning("a message to a call did not reach the upstream", error=str(error))
        finally:
            ended.set()

    connection.client._subscriptions.run_owned(pass_on)
    try:
        yield
    finally:
        scope.cancel(reason="the call has ended")
        with trio.CancelScope(shield=True):
            # It ends at once: it sends a cancellation, and waits for nothing.
            await ended.wait()


def _with_tasks(options: CallOptions) -> CallOptions:
    envelope = dict(options.envelope or {})
    declared = envelope.get(CAPABILITIES) or {}
    extensions = {**declared.get("extensions", {}), TASKS: {}}
    envelope[CAPABILITIES] = {**declared, "extensions": extensions}
    return attrs.evolve(options, envelope=envelope)


def _is_about_tasks(error: RpcError) -> bool:
    required = error.data.get("requiredCapabilities") if isinstance(error.data, dict) else None
    extensions = required.get("extensions") if isinstance(required, dict) else None
    return isinstance(extensions, dict) and TASKS in extensions


def _tasks_of(ctx: Context[Any]) -> Tasks:
    offered = ctx.server._features.extensions.get(TASKS)
    if not isinstance(offered, Tasks):
        raise LocalProtocolError("the gateway has no tasks")
    return offered
