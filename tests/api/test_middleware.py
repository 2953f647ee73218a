"""Middleware of a server beyond plain calls: any method, notifications, cancellation, tasks, and the asyncio loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.server import CallNext
from mcp_actors.tasks import Tasks
from mcp_actors.types import ListToolsResult, Root

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


class Seen:
    """Middleware that notes what passes, on the way in and on the way out."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.left = trio.Event()

    async def __call__(self, ctx: Context, call_next: CallNext) -> Any:
        self.passed.append(f"> {ctx.method}")
        try:
            return await call_next()
        finally:
            self.passed.append(f"< {ctx.method}")
            if ctx.method == "tools/call":
                self.left.set()

    async def notification(self, ctx: Context, call_next: CallNext) -> Any:
        self.passed.append(f"note {ctx.method}")
        await call_next()


@ERAS
async def test_a_function_of_your_own_may_return_nothing(era: str) -> None:
    server = Server("s")
    server.middleware(Seen())

    @server.method("acme/do")
    async def do(params: dict[str, Any], ctx: Context) -> None:
        pass

    async with Client(server, era=era) as client:
        assert "answer" not in await client.request("acme/do")


@ERAS
async def test_it_goes_round_lists_reads_and_methods_of_your_own(era: str) -> None:
    server, seen = Server("s"), Seen()
    server.middleware(seen)
    server.add_tool(lambda: "x", name="t", description="A tool.")
    server.add_resource("x://1", lambda: "one", name="one")

    @server.method("acme/do")
    async def do(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    async with Client(server, era=era) as client:
        await client.list_tools()
        await client.read_resource("x://1")
        await client.request("acme/do")
        await client.ping()
    names = [each for each in seen.passed if each != "> server/discover" and each != "< server/discover"]
    expected = ["tools/list", "resources/read", "acme/do"]
    assert names == [f"{way} {name}" for name in expected for way in "><"]


async def test_a_list_may_be_changed_on_its_way_out() -> None:
    server = Server("s")
    server.add_tool(lambda: "x", name="shown", description="A tool.")
    server.add_tool(lambda: "x", name="hidden", description="A tool.")

    @server.middleware
    async def without_hidden(ctx: Context, call_next: CallNext) -> Any:
        result = await call_next()
        if isinstance(result, ListToolsResult):
            return ListToolsResult([tool for tool in result.tools if tool.name != "hidden"])
        return result

    async with Client(server) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["shown"]


async def test_notifications_pass_middleware_that_wants_them() -> None:
    server, seen = Server("s"), Seen()
    arrived = trio.Event()
    server.middleware(seen)

    @server.middleware
    async def of_calls_alone(ctx: Context, call_next: CallNext) -> Any:
        seen.passed.append("never")
        return await call_next()

    @server.notification("acme/event")
    async def event(what: str) -> None:
        seen.passed.append(what)
        arrived.set()

    async with Client(server, era="legacy", roots=[Root("file:///a")]) as client:
        await client.notify("acme/event", {"what": "it"})
        await client.notify("acme/unknown")
        await arrived.wait()
    assert seen.passed == ["note acme/event", "it"]


async def test_middleware_may_drop_a_notification() -> None:
    server = Server("s")
    taken: list[int] = []
    passed = trio.Event()

    class Odd:
        async def __call__(self, ctx: Context, call_next: CallNext) -> Any:
            return await call_next()

        async def notification(self, ctx: Context, call_next: CallNext) -> None:
            if ctx.params["n"] % 2:
                await call_next()
            if ctx.params["n"] == 3:
                passed.set()

    server.middleware(Odd())

    @server.notification("acme/event")
    async def event(n: int) -> None:
        taken.append(n)

    async with Client(server, era="legacy") as client:
        for n in range(4):
            await client.notify("acme/event", {"n": n})
        await passed.wait()
    assert taken == [1, 3]


@ERAS
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
async def test_a_cancelled_call_unwinds_its_middleware(era: str, phase: str, autojump_clock: Any) -> None:
    server, seen = Server("s"), Seen()
    server.middleware(seen)
    waits = trio.Event()

    async def wait_in(where: str) -> None:
        if where == phase:
            waits.set()
            await trio.sleep_forever()

    @server.middleware
    async def slow(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method != "tools/call":
            return await call_next()
        await wait_in("before")
        result = await call_next()
        await wait_in("after")
        return result

    @server.tool
    async def t() -> str:
        """A tool."""
        await wait_in("inside")
        return "x"

    async with Client(server, era=era) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "t")
            await waits.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await seen.left.wait()


async def test_a_task_passes_the_middleware_once() -> None:
    server, seen = Server("s", extensions=[Tasks()]), Seen()
    server.middleware(seen)

    @server.tool(task="required")
    async def t() -> str:
        """A tool."""
        return "x"

    async with Client(server, era="modern") as client:
        assert (await client.call_tool("t")).text == "x"
    assert [each for each in seen.passed if "tools/call" in each] == ["> tools/call", "< tools/call"]


async def test_middleware_that_is_added_meanwhile_is_for_later_calls() -> None:
    server, seen = Server("s"), Seen()
    inside, go_on = trio.Event(), trio.Event()

    @server.middleware
    async def slow(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method == "tools/call":
            inside.set()
            await go_on.wait()
        return await call_next()

    server.add_tool(lambda: "x", name="t", description="A tool.")
    async with Client(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "t")
        await inside.wait()
        server.middleware(seen)
        go_on.set()
        await client.list_tools()
    assert [each for each in seen.passed if "discover" not in each] == ["> tools/list", "< tools/list"]


async def test_middleware_in_asyncio_goes_round_a_function_on_trio() -> None:
    server = Server("s")

    @server.middleware(loop="asyncio")
    async def outer(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method != "tools/call":
            return await call_next()
        await asyncio.sleep(0)
        result = await call_next()
        return {
            "content": [{"type": "text", "text": f"{asyncio.get_running_loop() is not None} {result.text}"}]
        }

    @server.tool
    async def t(fails: bool = False) -> str:
        """A tool."""
        await trio.lowlevel.checkpoint()
        if fails:
            raise KeyError("it failed")
        return "x"

    async with Client(server) as client:
        assert (await client.call_tool("t")).text == "True x"
        failed = await client.call_tool("t", {"fails": True})
        assert failed.is_error
        assert "it failed" in failed.text


def test_an_object_with_notification_runs_in_the_engine_only() -> None:
    server = Server("s")
    with pytest.raises(TypeError, match="an object with notification"):
        server.middleware(loop="asyncio")(Seen())
    with pytest.raises(TypeError, match='write "asyncio"'):
        server.middleware(loop="uvloop")(Seen())  # type: ignore[arg-type]
