"""Large results: their beginning is sent, and their caller alone reads what is kept, for a while, within a weight."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.auth import BearerToken, Principal, ResourceServer, StaticVerifier
from mcp_actors.errors import LocalProtocolError, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.middleware import Spill
from mcp_actors.middleware.spill import _PAGE
from mcp_actors.shared import MemoryShared, shared_state
from mcp_actors.shared.memory import MemoryState, MemoryValueStore
from mcp_actors.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from mcp_transports.http.server import HttpServerTransport
from tests.redis_server import RedisServer

ERAS = ["2024-11-05", "2025-11-25", "2026-07-28"]
LINES = [f"line {number}: {'needle' if number % 1000 == 7 else 'straw'} ü" for number in range(5000)]
TEXT = "\n".join(LINES)
RANGES = [(0, 10), (_PAGE - 5, 10), (_PAGE, 1), (len(TEXT) - 3, 100), (100, 2500)]
IMAGE = base64.b64encode(bytes(range(256)) * 400).decode()


def tools_of(server: Server) -> Server:
    @server.tool
    async def book() -> str:
        return TEXT

    @server.tool
    async def word() -> str:
        return "short"

    @server.tool
    async def picture() -> list[Any]:
        return [TextContent("a picture"), ImageContent(IMAGE, "image/png")]

    @server.tool
    async def table() -> dict[str, list[int]]:
        return {"rows": list(range(5000))}

    @server.tool
    async def archive() -> CallToolResult:
        contents = BlobResourceContents("file:///a.zip", IMAGE, "application/zip")
        return CallToolResult([EmbeddedResource(contents)])

    return server


def spilling(**options: Any) -> Server:
    server = Server("spilling", **options)
    server.middleware(Spill(above=10_000, head=100))
    return tools_of(server)


def uri_in(result: CallToolResult) -> str:
    found = re.search(r"spill://[\w-]+", str(result.content))
    assert found is not None
    return found[0]


@pytest.mark.parametrize("version", ERAS)
async def test_a_large_text_becomes_its_beginning_and_a_link(version: str) -> None:
    async with Client(spilling(versions=[version])) as client:
        result = await client.call_tool("book")
        assert not result.is_error
        assert result.content[0].text.startswith(TEXT[:100] + "\n[")
        assert f"{len(TEXT) - 100} more characters of {len(TEXT)}" in result.content[0].text
        (read,) = (await client.read_resource(uri_in(result))).contents
        assert read.text == TEXT
        assert (await client.call_tool("word")).text == "short"


async def test_the_link_says_the_size_and_the_kind() -> None:
    async with Client(spilling()) as client:
        text, link = (await client.call_tool("book")).content
    assert isinstance(text, TextContent)
    assert isinstance(link, ResourceLink)
    assert (link.name, link.mime_type, link.size) == ("result of book", "text/plain", len(TEXT.encode()))


@pytest.mark.parametrize(("offset", "length"), RANGES)
async def test_a_range_is_read(offset: int, length: int) -> None:
    async with Client(spilling()) as client:
        uri = uri_in(await client.call_tool("book"))
        text = (await client.call_tool("spill_read", {"uri": uri, "offset": offset, "length": length})).text
        part = TEXT[offset : offset + length]
        left = len(TEXT) - offset - len(part)
        more = f"\n[{left} more characters from {offset + len(part)} on]" if left else ""
        assert text == part + more
        past = await client.call_tool("spill_read", {"uri": uri, "offset": len(TEXT)})
        assert past.text == f"[{uri} has {len(TEXT)} characters]"


async def test_all_of_it_is_read_in_pages() -> None:
    async with Client(spilling()) as client:
        uri, read = uri_in(await client.call_tool("book")), ""
        while len(read) < len(TEXT):
            page = (await client.call_tool("spill_read", {"uri": uri, "offset": len(read)})).text
            read += re.sub(r"\n\[\d+ more characters from \d+ on\]$", "", page)
    assert read == TEXT


async def test_lines_are_found_with_their_offsets_whatever_the_case() -> None:
    async with Client(spilling()) as client:
        uri = uri_in(await client.call_tool("book"))
        found = (await client.call_tool("spill_search", {"uri": uri, "text": "NEEDLE"})).text.splitlines()
        assert [each.split(": ", 1)[1] for each in found] == [each for each in LINES if "needle" in each]
        for each in found:
            offset, line = each.split(": ", 1)
            assert TEXT[int(offset) :].startswith(line)
        many = (await client.call_tool("spill_search", {"uri": uri, "text": "straw"})).text.splitlines()
        assert (len(many), many[-1]) == (101, "[more lines contain it: search for more of the text]")
        assert (
            await client.call_tool("spill_search", {"uri": uri, "text": "gold"})
        ).text == "no line contains 'gold'"


async def test_what_is_no_text_becomes_a_link_that_is_read_as_it_was() -> None:
    async with Client(spilling()) as client:
        for tool, kind in (("picture", "image/png"), ("archive", "application/zip")):
            result = await client.call_tool(tool)
            link = result.content[-1]
            assert isinstance(link, ResourceLink)
            assert (link.mime_type, link.size) == (kind, 256 * 400)
            (read,) = (await client.read_resource(link.uri)).contents
            assert read.to_bytes() == bytes(range(256)) * 400
            refused = await client.call_tool("spill_read", {"uri": link.uri})
            assert refused.is_error


async def test_a_structure_is_kept_as_json_and_its_schema_does_not_bind_the_rest() -> None:
    async with Client(spilling()) as client:
        result = await client.call_tool("table")
        assert result.is_error
        (read,) = (await client.read_resource(uri_in(result))).contents
    assert read.text.startswith('{"rows":[0,1,2')
    assert read.text.endswith("4999]}")


async def test_what_was_kept_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("short")
    server.middleware(Spill(above=10_000, head=100, keep=60))
    now = [1000.0]
    monkeypatch.setattr("mcp_actors.middleware.spill.time.time", lambda: now[0])
    async with Client(tools_of(server)) as client:
        uri = uri_in(await client.call_tool("book"))
        now[0] += 59
        assert not (await client.call_tool("spill_read", {"uri": uri})).is_error
        now[0] += 2
        assert "call the tool again" in (await client.call_tool("spill_read", {"uri": uri})).text
        with pytest.raises(RpcError):
            await client.read_resource(uri)


async def test_the_oldest_makes_room_and_one_that_is_too_large_is_kept_in_part() -> None:
    server = Server("full")
    server.middleware(Spill(above=10_000, head=100, weight=len(TEXT.encode()) + 50_000))
    other = Server("tiny")
    other.middleware(Spill(above=10_000, head=100, weight=2 * _PAGE + 100))
    async with Client(tools_of(server)) as client:
        first, second = [uri_in(await client.call_tool("book")) for _ in range(2)]
        assert (await client.call_tool("spill_read", {"uri": first})).is_error
        assert not (await client.call_tool("spill_read", {"uri": second})).is_error
    async with Client(tools_of(other)) as client:
        result = await client.call_tool("book")
        assert re.search(r"of it the first \d+ are kept", result.content[0].text)
        (read,) = (await client.read_resource(uri_in(result))).contents
        assert TEXT.startswith(read.text)
        assert len(read.text) % _PAGE == 0


async def test_nobody_else_reads_it() -> None:
    people = {f"{name}-token": Principal(name, issuer="https://login.example") for name in ("ann", "bob")}
    server = spilling()
    async with trio.open_nursery() as nursery:
        settings = ResourceServer(
            resource="http://127.0.0.1/mcp", issuer="https://login.example", verifier=StaticVerifier(people)
        )
        (url,) = await nursery.start(
            server.serve, HttpServerTransport("http://127.0.0.1:0/mcp", auth=settings)
        )
        async with (
            Client(url, auth=BearerToken("ann-token")) as ann,
            Client(url, auth=BearerToken("bob-token")) as bob,
        ):
            uri = uri_in(await ann.call_tool("book"))
            assert not (await ann.call_tool("spill_read", {"uri": uri})).is_error
            assert (await bob.call_tool("spill_read", {"uri": uri})).is_error
            assert (await bob.call_tool("spill_search", {"uri": uri, "text": "needle"})).is_error
            with pytest.raises(RpcError):
                await bob.read_resource(uri)
        async with Client(url, auth=BearerToken("ann-token")) as again:
            assert not (await again.call_tool("spill_read", {"uri": uri})).is_error
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_another_node_reads_it_for_its_caller(kind: str) -> None:
    people = {f"{name}-token": Principal(name, issuer="https://login.example") for name in ("ann", "bob")}
    with ExitStack() as stack:
        shared: Any = MemoryShared()
        if kind == "redis":
            shared = shared_state(stack.enter_context(RedisServer()).url)
        urls = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                settings = ResourceServer(
                    resource="http://127.0.0.1/mcp",
                    issuer="https://login.example",
                    verifier=StaticVerifier(people),
                )
                transport = HttpServerTransport("http://127.0.0.1:0/mcp", auth=settings)
                urls += await nursery.start(spilling(shared=shared).serve, transport)
            async with Client(urls[0], auth=BearerToken("ann-token")) as ann:
                uri = uri_in(await ann.call_tool("book"))
            async with Client(urls[1], auth=BearerToken("ann-token")) as ann:
                (read,) = (await ann.read_resource(uri)).contents
                found = await ann.call_tool("spill_search", {"uri": uri, "text": "needle"})
            async with Client(urls[1], auth=BearerToken("bob-token")) as bob:
                refused = await bob.call_tool("spill_read", {"uri": uri})
            nursery.cancel_scope.cancel()
    assert read.text == TEXT
    assert found.text.count("needle") == 5
    assert refused.is_error


async def test_a_gateway_keeps_the_results_of_servers_of_others() -> None:
    gateway = Gateway([Upstream(name="back", target=tools_of(Server("back")))], name="front")
    gateway.middleware(Spill(above=10_000, head=100))
    async with Client(gateway) as client:
        name = next(each.name for each in (await client.list_tools()).tools if each.name.endswith("book"))
        result = await client.call_tool(name)
        uri = uri_in(result)
        assert (await client.call_tool("spill_read", {"uri": uri, "length": 20})).text.startswith(TEXT[:20])
        (read,) = (await client.read_resource(uri)).contents
    assert read.text == TEXT


class PoorShared(MemoryShared):
    """A state with little room."""

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[MemoryState]:
        yield MemoryState(None, time.time, MemoryValueStore(max_bytes=1000))


async def test_a_store_without_room_sends_the_beginning_and_says_so() -> None:
    server = Server("poor", shared=PoorShared())
    server.middleware(Spill(above=10_000, head=100))
    async with Client(tools_of(server)) as client:
        result = await client.call_tool("book")
    assert result.text == f"{TEXT[:100]}\n[{len(TEXT) - 100} more characters could not be kept: ask for less]"


def test_a_server_that_has_such_a_tool_is_refused() -> None:
    server = Server("taken")
    server.add_tool(lambda: None, name="spill_read")
    with pytest.raises(LocalProtocolError, match="spill_read"):
        server.middleware(Spill())


@pytest.mark.parametrize(
    "wrong", [{"above": 10}, {"head": 70_000}, {"keep": 0}, {"weight": 10}, {"above": 1.5}]
)
def test_numbers_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Spill\("):
        Spill(**wrong)
