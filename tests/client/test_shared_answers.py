"""What spares a client from asking: one request for all who ask, and answers that other processes were given."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, RpcError, Server
from mcp_actors._client.cache import SharedAnswers
from mcp_actors.auth import BearerToken
from mcp_actors.errors import CallTimeout, ConnectionLost, SharedStateUnavailable
from mcp_actors.shared import MemoryShared, shared_state
from mcp_actors.testing import ScriptedPeer
from mcp_transports.http.server import HttpServerTransport
from tests.redis_server import RedisServer
from tests.scripted_peers import MODERN, fail, notify, reply, scripted
from tests.transports.http.protected import resource_server

VERSIONS = pytest.mark.parametrize("version", [MODERN, "2025-11-25"])


def page(*names: str) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"resultType": "complete", "tools": tools}


class Asking:
    """Callers of one client, each with what it got."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.scopes: list[trio.CancelScope] = []
        self.got: dict[int, Any] = {}

    async def ask(self, call: Callable[[], Any]) -> None:
        number, scope = len(self.scopes), trio.CancelScope()
        self.scopes.append(scope)

        async def run() -> None:
            with scope:
                try:
                    self.got[number] = await call()
                except Exception as error:
                    self.got[number] = error

        self.nursery.start_soon(run)
        await wait_all_tasks_blocked()


async def nothing_waits(peer: ScriptedPeer) -> None:
    with trio.move_on_after(0.01) as waited:
        raise AssertionError(f"unexpected: {await peer.receive()}")
    assert waited.cancelled_caught


# -- one request for all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_what_one_caller_does_to_its_answer_is_not_in_that_of_another(era: str) -> None:
    server = Server("x")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    lengths: list[int] = []
    async with Client(server, era=era) as client, trio.open_nursery() as nursery:

        async def list_and_clear() -> None:
            result = await client.list_tools(refresh=True)
            lengths.append(len(result.tools))
            result.tools.clear()

        for _ in range(3):
            nursery.start_soon(list_and_clear)
    assert lengths == [1, 1, 1]


@VERSIONS
async def test_lists_that_are_asked_for_at_once_are_one_request(version: str) -> None:
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        for _ in range(5):
            await asking.ask(client.list_tools)
        request = await peer.receive()
        assert request["method"] == "tools/list"
        await nothing_waits(peer)
        await reply(peer, request, page("a"))
        await wait_all_tasks_blocked()
        assert [each.tools[0].name for each in asking.got.values()] == ["a"] * 5
        # Each has an answer of its own, and may change it.
        asking.got[0].tools.clear()
        asking.got[1].tools[0].input_schema["x"] = 1
        assert [len(asking.got[each].tools) for each in range(5)] == [0, 1, 1, 1, 1]
        assert asking.got[2].tools[0].input_schema == {"type": "object"}
        # The next one asks again.
        await asking.ask(client.list_tools)
        assert (await peer.receive())["method"] == "tools/list"
        nursery.cancel_scope.cancel()


async def test_other_requests_are_not_the_same() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.ask(lambda: client.read_resource("x://a"))
        await asking.ask(lambda: client.read_resource("x://b"))
        await asking.ask(lambda: client.read_resource("x://a", timeout=3))
        await asking.ask(lambda: client.list_tools("cursor"))
        await asking.ask(lambda: client.list_tools(""))
        await asking.ask(lambda: client.list_prompts())
        await asking.ask(lambda: client.read_resource("x://a"))
        assert len([await peer.receive() for _ in range(6)]) == 6
        await nothing_waits(peer)
        nursery.cancel_scope.cancel()


@VERSIONS
async def test_a_caller_that_gives_up_ends_no_request_of_others_and_the_last_one_does(version: str) -> None:
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        for _ in range(3):
            await asking.ask(lambda: client.read_resource("x://a"))
        request = await peer.receive()
        asking.scopes[0].cancel()
        await wait_all_tasks_blocked()
        await nothing_waits(peer)
        for scope in asking.scopes[1:]:
            scope.cancel()
        cancelled = await peer.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == request["id"]
        assert asking.got == {}
        nursery.cancel_scope.cancel()


async def test_an_error_is_that_of_all_and_each_has_one_of_its_own() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        for _ in range(3):
            await asking.ask(client.list_tools)
        await fail(peer, await peer.receive(), -32000, {"why": 1}, "no")
        await wait_all_tasks_blocked()
        errors = list(asking.got.values())
        assert [(type(each), each.code, each.data) for each in errors] == [(RpcError, -32000, {"why": 1})] * 3
        assert len(set(map(id, errors))) == 3
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_lost_is_lost_for_all() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        for _ in range(3):
            await asking.ask(client.list_tools)
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert [type(each) for each in asking.got.values()] == [ConnectionLost] * 3
        nursery.cancel_scope.cancel()


async def test_a_client_that_is_closed_ends_all() -> None:
    async with scripted(MODERN) as (client, _), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        for _ in range(3):
            await asking.ask(client.list_tools)
        await client.aclose()
        await wait_all_tasks_blocked()
        assert [type(each) for each in asking.got.values()] == [ConnectionLost] * 3
        nursery.cancel_scope.cancel()


