"""What a client declares of itself, what it is asked all the same, and what it does not send."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, ConnectionLost, MethodNotFound, RemoteProtocolError
from mcp_actors.errors import METHOD_NOT_FOUND, LocalProtocolError
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import (
    ClientCapabilities,
    CreateMessageResult,
    ElicitationCapability,
    ElicitResult,
    Root,
    SamplingCapability,
    TextContent,
)
from tests.messages import TASKS, error, initialize_result
from tests.scripted_peers import MODERN, greet, notify, reply, scripted, tell

LEGACY = "2025-11-25"
FORM = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
MESSAGES = [{"role": "user", "content": {"type": "text", "text": "hi"}}]


async def sample(params: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent("hello"), model="m")


async def elicit(params: Any) -> ElicitResult:
    return ElicitResult("accept", {"age": 3})


async def declared(version: str = LEGACY, **options: Any) -> Any:
    """The capabilities that a server of ``version`` is told."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        found: list[Any] = []

        async def play() -> None:
            found.append(await greet(await server.accept(), version))

        nursery.start_soon(play)
        async with Client(server.transport, era=version, **options):
            pass
    params = found[0]["params"]
    return (
        params["capabilities"]
        if version != MODERN
        else params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    )


async def asked(
    client_options: dict[str, Any], method: str, params: dict[str, Any], version: str = LEGACY
) -> Any:
    async with scripted(version, **client_options) as (_, peer):
        await peer.send({"jsonrpc": "2.0", "id": "q", "method": method, "params": params})
        return await peer.receive()


# -- capabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_what_is_given_replaces_what_follows_from_the_handlers(version: str) -> None:
    capabilities = ClientCapabilities(
        elicitation=ElicitationCapability(url={}),
        sampling=SamplingCapability(context={}),
        experimental={"x": {"y": 1}},
        extensions={"com.example/ui": {"mimeTypes": ["text/html"]}},
    )
    told = await declared(
        version,
        capabilities=capabilities,
        elicitation=elicit,
        sampling=sample,
        sampling_tools=True,
        roots=["file:///a"],
    )
    assert told["elicitation"] == {"url": {}}
    assert told["sampling"] == {"context": {}, "tools": {}}
    assert told["experimental"] == {"x": {"y": 1}}
    tasks = {TASKS: {}} if version == MODERN else {}
    assert told["extensions"] == {"com.example/ui": {"mimeTypes": ["text/html"]}, **tasks}
    assert "roots" in told


async def test_without_it_everything_is_declared_as_before() -> None:
    told = await declared(elicitation=elicit, sampling=sample)
    later = {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}
    tasks = {"list": {}, "cancel": {}, "requests": later}
    assert told == {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "tasks": tasks}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_who_visits_urls_only_declares_no_forms_where_there_is_nothing_else(version: str) -> None:
    capabilities = ClientCapabilities(elicitation=ElicitationCapability(url={}))
    assert await declared(version, elicitation=elicit, capabilities=capabilities) == {}


@pytest.mark.parametrize("name", ["sampling", "elicitation"])
def test_declaring_what_nothing_answers_is_refused(name: str) -> None:
    capability = {"sampling": SamplingCapability(), "elicitation": ElicitationCapability()}[name]
    with pytest.raises(ValueError, match=f"give {name}= too"):
        Client("memory:x", capabilities=ClientCapabilities(**{name: capability}))  # type: ignore[arg-type]


# -- what a server must not ask -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "own", "code"),
    [
        ("form", ElicitationCapability(url={}), -32602),
        ("url", ElicitationCapability(form={}), -32602),
        ("url", ElicitationCapability(), -32602),
        ("form", ElicitationCapability(), None),
        ("form", ElicitationCapability(form={}), None),
        ("url", ElicitationCapability(url={}), None),
        ("form", None, -32602),
    ],
)
async def test_only_declared_modes_are_elicited(mode: str, own: Any, code: int | None) -> None:
    options: dict[str, Any] = {}
    if own is not None:
        options = {"elicitation": elicit, "capabilities": ClientCapabilities(elicitation=own)}
    params = {"form": {"message": "m", "requestedSchema": FORM}}.get(
        mode, {"mode": "url", "message": "m", "url": "https://a.example/", "elicitationId": "1"}
    )
    answer = await asked(options, "elicitation/create", params)
    assert answer.get("error", {}).get("code") == code


@pytest.mark.parametrize(
    ("version", "own", "code"),
    [
        (LEGACY, SamplingCapability(), -32602),
        (LEGACY, SamplingCapability(context={}), None),
        # Its clients have no way to declare it.
        ("2025-06-18", SamplingCapability(), None),
    ],
)
async def test_context_is_included_only_where_it_was_declared(
    version: str, own: Any, code: int | None
) -> None:
    options = {"sampling": sample, "capabilities": ClientCapabilities(sampling=own)}
    params = {"messages": MESSAGES, "maxTokens": 5, "includeContext": "thisServer"}
    answer = await asked(options, "sampling/createMessage", params, version)
    assert answer.get("error", {}).get("code") == code


