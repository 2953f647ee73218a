"""What a server's user builds with: middleware, custom methods, lifespan, context, lists that change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, LocalProtocolError, RpcError, Server
from mcp_actors.testing import raw_client
from mcp_actors.types import CallToolResult, TextContent
from tests.messages import LOG_LEVEL

from .peers import EVERY, MODERN, ask, begin, call, modern

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


# -- middleware ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_middleware_goes_round_every_request_outermost_first(version: str) -> None:
    server = Server("s")
    seen: list[str] = []

    @server.tool
    async def t() -> str:
        """A tool."""
        seen.append("tool")
        return "done"

    @server.middleware
    async def outer(ctx: Context, call_next: Any) -> Any:
        seen.append(f"outer {ctx.method}")
        result = await call_next()
        seen.append("outer out")
        return result

    @server.middleware
    async def inner(ctx: Context, call_next: Any) -> Any:
        seen.append("inner")
        return await call_next()

    async with raw_client(server) as peer:
        await begin(peer, version)
        if version != MODERN:
            await peer.request("p", "ping")
        assert seen == []  # neither the handshake nor pings wait for anybody
        await call(peer, version, 1, "t")
        assert seen == ["outer tools/call", "inner", "tool", "outer out"]
        seen.clear()
        await ask(peer, version, 2, "tools/list")
        assert seen == ["outer tools/list", "inner", "outer out"]


async def test_middleware_may_answer_refuse_and_repair() -> None:
    server = Server("s")

    @server.tool(inline=True)
    def t(what: str) -> str:
        """A tool."""
        if what == "crash":
            raise KeyError("secret")
        return what

    @server.middleware
    async def policy(ctx: Context, call_next: Any) -> Any:
        what = ctx.params.get("arguments", {}).get("what")
        if what == "cached":
            return CallToolResult([TextContent("from the cache")])
        if what == "forbidden":
            raise RpcError(403, "forbidden")
        try:
            return await call_next()
        except KeyError:
            return CallToolResult([TextContent("repaired")], is_error=True)

    async with Client(server) as client:

        async def text(what: str) -> str:
            return str((await client.call_tool("t", {"what": what})).content[0].text)  # type: ignore[union-attr]

        assert await text("x") == "x"
        assert await text("cached") == "from the cache"
        assert await text("crash") == "repaired"
        with pytest.raises(RpcError) as refused:
            await text("forbidden")
        assert refused.value.code == 403


# -- custom methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_methods_of_your_own(version: str) -> None:
    server = Server("s")

    @server.method("acme/add")
    async def add(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.progress(1)
        if "a" not in params:
            raise RpcError(-32602, "a is missing")
        return {"sum": params["a"] + params["b"], "from": ctx.peer.version}

    async with Client(server, era=version) as client:
        result = await client.request("acme/add", {"a": 1, "b": 2})
        assert (result["sum"], result["from"]) == (3, version)
        with pytest.raises(RpcError, match="a is missing"):
            await client.request("acme/add")
        with pytest.raises(RpcError) as unknown:
            await client.request("acme/subtract")
        assert unknown.value.code == -32601


@pytest.mark.parametrize(
    "name", ["tools/call", "initialize", "server/discover", "ping", "subscriptions/listen"]
)
def test_methods_of_the_protocol_are_taken(name: str) -> None:
    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    with pytest.raises(LocalProtocolError):
        Server("s").method(name)(answer)


# -- lifespan and context ------------------------------------------------------------------------------------------


async def test_a_lifespan_is_entered_once_for_each_serving() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[dict[str, int]]:
        events.append(f"enter {server.name}")
        yield {"answer": 42}
        await trio.lowlevel.checkpoint()
        events.append("leave")

    server = Server("s", lifespan=lifespan)

    @server.tool
    async def t(ctx: Context) -> int:
        """The answer."""
        return int(ctx.state["answer"])

    for _ in range(2):
        events.clear()
        async with Client(server) as client:
            for _ in range(2):
                assert (await client.call_tool("t")).structured_content == 42
            assert events == ["enter s"]
        assert events == ["enter s", "leave"]


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_context_variables_of_calls_never_mix(version: str, inline: bool) -> None:
    server = Server("s")
    limiter = trio.Event()

    if inline:

        @server.tool(inline=True)
        def who(name: str) -> str:
            """Says who it was before."""
            before = WHO.get()
            WHO.set(name)
            return f"{before} {WHO.get()}"
    else:

        @server.tool
        async def who(name: str) -> str:
            """Says who it was before."""
            before = WHO.get()
            WHO.set(name)
            await limiter.wait()
            return f"{before} {WHO.get()}"

    async with Client(server, era=version) as client, trio.open_nursery() as nursery:
        said: dict[str, str] = {}

        async def ask_for(name: str) -> None:
            said[name] = (await client.call_tool("who", {"name": name})).content[0].text  # type: ignore[union-attr]

        for name in ("anna", "bert", "carla"):
            nursery.start_soon(ask_for, name)
        await wait_all_tasks_blocked()
        limiter.set()
        await wait_all_tasks_blocked()
        assert said == {name: f"nobody {name}" for name in ("anna", "bert", "carla")}


async def test_each_call_has_its_own_trace_and_metadata() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> dict[str, Any]:
        """What came along."""
        return {
            "trace": ctx.trace,
            "acme": ctx.meta.get("acme/x"),
            "method": ctx.method,
            "id": ctx.request_id,
        }

    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=1",
        "baggage": "k=v",
    }
    for version in EVERY:
        async with Client(server, era=version) as client:
            found = (await client.call_tool("t", meta={**trace, "acme/x": [1]})).content[0].text  # type: ignore[union-attr]
            assert '"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"' in found
            assert '"acme":[1]' in found
            found = (await client.call_tool("t", meta={"traceparent": 5})).content[0].text  # type: ignore[union-attr]
            assert '"trace":{}' in found  # what is no text is no trace, and no reason to refuse


async def test_the_operators_logger_knows_session_and_request() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> None:
        """Logs."""
        ctx.logger.warning("hello", extra=1)

    with structlog.testing.capture_logs() as logs:
        async with raw_client(server) as peer:
            await call(peer, MODERN, "id-7", "t")
    (entry,) = [log for log in logs if log["event"] == "hello"]
    assert (entry["request"], entry["method"], entry["extra"]) == ("id-7", "tools/call", 1)
    assert entry["session"].startswith("s#")


async def test_progress_grows_or_is_not_sent() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> str:
        """Reports."""
        for value in (1, 1, 0, 2.5, float("-inf"), 2, 3):
            await ctx.progress(value)
        return "done"

    for version in EVERY:
        reports: list[float] = []
        async with Client(server, era=version) as client:
            await client.call_tool("t", on_progress=lambda p, seen=reports: seen.append(p.progress))  # type: ignore[misc]
        assert reports == [1, 2.5, 3]


async def test_nothing_is_sent_about_a_call_that_is_over(autojump_clock: MockClock) -> None:
    server = Server("s")
    kept: list[Context] = []

    @server.tool
    async def t(ctx: Context) -> str:
        """Lets its context escape."""
        kept.append(ctx)
        return "done"

    async with raw_client(server) as peer:
        params = {"progressToken": 1, LOG_LEVEL: "debug"}
        await modern(peer, 1, "tools/call", {"name": "t"}, **params)
        await kept[0].progress(1)
        await kept[0].log("error", "late")
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught


# -- lists ---------------------------------------------------------------------------------------------------------


def numbered(count: int, page_size: int) -> Server:
    server = Server("s", page_size=page_size)
    for number in range(count):
        server.add_tool(lambda: None, name=f"t{number}")
        server.add_prompt(lambda: "p", name=f"p{number}")
        server.add_resource(f"x://{number}", lambda: "r", name=f"r{number}")
        server.add_resource(f"y://{number}/{{a}}", lambda a: "r", name=f"y{number}")
    return server


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("count", [10, 25])
async def test_every_entry_of_every_list_once_and_in_order(version: str, count: int) -> None:
    """How pages are cut and what a cursor means is the affair of ``server/test_pagination.py``."""
    async with Client(numbered(count, 10), era=version) as client:
        expected = range(count)
        assert [tool.name async for tool in client.tools()] == [f"t{n}" for n in expected]
        assert [prompt.name async for prompt in client.prompts()] == [f"p{n}" for n in expected]
        assert [resource.uri async for resource in client.resources()] == [f"x://{n}" for n in expected]
        templates = [template.uri_template async for template in client.resource_templates()]
        assert templates == [f"y://{n}/{{a}}" for n in expected]
        first, again = await client.list_tools(), await client.list_tools()
        assert first == again
        assert (first.next_cursor is None) == (count <= 10)


async def test_a_tool_that_is_taken_away_finishes_what_it_began() -> None:
    server = Server("s")
    limiter = trio.Event()

    @server.tool
    async def slow() -> str:
        """Takes a while."""
        await limiter.wait()
        return "done"

    async with Client(server) as client, trio.open_nursery() as nursery:
        results: list[Any] = []

        async def run() -> None:
            results.append(await client.call_tool("slow"))

        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        server.remove_tool("slow")
        limiter.set()
        await wait_all_tasks_blocked()
        assert results[0].content == [TextContent("done")]
        with pytest.raises(RpcError) as gone:
            await client.call_tool("slow")
        assert gone.value.code == -32602
