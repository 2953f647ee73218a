"""Middleware of a client: round requests of the program, and round notifications of its server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, Context, Server
from mcp_actors.client import ClientCall, ClientNotification, HandleNext, SendNext
from mcp_actors.errors import ConnectionLost, LocalProtocolError, RpcError
from mcp_actors.types import CallToolResult, ListToolsResult, TextContent

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


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
    async with Client(make_server(), middleware=[forgets]) as client:
        with pytest.raises(TypeError, match="middleware of the client returned None"):
            await client.call_tool("echo", {"text": "x"})


def test_a_class_is_refused_on_every_face() -> None:
    for kind in (Client, mcp_actors.sync.Client, mcp_actors.asyncio.Client):
        with pytest.raises(TypeError, match="Watching is a class: give an object of it"):
            kind(make_server(), middleware=[Watching])  # type: ignore[list-item]


def make_server() -> Server:
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
    async with Client(make_server(), era=era, middleware=[watching]) as client:
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

    async with Client(make_server(), middleware=[outer, inner]) as client:
        assert (await client.call_tool("echo", {"text": "ab"})).text == "abab"
        assert (await client.call_tool("echo", {"text": "kept"})).text == "from the middleware"
        with pytest.raises(RpcError, match="not this"):
            await client.call_tool("echo", {"text": "refused"})
    assert passed == ["outer", "inner", "outer", "outer"]


async def test_it_sees_what_a_call_raises_and_may_make_it_again() -> None:
    calls = 0
    server = make_server()

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

    async with Client(make_server(), era=era, on_log=on_log, middleware=[watching]) as client:
        await client.call_tool("speak")
        with trio.fail_after(5):
            await heard.wait()
    notes = [each for each in watching.passed if each not in ("tools/call", CallToolResult)]
    assert [note[0:2] for note in notes[::2]] == [("on_log", "notifications/message")] * 2
    assert [note[2]["data"] for note in notes[::2]] == notes[1::2] == ["hello", "again"]


async def test_a_change_passes_with_its_method() -> None:
    server, watching, changed = make_server(), Watching(), trio.Event()

    async def on_change(kind: str, uri: str | None) -> None:
        changed.set()

    async with Client(server, era="legacy", on_change=on_change, middleware=[watching]) as client:
        server.add_tool(lambda: "x", name="new", description="A tool.")
        with trio.fail_after(5):
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

    async with Client(make_server(), on_log=on_log, middleware=[Failing()]) as client:
        await client.call_tool("speak")
        with trio.fail_after(5):
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
    async with Client(make_server(), middleware=[watching]) as client:
        with pytest.raises(LocalProtocolError, match="did not declare"):
            await client.list_prompts()
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.call_tool("echo", {"text": "x"})
    assert watching.passed == ["prompts/list", "tools/call"]


def test_what_is_no_list_of_functions_is_refused() -> None:
    for wrong in (make_server, [1], "text"):
        with pytest.raises(TypeError, match="middleware"):
            Client(make_server(), middleware=wrong)  # type: ignore[arg-type]
