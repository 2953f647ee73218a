"""Functions in worker threads: whatever leaves one ends its call alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, LocalProtocolError, Server
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitResult


def call(id: int, name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", [SystemExit, BaseException, GeneratorExit, ValueError])
async def test_what_a_function_in_a_thread_raises_ends_its_call_alone(
    kind: type[BaseException], era: str
) -> None:
    server = Server("threads")

    @server.tool
    def fails() -> None:
        raise kind("in a thread")

    @server.tool
    def works() -> str:
        return "works"

    async with Client(server, era=era) as client:
        for _ in range(100):
            result = await client.call_tool("fails")
            assert result.is_error
            assert result.content[0].text == f"fails: {kind.__name__}: in a thread"
        assert (await client.call_tool("works")).content[0].text == "works"


@pytest.mark.parametrize("inline", [False, True])
async def test_a_sync_function_tells_the_clients_of_sessions(inline: bool) -> None:
    server = Server("tells")
    ids: list[str] = []
    told: list[bool] = []

    @server.tool(inline=inline)
    def tells(ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.log("info", "session")
        server.log("info", "server")
        told.append(ctx.session.elicitation_complete("mine"))
        told.append(server.elicitation_complete(ids[0]))
        told.append(server.elicitation_complete("unknown"))

    @server.tool
    async def asks(ctx: Context) -> None:
        await ctx.elicit_url("Sign in", lambda id: f"https://example.org/?{ids.append(id)}")  # type: ignore[func-returns-value]

    heard: list[Any] = []
    capabilities = {"elicitation": {"url": {}}}
    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25", capabilities)
        await peer.send(call(1, "asks"))
        question = await peer.receive()
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
        assert (await peer.receive())["id"] == 1
        assert (await peer.request(2, "logging/setLevel", {"level": "info"}))["result"] == {}
        await peer.send(call(3, "tells"))
        while (message := await peer.receive()).get("id") != 3:
            heard.append(message["params"])
    assert not message["result"].get("isError"), message
    assert told == [True, True, False]
    assert heard == [
        {"level": "info", "data": "session"},
        {"level": "info", "data": "server"},
        {"elicitationId": "mine"},
        {"elicitationId": ids[0]},
    ]


@pytest.mark.parametrize("calls", [20, 200])
async def test_sync_functions_register_at_the_same_time(calls: int) -> None:
    server = Server("grows", page_size=7, capabilities=["resources", "prompts"])
    in_loop: list[bool] = []
    publish = server.tools.on_change
    assert publish is not None

    def on_change() -> None:
        in_loop.append(trio.lowlevel.in_trio_run())
        publish()

    @server.tool
    def grow(number: int) -> int:
        def added() -> str:
            return "added"

        server.add_tool(added, name=f"t{number}")
        server.add_resource(f"x://{number}", added)
        server.add_prompt(added, name=f"p{number}")
        server.remove_prompt(f"p{number}")
        server.resource_updated(f"x://{number}")
        assert server.resources.covers(f"x://{number}")
        return len(list(server.tools)) + len(server.tree().sessions)

    server.tools.on_change = on_change
    async with Client(server) as client:
        async with trio.open_nursery() as nursery:
            for number in range(calls):
                nursery.start_soon(client.call_tool, "grow", {"number": number})
        assert {tool.name async for tool in client.tools()} == {"grow"} | {f"t{n}" for n in range(calls)}
        assert len([each async for each in client.resources()]) == calls
        assert [each async for each in client.prompts()] == []
    assert in_loop == [True] * calls


async def test_a_mistake_in_a_worker_thread_is_told_at_its_own_line() -> None:
    server = Server("mistakes")

    @server.tool
    def again() -> None:
        server.add_tool(again)

    async with Client(server) as client:
        result = await client.call_tool("again")
    assert re.search(r"test_threads\.py, line \d+: there is already a tool 'again'", result.text), result.text


async def test_a_sync_function_stops_its_server() -> None:
    server = Server("stops")

    @server.tool
    def stop() -> str:
        server.stop()
        return "stopped"

    async with Client(server) as client:
        with trio.fail_after(10):
            assert (await client.call_tool("stop")).text == "stopped"


@pytest.mark.parametrize("method", ["log", "elicitation_complete", "stop"])
async def test_a_thread_of_the_users_own_uses_the_server(method: str) -> None:
    server = Server("strangers")
    ids: list[str] = []
    raised: list[BaseException] = []
    answers: list[Any] = []
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "log": lambda: ("info", "x"),
        "elicitation_complete": lambda: (ids[0],),
        "stop": lambda: (),
    }

    @server.tool
    async def asks(ctx: Context) -> None:
        await ctx.elicit_url("Sign in", lambda id: f"https://example.org/?{ids.append(id)}")  # type: ignore[func-returns-value]

    def stranger() -> None:
        try:
            answers.append(getattr(server, method)(*arguments[method]()))
        except LocalProtocolError as error:
            raised.append(error)

    def beside() -> None:
        thread = threading.Thread(target=stranger)
        thread.start()
        thread.join(10)

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept")

    async with Client(server, era="legacy", elicitation=accept) as client:
        await client.call_tool("asks")
        await trio.to_thread.run_sync(beside)
    assert raised == []
    assert answers == [True if method == "elicitation_complete" else None]
    assert server.stopping == (method == "stop")


def test_a_server_without_a_loop_is_filled_watched_and_told_to_stop() -> None:
    server = Server("idle")
    server.add_tool(lambda: None, name="t")
    server.remove_tool("t")
    server.log("info", "nobody is there")
    server.stop()
    assert server.tree().sessions == ()