async def test_who_comes_late_has_time_of_its_own(autojump_clock: MockClock) -> None:
    async with scripted(MODERN, timeout=10) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.ask(client.list_tools)
        await trio.sleep(8)
        await asking.ask(client.list_tools)
        await trio.sleep(4)
        assert isinstance(asking.got[0], CallTimeout)
        assert (await peer.receive())["method"] == "tools/list"
        assert (await peer.receive())["method"] == "notifications/cancelled"
        again = await peer.receive()
        assert again["method"] == "tools/list"
        await reply(peer, again, page("a"))
        await wait_all_tasks_blocked()
        assert asking.got[1].tools[0].name == "a"
        nursery.cancel_scope.cancel()


@VERSIONS
@pytest.mark.parametrize("what", ["a change", "a call"])
async def test_no_answer_is_older_than_what_its_caller_knows(version: str, what: str) -> None:
    """A program that has called a tool, or has heard of a change, must see it in the list."""
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.ask(client.list_tools)
        first = await peer.receive()
        if what == "a change":
            await notify(peer, "notifications/tools/list_changed")
        else:
            await asking.ask(lambda: client.call_tool("add"))
            await reply(peer, await peer.receive(), {"resultType": "complete", "content": []})
        await wait_all_tasks_blocked()
        await asking.ask(client.list_tools)
        second = await peer.receive()
        assert second["method"] == "tools/list"
        await reply(peer, second, page("a", "b"))
        await reply(peer, first, page("a"))
        await wait_all_tasks_blocked()
        numbers = sorted(asking.got)
        assert [len(asking.got[each].tools) for each in (numbers[0], numbers[-1])] == [1, 2]
        nursery.cancel_scope.cancel()


# -- answers that other processes were given --------------------------------------------------------------------------

PLACES = pytest.mark.parametrize("place", ["memory:", "sqlite"])


@asynccontextmanager
async def counted(
    scope: Any, ttl: int = 60_000, name: str = "mcp-shared"
) -> AsyncIterator[tuple[Server, list[str]]]:
    """Yields a server at a URL, and the requests that reach it."""
    server, asked = Server("s", ttl_ms=ttl, cache_scope=scope), []
    server.add_tool(lambda: None, name="t")
    server.add_resource("x://a", lambda: "a", name="a")

    @server.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        if ctx.method in ("tools/list", "resources/read"):
            asked.append(ctx.method)
        return await call_next()

    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, f"memory:{name}")
        yield server, asked
        nursery.cancel_scope.cancel()


def state_at(place: str, tmp_path: Path) -> Any:
    return shared_state(place if place == "memory:" else f"sqlite:{tmp_path}/cache.db")


@PLACES
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_what_one_client_was_told_others_need_not_ask(place: str, scope: str, tmp_path: Path) -> None:
    state = state_at(place, tmp_path)
    async with counted(scope) as (_, asked):
        for _ in range(3):
            async with Client("memory:mcp-shared", era="modern", cache=state) as client:
                assert [each.name for each in (await client.list_tools()).tools] == ["t"]
                assert (await client.read_resource("x://a")).text == "a"
                assert [each.name for each in (await client.list_tools()).tools] == ["t"]
        assert asked == ["tools/list", "resources/read"]


async def test_it_is_good_for_the_rest_of_its_time() -> None:
    now = [1000.0]
    state = MemoryShared(clock=lambda: now[0])
    async with counted("public") as (_, asked):
        async with Client("memory:mcp-shared", era="modern", cache=state) as client:
            assert (await client.list_tools()).ttl_ms == 60_000
        async with Client("memory:mcp-shared", era="modern", cache=state) as client:
            assert 0 < ((await client.list_tools()).ttl_ms or 0) <= 60_000
        now[0] += 61.0
        async with Client("memory:mcp-shared", era="modern", cache=state) as client:
            await client.list_tools()
        assert asked == ["tools/list"] * 2


async def test_without_a_time_nothing_is_kept() -> None:
    state = MemoryShared()
    async with counted("public", ttl=0) as (_, asked):
        for _ in range(2):
            async with Client("memory:mcp-shared", era="modern", cache=state) as client:
                await client.list_tools()
        assert len(asked) == 2


async def test_refreshing_asks_the_server_and_replaces_what_others_find() -> None:
    state = MemoryShared()
    async with (
        counted("public") as (server, asked),
        Client("memory:mcp-shared", era="modern", cache=state) as one,
        Client("memory:mcp-shared", era="modern", cache=state) as two,
    ):
        await one.list_tools()
        server.add_tool(lambda: None, name="u")
        assert len((await one.list_tools(refresh=True)).tools) == 2
        assert len((await two.list_tools()).tools) == 2
        assert len(asked) == 2


