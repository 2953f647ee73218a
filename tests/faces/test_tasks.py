"""Tasks that clients of other worlds start, with functions of both loops that ask while they run as tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import trio

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Context, Server
from mcp_actors.errors import TaskCancelled
from mcp_actors.tasks import Tasks as TaskExtension
from mcp_actors.types import ElicitResult

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
# Where a function with `loop="asyncio"` runs for a client of each world that has the server in its process.
LOOPS = {"asyncio": "MainThread", "sync": "mcp-actors-asyncio"}
PATIENCE = 20  # seconds
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


class Tasks:
    """A server whose tools become tasks."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.server = server = Server("tasks", extensions=[TaskExtension(poll_interval=0.02)])

        @server.tool(task="required")
        async def asks(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", NAME)
            return f"Trio {(answer.content or {})['name']}"

        @server.tool(task="required", loop="asyncio")
        async def asks_from_asyncio(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", NAME)
            await asyncio.sleep(0)
            return f"{threading.current_thread().name} {(answer.content or {})['name']}"

        @server.tool(task="required")
        async def waits(ctx: Context) -> None:
            await ctx.progress(1, message="on it")
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.set()


@ERAS
def test_a_task_of_the_asyncio_client_asks_is_cancelled_and_outlives_its_caller(era: str) -> None:
    async def main(tasks: Tasks) -> None:
        loop = asyncio.get_running_loop()

        async def person(question: Any) -> ElicitResult:
            assert asyncio.get_running_loop() is loop
            return ElicitResult("accept", {"name": "Ann"})

        options: dict[str, Any] = {"era": era, "elicitation": person}
        async with mcp_actors.asyncio.Client(tasks.server, **options) as client:
            handle = await client.start_tool("asks")
            assert handle.id is not None
            assert (await handle.result()).text == "Trio Ann"
            assert [each.status async for each in client.task(handle.id).updates()] == ["completed"]
            assert (await client.call_tool("asks_from_asyncio")).text == f"{LOOPS['asyncio']} Ann"

            handle = await client.start_tool("waits")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await handle.result()
            assert not tasks.cancelled.is_set()
            await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result()
            assert await asyncio.to_thread(tasks.cancelled.wait, PATIENCE)

    asyncio.run(asyncio.wait_for(main(Tasks()), PATIENCE))


@ERAS
def test_a_task_of_the_client_without_a_loop_asks_and_is_cancelled(era: str) -> None:
    def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ann"})

    tasks = Tasks()
    with mcp_actors.sync.Client(tasks.server, era=era, elicitation=person) as client:
        handle = client.start_tool("asks")
        assert handle.id is not None
        assert handle.result().text == "Trio Ann"
        assert [each.status for each in client.task(handle.id).updates()] == ["completed"]
        assert client.call_tool("asks_from_asyncio").text == f"{LOOPS['sync']} Ann"

        handle = client.start_tool("waits")
        handle.cancel()
        with pytest.raises(TaskCancelled):
            handle.result()
        assert tasks.cancelled.wait(PATIENCE)
