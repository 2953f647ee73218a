"""Tags of lists and resources: what a client has already is not sent again."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.extensions import ETAG, ETAGS, UNCHANGED, ETags
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import Tool
from tests.messages import LEGACY_VERSIONS as LEGACY
from tests.messages import modern_meta
from tests.scripted_peers import MODERN, begin

VERSIONS = pytest.mark.parametrize("version", [LEGACY[0], LEGACY[-1], MODERN])
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


def large_server(tools: int = 400) -> Server:
    """A server whose list of tools has 5 kB for each on one page."""
    server = Server("s", version="1.0", page_size=1000, extensions=[ETags()])
    for number in range(tools):
        server.add_tool(lambda: None, name=f"t{number}", description="x" * 5000)
    server.add_resource("x://a", lambda: "a" * 100_000, name="a")
    server.add_prompt(lambda: "p", name="p")
    return server


class Asking:
    """A client that is scripted, and counts the bytes of the answers."""

    def __init__(self, peer: ScriptedPeer, version: str) -> None:
        self.peer, self.version, self.id = peer, version, 100

    async def ask(self, method: str, etag: Any = None, **params: Any) -> dict[str, Any]:
        self.id += 1
        meta = {} if etag is None else {ETAG: etag}
        if self.version == MODERN:
            meta = {**modern_meta(), **meta}
        answer = await self.peer.request(self.id, method, {**params, "_meta": meta} if meta else params)
        result: dict[str, Any] = answer["result"]
        self.bytes = len(json.dumps(answer, separators=(",", ":")))
        return result


@VERSIONS
async def test_an_unchanged_list_of_two_megabytes_is_two_hundred_bytes(version: str) -> None:
    server = large_server()
    async with raw_client(server) as peer:
        await begin(peer, version)
        client = Asking(peer, version)
        whole = await client.ask("tools/list", "")
        assert client.bytes > 2_000_000
        tag = whole["_meta"][ETAG]
        unchanged = await client.ask("tools/list", tag)
        assert client.bytes <= 220
        assert (unchanged["tools"], unchanged["_meta"][UNCHANGED]) == ([], True)
        server.remove_tool("t0")
        changed = await client.ask("tools/list", tag)
        assert len(changed["tools"]) == 399
        assert changed["_meta"][ETAG] != tag


@VERSIONS
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "x://a"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("prompts/list", {}),
        ("tools/list", {}),
    ],
)
async def test_only_who_asks_has_tags(version: str, method: str, params: dict[str, Any]) -> None:
    async with raw_client(large_server(2)) as peer:
        await begin(peer, version)
        client = Asking(peer, version)
        plain = await client.ask(method, **params)
        assert ETAG not in plain.get("_meta", {})
        for odd in (1, ["a"], {"a": 1}):
            assert ETAG not in (await client.ask(method, odd, **params)).get("_meta", {})
        tagged = await client.ask(method, "of something else", **params)
        tag = tagged["_meta"].pop(ETAG)
        assert {**tagged, "_meta": tagged["_meta"] or None} == {**plain, "_meta": plain.get("_meta")}
        assert (await client.ask(method, tag, **params))["_meta"][UNCHANGED] is True


async def test_tags_are_the_same_at_every_node() -> None:
    tags = []
    for _ in range(2):
        async with raw_client(large_server(3)) as peer:
            tags.append((await Asking(peer, MODERN).ask("tools/list", ""))["_meta"][ETAG])
    assert tags[0] == tags[1]


async def test_callers_that_are_listed_something_else_have_other_tags() -> None:
    server = large_server(1)

    @server.middleware
    async def hide(ctx: Any, call_next: Any) -> Any:
        result = await call_next()
        if ctx.method == "tools/list" and "com.example/less" in ctx.meta:
            result.tools = []
        return result

    async with raw_client(server) as peer:
        client = Asking(peer, MODERN)
        tag = (await client.ask("tools/list", ""))["_meta"][ETAG]
        client.id += 1
        meta = {**modern_meta(), "com.example/less": True, ETAG: tag}
        less = (await peer.request(client.id, "tools/list", {"_meta": meta}))["result"]
        assert (less["tools"], UNCHANGED in less["_meta"]) == ([], False)


# -- with a client of this engine -------------------------------------------------------------------------------------


def bytes_in(client: Client) -> int:
    link = client.tree().link
    assert link is not None
    return link.bytes_in


@ERAS
async def test_a_client_that_asks_again_gets_what_it_has(era: str) -> None:
    async with Client(large_server(), era=era) as client:
        assert ETAGS in (client.server_capabilities.extensions or {})
        for call in (
            lambda: client.list_tools(refresh=True),
            lambda: client.read_resource("x://a", refresh=True),
        ):
            first, before = await call(), bytes_in(client)
            second = await call()
            assert bytes_in(client) - before <= 220
            members = ("tools",) if hasattr(first, "tools") else ("contents",)
            assert [getattr(first, each) for each in members] == [getattr(second, each) for each in members]


@VERSIONS
async def test_an_entry_that_is_changed_in_its_place_has_another_tag(version: str) -> None:
    server = Server("s", extensions=[ETags()])
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    entries = [Tool("t", schema, description="one"), Tool("u", {"type": "object"})]

    @server.middleware
    async def held(ctx: Context, call_next: Any) -> Any:
        result = await call_next()
        return attrs.evolve(result, tools=entries) if ctx.method == "tools/list" else result

    server.add_tool(lambda: None, name="t")
    async with raw_client(server) as peer:
        await begin(peer, version)
        client = Asking(peer, version)
        tags = [(await client.ask("tools/list", ""))["_meta"][ETAG]]
        for change in (
            lambda: setattr(entries[0], "description", "two"),
            lambda: schema["properties"].update(a={"type": "string"}),
            lambda: entries.reverse(),
            lambda: entries.__setitem__(0, Tool("v", {"type": "object"})),
        ):
            assert (await client.ask("tools/list", tags[-1]))["_meta"][UNCHANGED] is True
            change()
            tags.append((await client.ask("tools/list", tags[-1]))["_meta"][ETAG])
    assert len(set(tags)) == len(tags)


@ERAS
async def test_a_watch_of_a_list_that_is_the_same_costs_next_to_nothing(
    era: str, autojump_clock: MockClock
) -> None:
    server = large_server()
    async with Client(server, era=era) as client, client.watch_tools() as tools:
        assert len((await anext(tools)).all) == 400
        before = bytes_in(client)
        server.add_tool(lambda: None, name="more")
        server.remove_tool("more")
        async with client.watch_tools() as others:
            assert len((await anext(others)).all) == 400
        assert bytes_in(client) - before < 2000


async def test_a_client_that_is_content_with_any_answer_asks_for_no_tag() -> None:
    server, seen = large_server(1), []

    @server.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        seen.append(ETAG in ctx.meta)
        return await call_next()

    async with Client(server) as client:
        await client.list_tools()
        await client.read_resource("x://a")
        assert True not in seen


@ERAS
async def test_a_server_without_them_is_asked_for_none(era: str) -> None:
    server, seen = Server("s"), []
    server.add_tool(lambda: None, name="t")

    @server.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        seen.append(ETAG in ctx.meta)
        return await call_next()

    async with Client(server, era=era) as client:
        await client.list_tools(refresh=True)
        assert True not in seen


@ERAS
async def test_a_gateway_has_tags_of_its_own(era: str) -> None:
    gateway = Gateway([Upstream(name="one", target=large_server())], page_size=1000, extensions=[ETags()])
    async with Client(gateway, era=era) as client:
        first = [tool async for tool in client.tools(refresh=True)]
        before = bytes_in(client)
        assert [tool async for tool in client.tools(refresh=True)] == first
        assert bytes_in(client) - before < 4000
