"""What a client keeps of a modern server's answers, for how long, and what makes it forget."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, RpcError, Server
from mcp_actors._client.supervisor import EraCache
from mcp_actors._eras.client_negotiation import versions_for
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors.abc.discovery import register_transport
from mcp_actors.errors import ConnectFailed, RemoteProtocolError
from mcp_actors.testing import RawServer, ScriptedPeer, raw_server
from mcp_actors.types import Tool
from tests.scripted_peers import MODERN, fail, greet, notify, play_initialize, reply, scripted, tell

OBJECT = {"type": "object"}


def page(*names: str, ttl: Any = 10_000, cursor: str | None = None, **tool: Any) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": OBJECT, **tool} for name in names]
    result = {"resultType": "complete", "tools": tools, "ttlMs": ttl, "cacheScope": "private"}
    return result if cursor is None else {**result, "nextCursor": cursor}


class Answering:
    """A server that answers every request with the next of its results, and counts."""

    def __init__(self, peer: ScriptedPeer, *results: Any) -> None:
        self.peer = peer
        self.results = list(results)
        self.requests: list[dict[str, Any]] = []

    async def run(self) -> None:
        while True:
            request = await self.peer.receive()
            self.requests.append(request)
            result = self.results.pop(0)
            if isinstance(result, int):
                await fail(self.peer, request, result)
            else:
                await reply(self.peer, request, result)


def names(result: Any) -> list[str]:
    return [tool.name for tool in result.tools]


async def test_an_answer_is_good_for_as_long_as_it_says(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        server = Answering(
            peer, page("one", ttl=10_000), page("two", ttl=0), page("three", ttl=-5), page("four")
        )
        nursery.start_soon(server.run)
        assert names(await client.list_tools()) == ["one"]
        await trio.sleep(9.9)
        assert names(await client.list_tools()) == ["one"]
        await trio.sleep(0.2)
        assert names(await client.list_tools()) == ["two"]
        assert names(await client.list_tools()) == ["three"]  # 0 is stale at once
        assert names(await client.list_tools()) == ["four"]  # so is less than 0
        assert names(await client.list_tools()) == ["four"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ttl", [None, "5", True, {}])
async def test_without_a_number_nothing_is_kept(ttl: Any) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        first = page("one")
        del first["ttlMs"]
        server = Answering(peer, first, page("two"))
        nursery.start_soon(server.run)
        await client.list_tools()
        assert names(await client.list_tools()) == ["two"]
        nursery.cancel_scope.cancel()


async def test_pages_are_kept_apart_and_on_their_own_clocks(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        server = Answering(
            peer, page("a", ttl=1000, cursor="c"), page("b", ttl=60_000), page("new", cursor="c")
        )
        nursery.start_soon(server.run)
        assert [tool.name async for tool in client.tools()] == ["a", "b"]
        assert [tool.name async for tool in client.tools()] == ["a", "b"]
        await trio.sleep(2)
        assert [tool.name async for tool in client.tools()] == ["new", "b"]
        assert len(server.requests) == 3
        nursery.cancel_scope.cancel()


async def test_an_empty_cursor_is_a_cursor() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        server = Answering(peer, page("a", cursor=""), page("b"))
        nursery.start_soon(server.run)
        assert [tool.name async for tool in client.tools()] == ["a", "b"]
        assert [request["params"].get("cursor") for request in server.requests] == [None, ""]
        nursery.cancel_scope.cancel()


async def test_a_cursor_that_is_refused_discards_every_page() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        server = Answering(peer, page("a", cursor="c"), -32602, page("b"))
        nursery.start_soon(server.run)
        with pytest.raises(RpcError):
            _ = [tool.name async for tool in client.tools()]
        assert [tool.name async for tool in client.tools()] == ["b"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("kind", "method", "member"),
    [
        ("tools", "list_tools", "tools"),
        ("prompts", "list_prompts", "prompts"),
        ("resources", "list_resources", "resources"),
        ("resources", "list_resource_templates", "resourceTemplates"),
    ],
)
@pytest.mark.parametrize("tagged", [False, True])
async def test_a_change_makes_its_lists_stale_and_no_others(
    kind: str, method: str, member: str, tagged: bool
) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        answer = {member: [], "ttlMs": 10_000}
        server = Answering(peer, answer, answer)
        nursery.start_soon(server.run)
        listing = getattr(client, method)
        await listing()
        for other in {"tools", "prompts", "resources"} - {kind}:
            await notify(peer, f"notifications/{other}/list_changed")
        await notify(peer, "notifications/resources/updated", uri="x://a")
        await wait_all_tasks_blocked()
        await listing()
        assert len(server.requests) == 1
        if tagged:
            await tell(peer, 99, f"notifications/{kind}/list_changed")
        else:
            await notify(peer, f"notifications/{kind}/list_changed")
        await wait_all_tasks_blocked()
        await listing()
        assert len(server.requests) == 2
        nursery.cancel_scope.cancel()


async def test_resources_are_kept_by_their_uri_until_they_change() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        contents = {"contents": [], "ttlMs": 10_000}
        server = Answering(peer, *[contents] * 4)
        nursery.start_soon(server.run)
        await client.read_resource("x://a")
        await client.read_resource("x://b")
        await client.read_resource("x://a")
        assert len(server.requests) == 2
        await notify(peer, "notifications/resources/updated", uri="x://a/below")
        await wait_all_tasks_blocked()
        await client.read_resource("x://a")
        assert len(server.requests) == 3
        nursery.cancel_scope.cancel()


async def test_an_answer_that_was_overtaken_by_a_change_is_not_kept() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(client.list_tools)
        request = await peer.receive()
        await notify(peer, "notifications/tools/list_changed")
        await reply(peer, request, page("old"))
        await wait_all_tasks_blocked()
        nursery.start_soon(Answering(peer, page("new")).run)
        assert names(await client.list_tools()) == ["new"]
        nursery.cancel_scope.cancel()


async def test_only_what_may_be_kept_is_kept() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        call = {"content": [], "ttlMs": 10_000}
        server = Answering(peer, call, call)
        nursery.start_soon(server.run)
        await client.call_tool("t")
        await client.call_tool("t")
        assert len(server.requests) == 2
        nursery.cancel_scope.cancel()


async def test_what_came_of_a_retry_is_not_kept() -> None:
    async with scripted(MODERN, roots=[]) as (client, peer), trio.open_nursery() as nursery:
        contents = {"resultType": "complete", "contents": [], "ttlMs": 10_000}
        asking = {
            "resultType": "input_required",
            "inputRequests": {"r": {"method": "roots/list"}},
            "ttlMs": 10_000,
        }
        server = Answering(peer, asking, contents, contents)
        nursery.start_soon(server.run)
        await client.read_resource("x://a")
        await client.read_resource("x://a")
        assert len(server.requests) == 3
        nursery.cancel_scope.cancel()


async def test_a_session_has_no_hints_and_keeps_nothing() -> None:
    async with scripted("2025-11-25") as (client, peer), trio.open_nursery() as nursery:
        server = Answering(peer, page("one"), page("two"))
        nursery.start_soon(server.run)
        await client.list_tools()
        assert names(await client.list_tools()) == ["two"]
        nursery.cancel_scope.cancel()


async def test_a_new_connection_begins_with_nothing(autojump_clock: MockClock) -> None:
    async with raw_server() as raw, trio.open_nursery() as nursery:
        peers: list[ScriptedPeer] = []

        async def play() -> None:
            for name in ("one", "two"):
                peers.append(await raw.accept())
                await greet(peers[-1])
                request = await peers[-1].receive()
                await reply(peers[-1], request, page(name))

        nursery.start_soon(play)
        async with Client(raw.transport, restart=True) as client:
            assert names(await client.list_tools()) == ["one"]
            assert names(await client.list_tools()) == ["one"]
            await peers[0].channel.aclose()
            await trio.sleep(1)
            assert names(await client.list_tools()) == ["two"]


async def test_hints_of_a_server_of_ours_are_obeyed(autojump_clock: MockClock) -> None:
    server = Server("s", ttl_ms=5000)
    server.add_tool(lambda: None, name="t")
    async with Client(server, era="modern") as client:
        await client.list_tools()
        sent = client.tree().link.frames_out
        await client.list_tools()
        assert client.tree().link.frames_out == sent
        async with client.listen(tools=True):
            server.add_tool(lambda: None, name="u")
            await wait_all_tasks_blocked()
            assert names(await client.list_tools()) == ["t", "u"]


# -- structured content --------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", MODERN])
async def test_structured_content_is_checked_once_the_tool_was_listed(version: str) -> None:
    async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
        wrong: dict[str, Any] = {"content": [], "structuredContent": {"n": "one"}}
        rows: list[tuple[dict[str, Any], bool]] = [
            ({"content": [], "structuredContent": {"n": 1}}, True),
            (wrong, False),
            ({"content": []}, False),
            ({"content": [], "structuredContent": {}}, False),
            ({"content": [], "isError": True}, True),
            ({**wrong, "isError": True}, True),
        ]
        server = Answering(peer, wrong, page("t", outputSchema=SCHEMA), *[result for result, _ in rows])
        nursery.start_soon(server.run)
        await client.call_tool("t")  # not listed yet
        await client.list_tools()
        for _, good in rows:
            if good:
                await client.call_tool("t")
            else:
                with pytest.raises(RemoteProtocolError, match="'t'"):
                    await client.call_tool("t")
        nursery.cancel_scope.cancel()


async def test_null_is_content_in_the_stateless_revision() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nullable = page("t", outputSchema={"type": ["integer", "null"]})
        server = Answering(peer, nullable, {"content": [], "structuredContent": None})
        nursery.start_soon(server.run)
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content is None
        nursery.cancel_scope.cancel()


async def test_a_schema_that_points_elsewhere_is_not_fetched_but_refused() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        elsewhere = page("t", outputSchema={"$ref": "http://127.0.0.1:9/schema.json"})
        server = Answering(peer, elsewhere, {"content": [], "structuredContent": {}})
        nursery.start_soon(server.run)
        tools = (await client.list_tools()).tools
        assert tools == [Tool("t", OBJECT, output_schema={"$ref": "http://127.0.0.1:9/schema.json"})]
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("t")
        nursery.cancel_scope.cancel()


async def test_a_schema_is_forgotten_when_the_tools_change() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        server = Answering(peer, page("t", outputSchema=SCHEMA), {"content": []})
        nursery.start_soon(server.run)
        await client.list_tools()
        await notify(peer, "notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert (await client.call_tool("t")).content == []
        nursery.cancel_scope.cancel()


# -- What a process remembers of the servers it has met: the era of a URL, and that it may have been wrong ---


def published(scheme: str, server: RawServer) -> str:
    register_transport(scheme, lambda url: server.transport)
    return f"{scheme}:here"


async def first_words(server: RawServer, url: str, version: str) -> str:
    """What a client that connects to ``url`` says first; the server is one of ``version``."""
    async with trio.open_nursery() as nursery:
        said: list[str] = []

        async def play() -> None:
            peer = await server.accept()
            said.append((await greet(peer, version))["method"])

        nursery.start_soon(play)
        async with Client(url) as client:
            assert client.version == version
    return said[0]


@pytest.mark.parametrize(
    ("version", "second"),
    [(MODERN, "server/discover"), ("2025-11-25", "initialize"), ("2024-11-05", "initialize")],
)
async def test_the_second_client_of_a_url_does_not_probe(
    version: str, second: str, autojump_clock: MockClock
) -> None:
    async with raw_server() as server:
        url = published(f"again{version[:4]}", server)
        assert await first_words(server, url, version) == "server/discover"
        assert await first_words(server, url, version) == second


async def test_a_remembered_session_is_asked_for_the_newest_version_again(autojump_clock: MockClock) -> None:
    """The server may have been upgraded: what is remembered is the era."""
    async with raw_server() as server:
        url = published("upgraded", server)
        await first_words(server, url, "2024-11-05")
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                request = await play_initialize(await server.accept(), "2025-11-25")
                assert request["params"]["protocolVersion"] == "2025-11-25"

            nursery.start_soon(play)
            async with Client(url) as client:
                assert client.version == "2025-11-25"


@pytest.mark.parametrize("refusal", [-32601, -32600, -32022])
async def test_a_wrong_memory_of_sessions_is_corrected(refusal: int, autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published(f"modernised{-refusal}", server)
        await first_words(server, url, "2025-11-25")
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                peer = await server.accept()
                request = await peer.receive()
                assert request["method"] == "initialize"
                await fail(peer, request, refusal, {"supported": [MODERN], "requested": "2025-11-25"})
                await greet(peer, MODERN)

            nursery.start_soon(play)
            async with Client(url) as client:
                assert client.era == "modern"
        assert await first_words(server, url, MODERN) == "server/discover"


async def test_a_wrong_memory_of_no_sessions_is_corrected(autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published("downgraded", server)
        await first_words(server, url, MODERN)
        assert await first_words(server, url, "2025-06-18") == "server/discover"
        assert await first_words(server, url, "2025-06-18") == "initialize"


async def test_a_pinned_client_teaches_the_others_nothing(autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published("pinned", server)
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                await play_initialize(await server.accept())

            nursery.start_soon(play)
            async with Client(url, era="legacy") as client:
                assert client.era == "legacy"
        assert await first_words(server, url, MODERN) == "server/discover"


async def test_nobody_there(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectFailed):
        async with Client("memory:nobody-serves-this"):
            raise AssertionError("never reached")


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    cache = EraCache(max_entries=2)
    first, second = versions_for("legacy")[-1], MODERN
    cache.put("a:", LEGACY[first])
    cache.put("b:", LATEST_MODERN)
    cache.put("a:", LATEST_MODERN)
    cache.put("c:", LEGACY[first])
    known = {url: era and era.version for url in ("a:", "b:", "c:") for era in [cache.get(url)]}
    assert known == {"a:": second, "b:": None, "c:": first}
