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

from .peers import EVERY, LEGACY, LOG_LEVEL, MODERN, begin, fail, greet, meta, modern, notify, reply, scripted


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
