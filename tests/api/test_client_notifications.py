"""Notifications of clients that functions of the server take."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Limits, LocalProtocolError, Server
from mcp_actors.testing import ScriptedPeer, raw_client

from .exchanging import INITIALIZED, Recorder, desk, initialize
from .peers import EVERY, LEGACY, begin, meta

MOVED = "acme/moved"
Heard = list[tuple[Any, ...]]


def make_server(heard: Heard, **options: Any) -> Server:
    server = Server("hears", **options)

    @server.notification(MOVED)
    async def moved(x: int, y: float = 0.5, *, ctx: Context) -> None:
        heard.append((x, y, ctx.era.version, ctx.principal, ctx.session is not None))

    @server.notification("acme/fails")
    def fails() -> None:
        raise ValueError("no")

    return server


async def tell(peer: ScriptedPeer, method: str, **params: Any) -> None:
    await peer.send({"jsonrpc": "2.0", "method": method, "params": params})
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("version", LEGACY)
async def test_a_function_takes_it_with_the_types_it_asks_for(version: str) -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await begin(peer, version)
        await tell(peer, MOVED, x=1, y=2, unknown=3, _meta={"a": 1})
        await tell(peer, MOVED, x=2)
    assert heard == [(1, 2.0, version, None, True), (2, 0.5, version, None, True)]


async def test_a_stateless_client_is_heard_on_a_connection() -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await tell(peer, MOVED, x=1, _meta=meta())
        await tell(peer, MOVED, x=2)
        await tell(peer, MOVED, x=3, _meta=meta(version="2099-01-01"))
    assert [each[0] for each in heard] == [1, 2]
    assert {each[2] for each in heard} == {"2026-07-28"}


async def test_what_came_by_itself_is_heard_and_accepted() -> None:
    heard: Heard = []
    message = {"jsonrpc": "2.0", "method": MOVED, "params": {"x": 1, "_meta": meta()}}
    async with desk(make_server(heard)) as binding:
        outlet = await binding.exchange(message, mcp_protocol_version="2026-07-28", mcp_method=MOVED)
        await wait_all_tasks_blocked()
    assert outlet.frames == []
    assert heard == [(1, 0.5, "2026-07-28", None, False)]


async def test_a_session_without_a_connection_is_heard() -> None:
    heard: Heard = []
    async with desk(make_server(heard)) as binding:
        outlet = Recorder()
        session = binding.handler.open_session(outlet)
        told = {"jsonrpc": "2.0", "method": MOVED, "params": {"x": 1}}
        for each in (initialize(), INITIALIZED, told):
            binding.deliver(session, each)
        await wait_all_tasks_blocked()
        session.close()
    assert outlet.frames == []
    assert heard == [(1, 0.5, "2025-11-25", None, True)]


async def test_what_does_not_fit_or_fails_is_logged_and_disturbs_nobody() -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await begin(peer, "2025-11-25")
        with capture_logs() as logs:
            await tell(peer, MOVED, x="far")
            await tell(peer, MOVED)
            await tell(peer, "acme/fails")
            with trio.fail_after(5):
                while len([each for each in logs if each["log_level"] in ("warning", "error")]) < 3:
                    assert (await peer.request(2, "ping"))["result"] == {}
    assert heard == []
    assert [each.get("method") for each in logs if each["log_level"] == "warning"] == [MOVED, MOVED]


@pytest.mark.parametrize("era", LEGACY)
async def test_changed_roots_are_asked_for_where_that_is_heard(era: str) -> None:
    server = Server("roots")
    known: list[list[str]] = []
    roots = ["file:///a"]

    @server.notification("notifications/roots/list_changed")
    async def changed(ctx: Context) -> None:
        known.append([root.uri for root in await ctx.list_roots()])

    async with Client(server, era=era, roots=lambda: roots) as client:
        roots.append("file:///b")
        await client.roots_changed()
        with trio.fail_after(10):
            while not known:
                await client.ping()
    assert known == [["file:///a", "file:///b"]]


async def test_a_flood_is_bounded_and_the_rest_is_dropped(autojump_clock: MockClock) -> None:
    server = Server("slow", limits=Limits(max_in_flight=10, max_waiting=10))
    began: list[int] = []

    @server.notification(MOVED)
    async def slow(x: int) -> None:
        began.append(x)
        await trio.sleep(1)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        for x in range(200):
            await peer.send({"jsonrpc": "2.0", "method": MOVED, "params": {"x": x}})
        await wait_all_tasks_blocked()
        [session] = server.tree().sessions
        assert len(session.calls) == 20
        await trio.sleep(10)
        assert server.tree().sessions[0].calls == ()
        assert (await peer.request(1, "ping"))["result"] == {}
    assert sorted(began) == list(range(20))


async def test_the_end_of_the_connection_cancels_it() -> None:
    server = Server("slow")
    ended = trio.Event()

    @server.notification(MOVED)
    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await tell(peer, MOVED)
    assert ended.is_set()


@pytest.mark.parametrize(
    "name", ["notifications/initialized", "notifications/cancelled", "notifications/progress"]
)
def test_the_engines_own_cannot_be_taken(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="the engine itself"):
        Server("greedy").notification(name)(lambda: None)


def test_one_function_for_each() -> None:
    with pytest.raises(LocalProtocolError, match="already"):
        make_server([]).notification(MOVED)(lambda: None)


@pytest.mark.parametrize("version", EVERY)
async def test_a_request_of_that_name_is_still_unknown(version: str) -> None:
    async with raw_client(make_server([])) as peer:
        await begin(peer, version)
        params = {"_meta": meta()} if version not in LEGACY else {}
        assert (await peer.request(1, MOVED, params))["error"]["code"] == -32601