async def test_who_has_heard_of_a_change_does_not_believe_what_others_have_kept() -> None:
    state = MemoryShared()
    async with (
        counted("public") as (server, asked),
        Client("memory:mcp-shared", era="modern", cache=state) as one,
        Client("memory:mcp-shared", era="modern", cache=state) as two,
    ):
        await one.list_tools()
        async with two.listen(tools=True) as changes:
            server.add_tool(lambda: None, name="u")
            await anext(changes)
            assert len((await two.list_tools()).tools) == 2
        async with Client("memory:mcp-shared", era="modern", cache=state) as three:
            assert len((await three.list_tools()).tools) == 2
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("auths", "scope", "requests"),
    [
        (["one", "one"], "private", 1),
        (["one", "two"], "private", 2),
        (["one", None], "private", 2),
        (["one", "two"], "public", 1),
        ([lambda: "one", lambda: "one"], "private", 2),
        ([lambda: "one", lambda: "one"], "public", 1),
    ],
)
async def test_what_is_private_is_found_by_the_same_caller_alone(
    auths: list[Any], scope: str, requests: int
) -> None:
    # What a client makes of its options is what tells callers apart; no server has to demand tokens for that.
    state = MemoryShared()
    places = []
    for auth in auths:
        options = Client(
            "http://127.0.0.1:1/mcp", cache=state, auth=None if auth is None else BearerToken(auth)
        )._options
        shared = SharedAnswers.of(options)
        assert shared is not None
        places.append((shared._caller, shared._server))
    found = set()
    for number, (caller, server) in enumerate(places):
        found.add((server, b"" if scope == "public" else (number if caller is None else caller)))
    assert len(found) == requests


async def test_a_state_that_is_away_is_done_without(autojump_clock: MockClock) -> None:
    class Away:
        @asynccontextmanager
        async def open(self, name: str) -> AsyncIterator[Any]:
            raise SharedStateUnavailable("values", "away")
            yield

    async with counted("public") as (_, asked):
        async with Client("memory:mcp-shared", era="modern", cache=Away()) as client:
            await client.list_tools()
        assert asked == ["tools/list"]


def test_only_what_has_a_url_is_shared() -> None:
    with pytest.raises(ValueError, match="cache="):
        Client(Server("s"), cache=MemoryShared())
    with pytest.raises(TypeError, match="cache"):
        Client("memory:x", cache="sqlite:x.db")  # type: ignore[arg-type]


# What one process does: it lists the tools, and where answers are private it reads a resource that names the caller.
PROGRAM = """
import sys
import trio
from mcp_actors import Client
from mcp_actors.auth import BearerToken
from mcp_actors.shared import shared_state

url, place, token, is_known, scope = sys.argv[1:]

async def main():
    auth = BearerToken(token if is_known == "known" else lambda: token)
    async with Client(url, era="modern", cache=shared_state(place), auth=auth) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        if scope == "private":
            names.append((await client.read_resource("x://me")).text)
        print(*names)

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_processes_with_different_tokens_share_what_is_public_alone(scope: str, tmp_path: Path) -> None:
    await share_between_processes(scope, f"sqlite:{tmp_path}/cache.db")


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_processes_share_as_much_in_redis(scope: str, redis_server: RedisServer) -> None:
    await share_between_processes(scope, redis_server.url)


async def share_between_processes(scope: Any, place: str) -> None:
    """Runs processes one after the other, each with the token of a caller, and looks at what reached the server."""
    asked: list[str] = []
    server = Server("s", ttl_ms=600_000, cache_scope=scope)
    server.add_tool(lambda: None, name="t")

    @server.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        if ctx.method in ("tools/list", "resources/read"):
            asked.append(f"{ctx.method} {ctx.principal.subject}")
        return await call_next()

    @server.resource("x://me", name="me")
    async def me(ctx: Context) -> str:
        assert ctx.principal is not None
        return ctx.principal.subject

    transport = HttpServerTransport("http://127.0.0.1:0/mcp", auth=resource_server())
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)

        async def run(token: str, is_known: str = "known") -> str:
            command = [sys.executable, "-c", PROGRAM, url, place, token, is_known, scope]
            with trio.fail_after(60):
                done = await trio.run_process(command, capture_stdout=True)
            return done.stdout.decode().strip()

        def requests_of(*callers: str) -> list[str]:
            return [f"{method} {who}" for who in callers for method in ("tools/list", "resources/read")]

        if scope == "public":
            assert [await run("ann"), await run("bob"), await run("bob", "asked for")] == ["t"] * 3
            assert asked == ["tools/list ann"]
        else:
            assert [await run("ann"), await run("bob")] == ["t ann", "t bob"]
            assert asked == requests_of("ann", "bob")
            asked.clear()
            assert [await run("ann"), await run("bob")] == ["t ann", "t bob"]
            assert asked == []
            # Another token of the same caller may have other scopes, and one that a function returns may be anyone's.
            assert [await run("ann-renewed"), await run("bob", "asked for")] == ["t ann", "t bob"]
            assert asked == requests_of("ann", "bob")
        nursery.cancel_scope.cancel()