async def test_a_stateless_servers_request_is_not_answered() -> None:
    async with scripted(MODERN, elicitation=elicit) as (client, peer):
        for method in ("ping", "elicitation/create", "none"):
            await peer.send({"jsonrpc": "2.0", "id": method, "method": method, "params": {}})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.list_tools)
            request = await peer.receive()
            assert request["method"] == "tools/list"
            await reply(
                peer, request, {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}
            )


# -- what does not go out -------------------------------------------------------------------------------------------


async def test_an_accepted_form_that_does_not_fit_is_not_sent() -> None:
    async def wrong(params: Any) -> ElicitResult:
        return ElicitResult("accept", {"age": "old"})

    with capture_logs() as logs:
        answer = await asked(
            {"elicitation": wrong}, "elicitation/create", {"message": "m", "requestedSchema": FORM}
        )
    assert "result" not in answer
    assert answer["error"]["code"] == -32603
    assert any("does not fit the form" in str(each) for each in logs)


async def test_an_accepted_form_that_does_not_fit_ends_the_call_of_a_stateless_server() -> None:
    async def wrong(params: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async with scripted(MODERN, elicitation=wrong) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            request = await peer.receive()
            question = {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": FORM}}
            await reply(peer, request, {"resultType": "input_required", "inputRequests": {"a": question}})

        nursery.start_soon(play)
        with pytest.raises(LocalProtocolError, match="age: is required"):
            await client.call_tool("t")


@pytest.mark.parametrize("root", ["/home/me", "https://a.example/", Root("C:\\x")])
def test_roots_are_file_uris(root: Any) -> None:
    with pytest.raises(ValueError, match="file://"):
        Client("memory:x", roots=[root])


async def test_roots_of_a_function_are_file_uris() -> None:
    async def roots() -> list[str]:
        return ["/home/me"]

    with capture_logs():
        answer = await asked({"roots": roots}, "roots/list", {})
    assert answer["error"]["code"] == -32603


# -- what a client hears --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_notifications_that_the_engine_does_not_know_reach_the_program(version: str) -> None:
    heard: list[Any] = []

    async def on_notification(method: str, params: dict[str, Any]) -> None:
        heard.append((method, params))

    async with scripted(version, on_notification=on_notification, on_log=lambda *_: None) as (_, peer):
        await notify(peer, "notifications/com.example/score", points=3)
        await notify(peer, "notifications/message", level="info", data="x")
        await notify(peer, "notifications/com.example/end")
        await wait_all_tasks_blocked()
    assert heard == [
        ("notifications/com.example/score", {"points": 3}),
        ("notifications/com.example/end", {}),
    ]


async def acknowledge(peer: ScriptedPeer, **granted: Any) -> Any:
    request = await peer.receive()
    assert request["method"] == "subscriptions/listen", request
    await tell(peer, request["id"], "notifications/subscriptions/acknowledged", notifications=granted)
    return request


async def test_a_listener_tells_what_was_granted() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: acknowledge(peer, toolsListChanged=True))
        async with client.listen(tools=True, prompts=True, uris=("x://a",)) as listener:
            assert listener.honored is not None
            assert listener.honored.tools_list_changed is True
            assert listener.honored.prompts_list_changed is None
            assert listener.honored.resource_subscriptions is None


@pytest.mark.parametrize("times", [1, 50])
async def test_a_subscription_is_taken_back_before_the_next_one_is_asked_for(times: int) -> None:
    order: list[str] = []
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            while True:
                message = await peer.receive()
                order.append(message["method"])
                if message["method"] == "subscriptions/listen":
                    await tell(
                        peer, message["id"], "notifications/subscriptions/acknowledged", notifications={}
                    )

        nursery.start_soon(play)
        for _ in range(times):
            async with client.listen(tools=True):
                pass
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert order == ["subscriptions/listen", "notifications/cancelled"] * times


async def test_a_process_that_dies_is_told(tmp_path: Any) -> None:
    """Pipes tell it by themselves."""
    told = trio.Event()
    lost: list[Any] = []

    def on_lost(error: ConnectionLost) -> None:
        lost.append(error)
        told.set()

    program = tmp_path / "server.py"
    program.write_text(
        "import os\nfrom mcp_actors import Server\nserver = Server('s')\n"
        "@server.tool\nasync def die() -> str:\n    os._exit(3)\nserver.run('stdio:')\n"
    )
    async with Client(program, on_lost=on_lost, timeout=20) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("die")
        with trio.fail_after(60):
            await told.wait()
    assert [each.exit_code for each in lost] == [3]


# -- lists and what is kept of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("circle", [["a"], ["a", "b"], [str(number) for number in range(30)]])
async def test_cursors_that_go_round_are_an_error(circle: list[str]) -> None:
    async with scripted(LEGACY) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            number = 0
            while True:
                request = await peer.receive()
                await reply(peer, request, {"tools": [], "nextCursor": circle[number % len(circle)]})
                number += 1

        nursery.start_soon(play)
        with pytest.raises(RemoteProtocolError, match="never ends"):
            [_ async for _ in client.tools()]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "pause", "unit"), [(0, 0, "pages"), (1, 0, "characters"), (0, 1, "seconds")]
)
async def test_a_list_without_an_end_is_an_error(
    entries: int, pause: float, unit: str, autojump_clock: MockClock
) -> None:
    tools = [{"name": "t", "description": "x" * 100_000, "inputSchema": {"type": "object"}}] * entries
    async with scripted(LEGACY) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            number = 0
            while True:
                request = await peer.receive()
                await trio.sleep(pause)
                await reply(peer, request, {"tools": tools, "nextCursor": str(number)})
                number += 1

        nursery.start_soon(play)
        with pytest.raises(RemoteProtocolError, match=rf"goes on after [\d,.]+ {unit}; ask for single pages"):
            [_ async for _ in client.tools()]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("size", "pause", "most"), [(0, 20, 16), (1_000_000, 0, 68), (0, 0, 100)])
