"""Logs and changes as a client hears them, and how loud a server may be in either era."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.errors import LocalProtocolError
from mcp_actors.testing import ScriptedPeer, raw_client, raw_server
from mcp_actors.types import LOGGING_LEVELS
from tests.scripted_peers import (
    EVERY,
    LEGACY,
    LOG_LEVEL,
    MODERN,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    begin,
    fail,
    greet,
    meta,
    modern,
    nothing_comes,
    notify,
    reply,
    scripted,
)


def make_server() -> Server:
    server = Server("loud")

    @server.tool
    async def speak(ctx: Context) -> str:
        """Logs at every level."""
        for level in LOGGING_LEVELS:
            await ctx.log(level, {"said": level}, logger="mouth")  # type: ignore[arg-type]
        return "done"

    @server.tool
    async def shout(ctx: Context) -> str:
        """Logs at no level there is."""
        await ctx.log("loud", "x")  # type: ignore[arg-type]
        return ""

    return server


async def heard(peer: ScriptedPeer, id: int, **more: Any) -> list[str]:
    """The levels that a call of ``speak`` sends before its answer."""
    params: dict[str, Any] = {"name": "speak"}
    if more:
        params["_meta"] = more
    await peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    levels = []
    while (message := await peer.receive()).get("method") == "notifications/message":
        assert message["params"] == {
            "level": message["params"]["level"],
            "logger": "mouth",
            "data": {"said": message["params"]["level"]},
        }
        levels.append(message["params"]["level"])
    assert message["id"] == id
    return levels


@pytest.mark.parametrize("level", LOGGING_LEVELS)
async def test_a_modern_request_says_how_loud_its_own_call_may_be(level: str) -> None:
    async with raw_client(make_server()) as peer:
        assert await heard(peer, 1, **meta()) == []  # nobody asked
        expected = list(LOGGING_LEVELS[LOGGING_LEVELS.index(level) :])  # type: ignore[arg-type]
        assert await heard(peer, 2, **meta(**{LOG_LEVEL: level})) == expected
        assert await heard(peer, 3, **meta()) == []  # and nothing is remembered


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_has_a_level(version: str) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version)
        assert await heard(peer, 1) == list(LOGGING_LEVELS[1:])  # ours to choose until it is set: info
        for level in ("error", "debug", "emergency"):
            assert (await peer.request(2, "logging/setLevel", {"level": level}))["result"] == {}
            assert await heard(peer, 3) == list(LOGGING_LEVELS[LOGGING_LEVELS.index(level) :])  # type: ignore[arg-type]
        assert (await peer.request(4, "logging/setLevel", {"level": "loud"}))["error"]["code"] == -32602
        assert await heard(peer, 5) == ["emergency"]
        assert await heard(peer, 6, **meta()) == []  # a modern request beside it goes by itself


async def test_a_level_that_is_none_is_the_handlers_mistake() -> None:
    async with raw_client(make_server()) as peer:
        answer = await modern(peer, 1, "tools/call", {"name": "shout"}, **{LOG_LEVEL: "debug"})
        assert answer["result"]["isError"] is True
        assert "no such level" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_logs_reach_the_handler_in_order(version: str, flavour: str) -> None:
    heard: list[tuple[Any, Any, Any]] = []

    def on_log(level: Any, data: Any, logger: str | None) -> None:
        heard.append((level, data, logger))

    async def on_log_later(level: Any, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint()
        heard.append((level, data, logger))

    handler: Any = on_log if flavour == "sync" else on_log_later
    async with Client(make_server(), era=version, on_log=handler) as client:
        await client.call_tool("speak")
        if flavour == "async":
            await wait_all_tasks_blocked()
        assert heard == [(level, {"said": level}, "mouth") for level in LOGGING_LEVELS[1:]]


@pytest.mark.parametrize("version", EVERY)
async def test_the_level_can_be_chosen_and_changed(version: str) -> None:
    heard: list[Any] = []
    async with Client(
        make_server(),
        era=version,
        on_log=lambda level, data, logger: heard.append(level),
        log_level="critical",
    ) as client:
        await client.call_tool("speak")
        assert heard == ["critical", "alert", "emergency"]
        heard.clear()
        await client.set_log_level("debug")
        await client.call_tool("speak")
        assert heard == list(LOGGING_LEVELS)
        with pytest.raises(LocalProtocolError):
            await client.set_log_level("loud")  # type: ignore[arg-type]


@pytest.mark.parametrize("version", EVERY)
async def test_who_has_no_handler_hears_nothing_and_asks_for_nothing(version: str) -> None:
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(client.list_tools)
        request = await peer.receive()
        assert request["method"] == "tools/list"
        assert LOG_LEVEL not in request.get("params", {}).get("_meta", {})
        await notify(peer, "notifications/message", level="info", data="x")
        await reply(peer, request, {"tools": []})


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_the_level_outlives_a_connection(version: str, autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        levels: list[Any] = []
        peers: list[ScriptedPeer] = []

        async def play() -> None:
            for _ in range(2):
                peer = await server.accept()
                peers.append(peer)
                await greet(peer, version)
                request = await peer.receive()
                if version == MODERN:
                    levels.append(request["params"]["_meta"][LOG_LEVEL])
                    await reply(peer, request, {"tools": []})
                else:
                    assert request["method"] == "logging/setLevel"
                    levels.append(request["params"]["level"])
                    await reply(peer, request, {})

        nursery.start_soon(play)
        async with Client(
            server.transport, era=version, restart=True, on_log=lambda *log: None, log_level="error"
        ) as client:
            if version == MODERN:
                await client.list_tools()
            await peers[0].channel.aclose()
            await trio.sleep(5)
            if version == MODERN:
                await client.list_tools()
        assert levels == ["error", "error"]


async def test_a_server_that_cannot_set_its_level_is_still_a_server() -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def play() -> None:
            peer = await server.accept()
            await greet(peer, "2025-11-25")
            await fail(peer, await peer.receive(), -32603)

        nursery.start_soon(play)
        async with Client(
            server.transport, era="legacy", on_log=lambda *log: None, log_level="error"
        ) as client:
            assert client.version == "2025-11-25"


async def test_a_handler_that_fails_disturbs_nobody() -> None:
    heard: list[Any] = []

    def sometimes(level: Any, data: Any, logger: str | None) -> None:
        heard.append(level)
        if level == "info":
            raise ValueError("not today")

    async def later(level: Any, data: Any, logger: str | None) -> None:
        sometimes(level, data, logger)

    for handler in (sometimes, later):
        heard.clear()
        with structlog.testing.capture_logs():
            async with Client(make_server(), on_log=handler) as client:
                await client.call_tool("speak")
                await wait_all_tasks_blocked()
                assert heard == list(LOGGING_LEVELS[1:])


@pytest.mark.parametrize(
    "params", [{}, {"level": 5, "data": 1}, {"level": "info"}, {"level": "info", "data": None, "logger": 5}]
)
async def test_odd_notifications_are_survived(params: dict[str, Any]) -> None:
    heard: list[Any] = []
    async with scripted(MODERN, on_log=lambda *log: heard.append(log), on_change=lambda *change: None) as (
        client,
        peer,
    ):
        listen = await peer.receive()
        assert listen["method"] == "subscriptions/listen"
        await notify(peer, "notifications/message", **params)
        await notify(peer, "notifications/acme/unknown", a=1)
        await notify(peer, "notifications/progress", progressToken=99, progress=1)
        await notify(peer, "notifications/resources/updated", uri=5)
        await notify(peer, "notifications/subscriptions/acknowledged", _meta=[])
        await peer.send({"jsonrpc": "2.0", "method": "notifications/message", "params": [1]})
        await wait_all_tasks_blocked()
        assert heard in ([], [("info", None, None)])
        assert client.tree().state == "open"


# -- changes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_changes_reach_the_handler_in_both_eras(era: str, flavour: str) -> None:
    server = make_server()
    server.add_prompt(lambda: "p", name="p")
    server.add_resource("x://a", lambda: "a", name="a")
    told: list[tuple[str, str | None]] = []

    async def later(kind: str, uri: str | None) -> None:
        await trio.lowlevel.checkpoint()
        told.append((kind, uri))

    handler: Any = later if flavour == "async" else lambda kind, uri: told.append((kind, uri))
    async with Client(server, era=era, on_change=handler):
        await wait_all_tasks_blocked()
        server.remove_tool("shout")
        await wait_all_tasks_blocked()
        server.remove_prompt("p")
        await wait_all_tasks_blocked()
        server.remove_resource("x://a")
        await wait_all_tasks_blocked()
        assert told == [("tools", None), ("prompts", None), ("resources", None)]


async def test_updates_of_a_session_reach_the_handler() -> None:
    server = make_server()
    server.add_resource("x://a", lambda: "a", name="a")
    told: list[tuple[str, str | None]] = []
    async with Client(server, era="legacy", on_change=lambda kind, uri: told.append((kind, uri))) as client:
        await client.subscribe_resource("x://a")
        server.resource_updated("x://a")
        await wait_all_tasks_blocked()
        await client.unsubscribe_resource("x://a")
        server.resource_updated("x://a")
        await wait_all_tasks_blocked()
        assert told == [("resource_updated", "x://a")]


# -- the rest of the connection ------------------------------------------------------------------------------------


async def test_changed_roots_are_told_to_sessions_that_may_know() -> None:
    async with scripted("2025-11-25", roots=["file:///a"]) as (client, peer):
        await client.roots_changed()
        assert (await peer.receive())["method"] == "notifications/roots/list_changed"
    async with scripted("2025-11-25") as (client, _):
        with pytest.raises(LocalProtocolError):
            await client.roots_changed()
    async with scripted(MODERN, roots=[]) as (client, peer):
        sent = client.tree().link.frames_out
        await client.roots_changed()  # a modern server asks when it needs them
        assert client.tree().link.frames_out == sent


@pytest.mark.parametrize(("version", "method"), [("2025-11-25", "ping"), (MODERN, "server/discover")])
async def test_a_sign_of_life(version: str, method: str) -> None:
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(client.ping)
        request = await peer.receive()
        assert request["method"] == method
        await reply(peer, request, {})


@pytest.mark.parametrize("version", LEGACY)
async def test_a_client_answers_pings_at_any_time(version: str) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def play() -> None:
            peer = await server.accept()
            request = await peer.receive()
            assert (await peer.request("early", "ping"))["result"] == {}
            answer = {
                "protocolVersion": version,
                "capabilities": {},
                "serverInfo": {"name": "s", "version": "1"},
            }
            await reply(peer, request, answer)
            assert (await peer.receive())["method"] == "notifications/initialized"
            assert (await peer.request("late", "ping"))["result"] == {}

        async with trio.open_nursery() as playing:
            playing.start_soon(play)
            async with Client(server.transport, era=version) as client:
                await wait_all_tasks_blocked()
                assert client.version == version
        nursery.cancel_scope.cancel()


# -- Subscriptions as a server keeps them, seen from the wire in both eras; and lists that change while it serves ---

ACK = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x://a"],
}


def make_server_listening(**options: Any) -> Server:
    server = Server("s", **options)
    server.add_tool(lambda: None, name="t")
    server.add_prompt(lambda: "p", name="p")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_resource("x://b", lambda: "b", name="b")
    return server


async def listen(peer: ScriptedPeer, id: int | str, **filter: Any) -> dict[str, Any]:
    """Opens a subscription; the acknowledgement."""
    params = {"notifications": filter, "_meta": meta()}
    await peer.send({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})
    acknowledgement: dict[str, Any] = await peer.receive()
    assert acknowledgement["method"] == ACK
    return acknowledgement


async def cancel(peer: ScriptedPeer, id: int | str) -> None:
    await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("id", [0, 5, "", "5"])
async def test_the_acknowledgement_comes_first_and_tags_keep_their_type(id: int | str) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        server.remove_prompt("p")
        acknowledgement = await listen(peer, id, **EVERYTHING)
        assert acknowledgement["params"]["notifications"] == EVERYTHING
        server.remove_tool("t")
        server.resource_updated("x://a")
        for message, method in (
            (acknowledgement, ACK),
            (await peer.receive(), "notifications/tools/list_changed"),
        ):
            assert message["method"] == method
            tag = message["params"]["_meta"][SUBSCRIPTION_ID]
            assert (type(tag), tag) == (type(id), id)
        updated = await peer.receive()
        assert updated["params"] == {"uri": "x://a", "_meta": {SUBSCRIPTION_ID: id}}


async def test_an_event_in_the_turn_of_the_request_is_neither_lost_nor_early() -> None:
    server = make_server_listening()
    server.on_listen = lambda ctx: server.resource_updated("x://a")
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        assert (await peer.receive())["method"] == UPDATED


async def test_only_what_was_asked_for_is_told(autojump_clock: MockClock) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await listen(
            peer, 1, promptsListChanged=True, toolsListChanged=False, resourceSubscriptions=["x://b"]
        )
        server.remove_tool("t")
        server.remove_resource("x://a")
        server.resource_updated("x://a")
        await nothing_comes(peer)
        server.remove_prompt("p")
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        server.resource_updated("x://b/below")
        assert (await peer.receive())["params"]["uri"] == "x://b/below"


async def test_what_is_not_offered_is_not_promised() -> None:
    server = Server("tools only")
    server.add_tool(lambda: None, name="t")
    async with raw_client(server) as peer:
        acknowledgement = await listen(peer, 1, **EVERYTHING, taskIds=["1"])
        assert acknowledgement["params"]["notifications"] == {"toolsListChanged": True}
        acknowledgement = await listen(peer, 2)
        assert acknowledgement["params"]["notifications"] == {}


@pytest.mark.parametrize("filter", [5, [], "x", {"toolsListChanged": "yes"}, {"resourceSubscriptions": [5]}])
async def test_a_filter_that_is_none_is_invalid(filter: Any) -> None:
    async with raw_client(make_server_listening()) as peer:
        answer = await modern(peer, 1, "subscriptions/listen", {"notifications": filter})
        assert answer["error"]["code"] == -32602


async def test_each_of_many_subscriptions_hears_of_it_once(autojump_clock: MockClock) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, "1", resourceSubscriptions=["x://a", "x://b"])
        await listen(peer, 3, toolsListChanged=True)
        server.resource_updated("x://a")
        tags = [(await peer.receive())["params"]["_meta"][SUBSCRIPTION_ID] for _ in range(2)]
        assert set(tags) == {1, "1"}
        await nothing_comes(peer)


async def test_cancelled_ends_it_in_silence(autojump_clock: MockClock) -> None:
    server = make_server_listening()
    gone: list[str] = []
    server.on_unsubscribe = gone.append
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, 2, toolsListChanged=True)
        await cancel(peer, 1)
        assert gone == ["x://a"]
        server.resource_updated("x://a")
        await nothing_comes(peer)
        server.remove_tool("t")  # its neighbour lives on
        assert (await peer.receive())["params"]["_meta"][SUBSCRIPTION_ID] == 2


async def test_a_server_that_stops_says_so() -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await listen(peer, 1, toolsListChanged=True)
        await listen(peer, "2", **EVERYTHING)
        server.stop()
        answers = [await peer.receive(), await peer.receive()]
        for answer in sorted(answers, key=lambda answer: str(answer["id"])):
            result = answer["result"]
            assert result["resultType"] == "complete"
            assert result["_meta"][SUBSCRIPTION_ID] == answer["id"]
            assert type(result["_meta"][SUBSCRIPTION_ID]) is type(answer["id"])
            assert result["_meta"][SERVER_INFO]["name"] == "s"
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()


async def test_hooks_are_told_of_listeners_and_subscribers() -> None:
    server = make_server_listening()
    told: list[str] = []
    server.on_listen = lambda ctx: told.append(f"listen {ctx.request_id}")
    server.on_unlisten = lambda ctx: told.append(f"unlisten {ctx.request_id}")
    server.on_subscribe = lambda uri: told.append(f"first {uri}")
    server.on_unsubscribe = lambda uri: told.append(f"last {uri}")
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, 2, resourceSubscriptions=["x://a"])
        await cancel(peer, 1)
        assert told == ["first x://a", "listen 1", "listen 2", "unlisten 1"]
        await cancel(peer, 2)
        assert told[4:] == ["unlisten 2", "last x://a"]
        assert server.tree().bus.subscriptions == 0


async def test_the_stateless_revision_pushes_nothing_unasked(autojump_clock: MockClock) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await modern(peer, 1, "tools/list")
        await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        server.add_tool(lambda: None, name="new")
        server.resource_updated("x://a")
        await nothing_comes(peer)


# -- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_hears_of_lists_unasked_and_of_resources_it_subscribed_to(
    version: str, autojump_clock: MockClock
) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await begin(peer, version)
        server.resource_updated("x://a")
        await nothing_comes(peer)
        for id in (1, 2):  # twice is once
            assert (await peer.request(id, "resources/subscribe", {"uri": "x://a"}))["result"] == {}
        server.resource_updated("x://a")
        assert await peer.receive() == {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "x://a"}}
        await nothing_comes(peer)
        server.add_tool(lambda: None, name="new")
        assert await peer.receive() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        server.remove_prompt("p")
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        server.remove_resource("x://b")
        assert (await peer.receive())["method"] == "notifications/resources/list_changed"
        assert (await peer.request(3, "resources/unsubscribe", {"uri": "x://a"}))["result"] == {}
        assert (await peer.request(4, "resources/unsubscribe", {"uri": "x://never"}))["result"] == {}
        server.resource_updated("x://a")
        await nothing_comes(peer)


async def test_what_is_new_can_be_seen_when_it_is_told() -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await wait_all_tasks_blocked()
        server.add_tool(lambda: None, name="new")
        await peer.receive()
        names = [tool["name"] for tool in (await peer.request(1, "tools/list"))["result"]["tools"]]
        assert names == ["t", "new"]


async def test_the_end_of_a_session_drops_its_subscriptions() -> None:
    server = make_server_listening()
    told: list[str] = []
    server.on_subscribe = lambda uri: told.append(f"first {uri}")
    server.on_unsubscribe = lambda uri: told.append(f"last {uri}")
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await peer.request(1, "resources/subscribe", {"uri": "x://a"})
        assert told == ["first x://a"]
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert told == ["first x://a", "last x://a"]
        assert server.tree().bus.subscriptions == 0


@pytest.mark.parametrize("said", ["notifications/initialized", "initialized", "tools/list"])
async def test_a_client_that_is_past_its_handshake_hears_of_changes(
    said: str, autojump_clock: MockClock
) -> None:
    """The right notification, the bare method of the tutorials, or none at all but a request."""
    server = make_server_listening()
    async with raw_client(server) as peer:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.request(1, "initialize", params)
        if said == "tools/list":
            await peer.request(2, said)
        else:
            await peer.send({"jsonrpc": "2.0", "method": said})
        await wait_all_tasks_blocked()
        server.remove_tool("t")
        with trio.fail_after(10):
            assert (await peer.receive())["method"] == "notifications/tools/list_changed"


async def test_nobody_is_told_anything_before_the_handshake(autojump_clock: MockClock) -> None:
    server = make_server_listening()
    async with raw_client(server) as peer:
        await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await wait_all_tasks_blocked()
        server.remove_tool("t")
        await nothing_comes(peer)
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.request(1, "initialize", params)
        server.remove_prompt("p")
        await nothing_comes(peer)  # until it says initialized, it gets answers and nothing else
