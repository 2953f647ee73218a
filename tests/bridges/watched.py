"""A server that notes what happens to its calls, and a call back into the program, for programs without Trio."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import trio

from mcp_actors import Context, Server
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.faces import in_engine


class Watched:
    """The server and the events of its calls, which a test waits for in any thread."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.server = server = Server("watched")

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def report(ctx: Context, times: int) -> str:
            for number in range(times):
                await ctx.progress(number, times)
            return "reported"

        @server.tool
        async def wait(ctx: Context) -> None:
            self.events.put("began")
            await ctx.progress(1)
            try:
                await trio.sleep_forever()
            finally:
                self.events.put("cancelled")

        @server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
            return f"{answer.action} {(answer.content or {}).get('name')}"

        @server.tool
        async def sample(ctx: Context) -> str:
            message: Any = await ctx.sample("Say it", max_tokens=5)
            return str(message.content.text)

        @server.tool
        async def roots(ctx: Context) -> str:
            return " ".join(root.uri for root in await ctx.list_roots())

        @server.tool
        async def logs(ctx: Context, times: int) -> None:
            for number in range(times):
                await ctx.log("info", number)

        @server.tool
        async def grow(name: str) -> None:
            server.add_tool(lambda: 1, name=name)

        @server.prompt
        def greet(name: str) -> str:
            return f"Hello {name}"

        @server.resource("note:/one")
        def note() -> str:
            return "one"

    def __repr__(self) -> str:
        return "<Watched>"

    def next_event(self) -> str:
        return self.events.get(timeout=10)


def held() -> list[str]:
    """The names of the tasks that programs have left in the engine."""
    engine = engine_thread()

    def names() -> list[str]:
        tasks = [task.name for task in engine.nursery.child_tasks]
        return sorted(name for name in tasks if name.startswith("held"))

    return in_engine(engine, names)


async def called_back(function: Callable[..., Any], *args: Any) -> Any:
    """A function of the engine that calls one of the program."""
    bridge = calling_bridge.get()
    assert bridge is not None
    return await bridge.run(function, *args)
