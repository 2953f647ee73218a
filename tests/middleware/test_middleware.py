"""Middleware of a server beyond plain calls: any method, notifications, cancellation, tasks, and the asyncio loop."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest
import structlog
import trio

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, Context, Server
from mcp_actors.client import ClientCall, ClientNotification, HandleNext, SendNext
from mcp_actors.errors import ConnectionLost, LocalProtocolError, RpcError
from mcp_actors.server import CallNext
from mcp_actors.tasks import Tasks
from mcp_actors.types import CallToolResult, ListToolsResult, Root, TextContent

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


# -- Middleware that fails, or forgets to return: what it costs, and what is said ------------------------


def make_server() -> Server:
    server = Server("s")
    server.add_tool(lambda: "x", name="t", description="A tool.")
    server.add_resource("x://1", lambda: "one", name="one")
    return server


@ERAS
async def test_a_result_that_was_not_returned_is_said_and_costs_its_call(era: str) -> None:
    server = make_server()

    @server.middleware
    async def forgetful(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method == "prompts/list" or ctx.method == "server/discover":
            return await call_next()
        await call_next()
        return None

    server.add_prompt(lambda: "p", name="p", description="A prompt.")
    with structlog.testing.capture_logs() as logs:
        async with Client(server, era=era) as client:
            result = await client.call_tool("t")
            assert result.is_error
            assert "forgetful returned None: write 'return await call_next()'" in result.text
            for call in (client.list_tools, lambda: client.read_resource("x://1")):
                with pytest.raises(RpcError, match="forgetful returned None"):
                    await call()
            assert (await client.list_prompts()).prompts
    assert sum(line["event"] == "handler failed" for line in logs) == 3


async def test_none_is_a_result_where_there_is_nothing_to_say() -> None:
    server = make_server()
    passed: list[str] = []

    @server.middleware
    async def watching(ctx: Context, call_next: CallNext) -> Any:
        result = await call_next()
        passed.append(ctx.method)
        return None if ctx.method in ("acme/do", "logging/setLevel", "resources/subscribe") else result

    @server.method("acme/do")
    async def do(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    async with Client(server, era="legacy") as client:
        assert await client.request("acme/do") == {}
        await client.subscribe_resource("x://1")
        await client.set_log_level("error")
    assert passed == ["acme/do", "resources/subscribe", "logging/setLevel"]


@ERAS
async def test_a_failure_costs_its_call_alone(era: str) -> None:
    server = make_server()

    @server.middleware
    async def failing(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method == "resources/read":
            raise KeyError("broken")
        return await call_next()

    with structlog.testing.capture_logs() as logs:
        async with Client(server, era=era) as client:
            with pytest.raises(RpcError) as refused:
                await client.read_resource("x://1")
            assert refused.value.code == -32603
            assert (await client.call_tool("t")).text == "x"
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["handler failed"]


# -- Middleware of a client: round requests of the program, and round notifications of its server --------


class Watching:
    """Middleware that notes what passes."""

    def __init__(self) -> None:
        self.passed: list[Any] = []

    async def __call__(self, call: ClientCall, call_next: SendNext) -> Any:
        self.passed.append(call.method)
        result = await call_next()
        self.passed.append(type(result))
        return result

    async def notification(self, note: ClientNotification, call_next: HandleNext) -> None:
        self.passed.append((note.callback, note.method, dict(note.params)))
        await call_next()


async def forgets(call: ClientCall, call_next: SendNext) -> Any:
    await call_next()


async def test_what_returns_nothing_is_told_so() -> None:
    async with Client(make_server_client_middleware(), middleware=[forgets]) as client:
        with pytest.raises(TypeError, match="middleware of the client returned None"):
            await client.call_tool("echo", {"text": "x"})


def test_a_class_is_refused_on_every_face() -> None:
    for kind in (Client, mcp_actors.sync.Client, mcp_actors.asyncio.Client):
        with pytest.raises(TypeError, match="Watching is a class: give an object of it"):
            kind(make_server_client_middleware(), middleware=[Watching])  # type: ignore[list-item]


def make_server_client_middleware() -> Server:
    server = Server("s")

    @server.tool
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    @server.tool
    async def speak(ctx: Context) -> str:
        """Logs."""
        await ctx.log("info", "hello")
        await ctx.log("info", "again")
        return "said"

    @server.method("acme/do")
    async def do(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"did": params.get("what")}

    return server


@ERAS
async def test_it_goes_round_every_request_of_the_program(era: str) -> None:
    watching = Watching()
    async with Client(make_server_client_middleware(), era=era, middleware=[watching]) as client:
        await client.ping()
        await client.list_tools()
        await client.call_tool("echo", {"text": "x"})
        assert (await client.request("acme/do", {"what": "it"}))["did"] == "it"
    assert watching.passed == [
        "tools/list", ListToolsResult, "tools/call", CallToolResult, "acme/do", dict,
    ]  # fmt: skip


async def test_the_first_one_is_the_outermost_and_may_change_answer_and_refuse() -> None:
    passed: list[str] = []

    async def outer(call: ClientCall, call_next: SendNext) -> Any:
        passed.append("outer")
        text = call.params["arguments"]["text"]
        if text == "kept":
            return CallToolResult([TextContent("from the middleware")])
        if text == "refused":
            raise RpcError(403, "not this")
        return await call_next(attrs.evolve(call, params={"name": "echo", "arguments": {"text": text * 2}}))

    async def inner(call: ClientCall, call_next: SendNext) -> Any:
        passed.append("inner")
        return await call_next()

    async with Client(make_server_client_middleware(), middleware=[outer, inner]) as client:
        assert (await client.call_tool("echo", {"text": "ab"})).text == "abab"
        assert (await client.call_tool("echo", {"text": "kept"})).text == "from the middleware"
        with pytest.raises(RpcError, match="not this"):
            await client.call_tool("echo", {"text": "refused"})
    assert passed == ["outer", "inner", "outer", "outer"]


async def test_it_sees_what_a_call_raises_and_may_make_it_again() -> None:
    calls = 0
    server = make_server_client_middleware()

    @server.tool
    async def second_time() -> str:
        """Works the second time."""
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RpcError(77, "not yet")
        return "worked"

    async def again(call: ClientCall, call_next: SendNext) -> Any:
        try:
            return await call_next()
        except RpcError:
            return await call_next()

    async with Client(server, middleware=[again]) as client:
        assert (await client.call_tool("second_time")).text == "worked"


@ERAS
async def test_notifications_pass_in_order_and_handlers_are_called_inside(era: str) -> None:
    watching = Watching()
    heard = trio.Event()

    def on_log(level: str, data: Any, logger: str | None) -> None:
        watching.passed.append(data)
        if data == "again":
            heard.set()

    async with Client(
        make_server_client_middleware(), era=era, on_log=on_log, middleware=[watching]
    ) as client:
        await client.call_tool("speak")
        with trio.fail_after(60):
            await heard.wait()
    notes = [each for each in watching.passed if each not in ("tools/call", CallToolResult)]
    assert [note[0:2] for note in notes[::2]] == [("on_log", "notifications/message")] * 2
    assert [note[2]["data"] for note in notes[::2]] == notes[1::2] == ["hello", "again"]


async def test_a_change_passes_with_its_method() -> None:
    server, watching, changed = make_server_client_middleware(), Watching(), trio.Event()

    async def on_change(kind: str, uri: str | None) -> None:
        changed.set()

    async with Client(server, era="legacy", on_change=on_change, middleware=[watching]) as client:
        server.add_tool(lambda: "x", name="new", description="A tool.")
        with trio.fail_after(60):
            await changed.wait()
        assert watching.passed == [("on_change", "notifications/tools/list_changed", {})]
        assert client.era == "legacy"


async def test_a_failure_of_middleware_costs_the_one_notification() -> None:
    heard: list[Any] = []
    done = trio.Event()

    class Failing:
        async def __call__(self, call: ClientCall, call_next: SendNext) -> Any:
            return await call_next()

        async def notification(self, note: ClientNotification, call_next: HandleNext) -> None:
            if note.params["data"] == "hello":
                raise KeyError("broken")
            await call_next()

    def on_log(level: str, data: Any, logger: str | None) -> None:
        heard.append(data)
        done.set()

    async with Client(make_server_client_middleware(), on_log=on_log, middleware=[Failing()]) as client:
        await client.call_tool("speak")
        with trio.fail_after(60):
            await done.wait()
        assert (await client.call_tool("echo", {"text": "x"})).text == "x"
    assert heard == ["again"]


@pytest.mark.parametrize("phase", ["before", "inside", "after"])
async def test_a_cancelled_call_unwinds(phase: str, autojump_clock: Any) -> None:
    server, cleaned = Server("s"), trio.Event()
    at = trio.Event()

    @server.tool
    async def slow() -> str:
        """Waits."""
        if phase == "inside":
            at.set()
            await trio.sleep_forever()
        return "x"

    async def waits(call: ClientCall, call_next: SendNext) -> Any:
        try:
            if phase == "before":
                at.set()
                await trio.sleep_forever()
            result = await call_next()
            if phase == "after":
                at.set()
                await trio.sleep_forever()
            return result
        finally:
            cleaned.set()

    async with Client(server, middleware=[waits]) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await at.wait()
            nursery.cancel_scope.cancel()
        assert cleaned.is_set()
        assert client.tree().pending == ()


async def test_what_a_call_raises_is_raised_through_it() -> None:
    watching = Watching()
    async with Client(make_server_client_middleware(), middleware=[watching]) as client:
        with pytest.raises(LocalProtocolError, match="did not declare"):
            await client.list_prompts()
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.call_tool("echo", {"text": "x"})
    assert watching.passed == ["prompts/list", "tools/call"]


def test_what_is_no_list_of_functions_is_refused() -> None:
    for wrong in (make_server_client_middleware, [1], "text"):
        with pytest.raises(TypeError, match="middleware"):
            Client(make_server_client_middleware(), middleware=wrong)  # type: ignore[arg-type]
