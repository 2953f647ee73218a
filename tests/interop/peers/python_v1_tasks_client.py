"""The official Python client of the first generation, with its experimental tasks, at a server over stdio.

``python_v1_tasks_client.py PROGRAM ARGUMENT…`` prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.experimental.task_handlers import ExperimentalTaskHandlers
from mcp.client.stdio import stdio_client
from mcp.shared.experimental.tasks.in_memory_task_store import InMemoryTaskStore

PERSON = types.ElicitResult(action="accept", content={"name": "Ada"})


class Host:
    """Answers questions with tasks of the client's own."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.store = InMemoryTaskStore()
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append("plain")
        return PERSON

    async def elicit_later(
        self, context: Any, params: Any, task: types.TaskMetadata
    ) -> types.CreateTaskResult:
        self.asked.append("task")
        created = await self.store.create_task(task)

        async def answer() -> None:
            await anyio.sleep(0.3)
            await self.store.store_result(created.taskId, PERSON)
            await self.store.update_task(created.taskId, status="completed")

        self.group.start_soon(answer)
        return types.CreateTaskResult(task=created)

    async def get(self, context: Any, params: types.GetTaskRequestParams) -> types.GetTaskResult:
        task = await self.store.get_task(params.taskId)
        assert task is not None
        return types.GetTaskResult(**task.model_dump())

    async def result(
        self, context: Any, params: types.GetTaskPayloadRequestParams
    ) -> types.GetTaskPayloadResult:
        result = await self.store.get_result(params.taskId)
        assert result is not None
        return types.GetTaskPayloadResult.model_validate(result.model_dump(by_alias=True, exclude_none=True))


async def code_of(call: Any) -> int:
    try:
        await call
    except McpError as error:
        return error.error.code
    raise AssertionError("no error")


async def play(session: ClientSession, host: Host) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    initialized = await session.initialize()
    seen["declared"] = initialized.capabilities.tasks.model_dump(exclude_none=True)
    tools = (await session.list_tools()).tools
    seen["support"] = {each.name: each.execution and each.execution.taskSupport for each in tools}
    tasks = session.experimental

    created = await tasks.call_tool_as_task("work", {"steps": 3}, ttl=30_000)
    id = created.task.taskId
    seen["created"] = [created.task.status, created.task.ttl]
    # A busy machine may look for the first time when all is over.
    looks = [status.status async for status in tasks.poll_task(id)]
    seen["states"] = sorted({created.task.status, *looks})
    result = await tasks.get_task_result(id, types.CallToolResult)
    seen["result"] = [result.content[0].text, result.meta]
    seen["id"] = id
    seen["listed"] = [each.taskId for each in (await tasks.list_tasks()).tasks]

    id = (await tasks.call_tool_as_task("ask")).task.taskId
    result = await tasks.get_task_result(id, types.CallToolResult)
    seen["answered"] = result.content[0].text

    id = (await tasks.call_tool_as_task("forever")).task.taskId
    seen["cancelled"] = (await tasks.cancel_task(id)).status
    seen["twice"] = await code_of(tasks.cancel_task(id))
    seen["unknown"] = await code_of(tasks.get_task("nothing"))

    id = (await tasks.call_tool_as_task("broken")).task.taskId
    result = await tasks.get_task_result(id, types.CallToolResult)
    seen["broken"] = [(await tasks.get_task(id)).status, result.isError]

    seen["not augmented"] = await code_of(session.call_tool("work", {"steps": 1}))
    seen["later"] = (await session.call_tool("later")).content[0].text
    seen["asked"] = host.asked
    return seen


async def main() -> None:
    command, *arguments = sys.argv[1:]
    async with anyio.create_task_group() as group:
        host = Host(group)
        handlers = ExperimentalTaskHandlers(
            get_task=host.get, get_task_result=host.result, augmented_elicitation=host.elicit_later
        )
        async with (
            stdio_client(StdioServerParameters(command=command, args=arguments)) as (read, write),
            ClientSession(
                read, write, elicitation_callback=host.elicit, experimental_task_handlers=handlers
            ) as session,
        ):
            print(json.dumps(await play(session, host)), flush=True)
        group.cancel_scope.cancel()


anyio.run(main)
