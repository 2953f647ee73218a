"""The client's typed methods in every revision, and one typed exception for each way to fail."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.errors import (
    CallTimeout,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
    TransportNotFound,
    UnsupportedVersion,
)
from mcp_actors.testing import connected_pair
from mcp_actors.types import (
    Completion,
    Implementation,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from .peers import EVERY, MODERN, fail, notify, reply, scripted


def make_server() -> Server:
    server = Server("full", version="9", instructions="be kind")

    @server.tool
    async def count(to: int, ctx: Context) -> int:
        """Counts."""
        for number in range(to):
            await ctx.progress(number + 1, to, f"at {number + 1}")
        return to

    @server.resource("x://{name}")
    async def document(name: str) -> str:
        """A document."""
        return f"text of {name}"

    @server.prompt
    async def greet(name: str, tone: str = "warm") -> str:
        """Greets."""
        return f"{tone} {name}"

    @server.completion(prompt="greet", argument="tone")
    async def tones(value: str, settled: dict[str, str]) -> list[str]:
        return [f"{value}{settled.get('name', '')}"]

    @server.completion(resource="x://{name}", argument="name")
    async def names(value: str) -> list[str]:
        return [f"n{number}" for number in range(150) if f"n{number}".startswith(value)]

    return server


@pytest.mark.parametrize("version", EVERY)
async def test_every_typed_method(version: str) -> None:
    async with connected_pair(make_server(), era=version, info=Implementation("me", "1")) as client:
        assert client.version == version
        assert client.era == ("modern" if version == MODERN else "legacy")
        assert (client.server_info.name, client.server_info.version) == ("full", "9")
        assert client.instructions == "be kind"
        assert client.server_capabilities.tools is not None

        assert [tool.name for tool in (await client.list_tools()).tools] == ["count"]
        assert (await client.call_tool("count", {"to": 2})).content == [TextContent("2")]
        assert [template.uri_template async for template in client.resource_templates()] == ["x://{name}"]
        assert (await client.list_resources()).resources == []
        read = await client.read_resource("x://a%20b")
        assert read.contents == [TextResourceContents("x://a%20b", "text of a b", "text/plain")]
        (prompt,) = [prompt async for prompt in client.prompts()]
        assert [(argument.name, argument.required) for argument in prompt.arguments or ()] == [
            ("name", True),
            ("tone", False),
        ]
        assert (await client.get_prompt("greet", {"name": "Ada"})).messages[0].content == TextContent(
            "warm Ada"
        )

        completion = await client.complete(PromptReference("greet"), "tone", "c", {"name": "Ada"})
        assert completion.values == ["cAda"]
        completion = await client.complete(ResourceTemplateReference("x://{name}"), "name", "n")
        assert (len(completion.values), completion.total, completion.has_more) == (100, 150, True)
        assert isinstance(completion, Completion)
        await client.ping()


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_all_progress_in_order_and_before_the_result(version: str, flavour: str) -> None:
    seen: list[Any] = []

    async def later(report: Any) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((report.progress, report.total, report.message))

    handler: Any = later if flavour == "async" else lambda p: seen.append((p.progress, p.total, p.message))
    async with Client(make_server(), era=version) as client:
        await client.call_tool("count", {"to": 50}, on_progress=handler)
        seen.append("result")
    text = version >= "2025-03-26"
    assert seen == [(n + 1, 50, f"at {n + 1}" if text else None) for n in range(50)] + ["result"]


async def test_what_the_vocabulary_does_not_know_is_kept() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool("t"))

        nursery.start_soon(call)
        content = [{"type": "text", "text": "x", "acme": 1}]
        await reply(peer, await peer.receive(), {"content": content, "acme": [2], "_meta": {"acme/x": 3}})
        await wait_all_tasks_blocked()
        (result,) = results
        assert result.extra == {"acme": [2]}
        assert result.content[0].extra == {"acme": 1}
        assert result.meta["acme/x"] == 3


async def test_arguments_go_as_they_are() -> None:
    """Nulls, zeros and empty things are arguments like any other; no arguments are none."""
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        for arguments in (None, {}, {"a": None, "b": 0, "c": "", "d": []}):
            nursery.start_soon(client.call_tool, "t", arguments)
            params = (request := await peer.receive())["params"]
            assert params.get("arguments") == arguments
            assert ("arguments" in params) == (arguments is not None)
            await reply(peer, request, {"content": []})


@pytest.mark.parametrize(
    ("code", "data", "raised"),
    [
        (-32601, None, MethodNotFound),
        (-32603, {"a": 1}, RpcError),
        (-32002, {"uri": "x://a"}, ResourceNotFound),
        (-32021, {"requiredCapabilities": {"roots": {}}}, MissingCapability),
        (-32022, {"supported": ["x"], "requested": "y"}, UnsupportedVersion),
        (429, None, Overloaded),
        (-1, "rejected", RpcError),
    ],
)
async def test_each_error_has_its_type(code: int, data: Any, raised: type[RpcError]) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        errors: list[RpcError] = []

        async def call() -> None:
            with pytest.raises(RpcError) as refused:
                await client.call_tool("t")
            errors.append(refused.value)

        nursery.start_soon(call)
        await fail(peer, await peer.receive(), code, data, "why")
        await wait_all_tasks_blocked()
        (error,) = errors
        assert type(error) is raised
        assert (error.code, error.message, error.data) == (code, "why", data)


@pytest.mark.parametrize(
    "result",
    [5, None, [], "x", {}, {"content": "x"}, {"content": [{"type": "dance"}]}, {"content": [], "isError": 1}],
)
async def test_a_malformed_result_is_the_servers_fault(result: Any) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RemoteProtocolError):
                await client.call_tool("t")
            nursery.cancel_scope.cancel()

        nursery.start_soon(call)
        await reply(peer, await peer.receive(), result)
        await trio.sleep_forever()
    assert nursery.cancel_scope.cancelled_caught


async def test_progress_and_logs_of_strangers_do_not_disturb() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        reports: list[Any] = []

        async def call() -> None:
            await client.call_tool("t", on_progress=reports.append)

        nursery.start_soon(call)
        request = await peer.receive()
        token = request["params"]["_meta"]["progressToken"]
        for odd in (
            {"progressToken": str(token), "progress": 1},
            {"progressToken": 10**6, "progress": 1},
            {"progressToken": True, "progress": 1},
            {"progressToken": token},
            {"progressToken": token, "progress": "1"},
            {"progressToken": [token], "progress": 1},
        ):
            await notify(peer, "notifications/progress", **odd)
        await notify(peer, "notifications/progress", progressToken=token, progress=0.5, total="x", message=5)
        await reply(peer, request, {"content": []})
        await wait_all_tasks_blocked()
        assert [(report.progress, report.total, report.message) for report in reports] == [(0.5, None, None)]


async def test_the_ways_to_fail_without_a_peer(autojump_clock: MockClock) -> None:
    for url in ("no-scheme", "acme+unknown:x"):
        with pytest.raises(TransportNotFound):
            async with Client(url):
                raise AssertionError("never reached")
    client = Client(make_server())
    with pytest.raises(McpError):
        await client.list_tools()
    with pytest.raises(LocalProtocolError):
        _ = client.version
    async with client:
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.list_tools()
    with pytest.raises(LocalProtocolError):
        async with client:
            raise AssertionError("never reached")
    with pytest.raises(ValueError, match="era"):
        Client(make_server(), era="2099-01-01")


async def test_both_clocks_name_themselves(autojump_clock: MockClock) -> None:
    async with scripted(MODERN, timeout=3, cap=7) as (client, peer):
        with pytest.raises(CallTimeout) as idle:
            await client.call_tool("t")
        assert (idle.value.clock, idle.value.seconds, idle.value.method) == ("idle", 3, "tools/call")
        request = await peer.receive()
        assert (await peer.receive())["params"]["requestId"] == request["id"]
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(CallTimeout) as cap:
                    await client.call_tool("t", on_progress=lambda report: None)
                assert (cap.value.clock, cap.value.seconds) == ("cap", 7)
                nursery.cancel_scope.cancel()

            nursery.start_soon(call)
            token = (await peer.receive())["params"]["_meta"]["progressToken"]
            for number in range(100):
                await notify(peer, "notifications/progress", progressToken=token, progress=number)
                await trio.sleep(1)
        assert nursery.cancel_scope.cancelled_caught


async def test_no_exception_group_leaves_the_client() -> None:
    class Mine(Exception):
        pass

    async def use() -> None:
        async with Client(make_server()) as client:
            await client.list_tools()
            raise Mine

    with pytest.raises(Mine):
        await use()