async def test_a_call_looks_for_its_tool_within_bounds(
    size: int, pause: float, most: int, autojump_clock: MockClock
) -> None:
    """A client of a server that has tasks asks whether the tool that failed has to be called as one."""
    capabilities = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
    tools = [{"name": "other", "description": "x" * size, "inputSchema": {"type": "object"}}]
    lists: list[float] = []
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def play() -> None:
            peer = await server.accept()
            request = await peer.receive()
            await reply(peer, request, initialize_result(LEGACY, capabilities))
            assert (await peer.receive())["method"] == "notifications/initialized"
            while True:
                request = await peer.receive()
                if request["method"] == "tools/call":
                    await reply(peer, request, {"content": [], "isError": True})
                    continue
                lists.append(trio.current_time())
                await trio.sleep(pause)
                await reply(peer, request, {"tools": tools, "nextCursor": str(len(lists))})

        nursery.start_soon(play)
        async with Client(server.transport, era=LEGACY, cap=300) as client:
            assert (await client.call_tool("wanted")).is_error
            assert most - 2 <= len(lists) <= most
            # It is not looked for again.
            before = len(lists)
            assert (await client.call_tool("wanted")).is_error
            assert len(lists) == before
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["tools", "resources", "resource_templates", "prompts"])
async def test_a_list_that_the_server_has_no_method_for_is_empty(kind: str) -> None:
    async with scripted(LEGACY) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            await peer.send(error((await peer.receive())["id"], METHOD_NOT_FOUND, "Method not found"))

        nursery.start_soon(play)
        assert [each async for each in getattr(client, kind)()] == []


async def test_a_method_that_is_gone_in_the_middle_of_a_list_is_an_error() -> None:
    async with scripted(LEGACY) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            await reply(peer, await peer.receive(), {"tools": [], "nextCursor": "a"})
            await peer.send(error((await peer.receive())["id"], METHOD_NOT_FOUND, "Method not found"))

        nursery.start_soon(play)
        with pytest.raises(MethodNotFound):
            [_ async for _ in client.tools()]


async def listing(client: Client, peer: ScriptedPeer, asked: list[str], result: dict[str, Any]) -> None:
    while True:
        request = await peer.receive()
        asked.append(request["method"])
        await reply(peer, request, result)


def tools_of(size: int, ttl: Any) -> dict[str, Any]:
    tool = {"name": "t", "description": "x" * size, "inputSchema": {"type": "object"}}
    return {"resultType": "complete", "tools": [tool], "ttlMs": ttl, "cacheScope": "private"}


async def test_the_cache_can_be_passed_by() -> None:
    asked: list[str] = []
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(listing, client, peer, asked, tools_of(1, 60_000))
        for refresh, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
            await client.list_tools(refresh=refresh)
            assert len(asked) == times
            assert [tool.name async for tool in client.tools()] == ["t"]
        assert [tool.name async for tool in client.tools(refresh=True)] == ["t"]
        assert len(asked) == 3
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("answers", [26, 260])
async def test_the_cache_is_bounded_by_bytes(answers: int) -> None:
    asked: list[str] = []
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(listing, client, peer, asked, tools_of(1_000_000, 60_000))
        for number in range(answers):
            await client.list_tools(str(number))
            assert client._requests.cache._bytes <= 16 * 1024 * 1024
        await client.list_tools(str(answers - 1))
        assert len(asked) == answers
        nursery.cancel_scope.cancel()


async def test_a_time_to_live_is_taken_within_bounds(autojump_clock: MockClock) -> None:
    asked: list[str] = []
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(listing, client, peer, asked, tools_of(1, 10**400))
        await client.list_tools()
        await trio.sleep(24 * 3600 - 1)
        await client.list_tools()
        assert len(asked) == 1
        await trio.sleep(2)
        await client.list_tools()
        assert len(asked) == 2
        nursery.cancel_scope.cancel()
