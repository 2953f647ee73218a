"""`ResultSize` and `ResultCache`: how long a result may be, and which one is given again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.auth import BearerToken
from mcp_actors.errors import Overloaded, RpcError
from mcp_actors.middleware import AuditEntry, AuditLog, RateLimit, ResultCache, ResultSize, caller_of
from mcp_actors.testing import raw_client
from mcp_actors.types import (
    Annotations,
    CallToolResult,
    ImageContent,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)
from mcp_transports.http.server import HttpServerTransport

from .callers import served

# ----------------------------------------------------------------------------------------------------

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


# -- size ------------------------------------------------------------------------------------------------------------


def long_server(limit: ResultSize) -> Server:
    server = Server("s")
    server.middleware(limit)

    @server.tool
    async def text(characters: int, of: str = "a") -> str:
        """Returns text."""
        return of * characters

    @server.tool
    async def structured(characters: int) -> dict[str, str]:
        """Returns structured content."""
        return {"text": "a" * characters}

    @server.tool
    async def mixed() -> CallToolResult:
        """Returns more than one block."""
        return CallToolResult(
            [TextContent("short"), ImageContent("A" * 3000, "image/png"), TextContent("ä\n" * 2000)]
        )

    server.add_resource("x://long", lambda: "a" * 5000, name="long")
    return server


@ERAS
async def test_a_result_that_is_too_long_is_an_error(era: str) -> None:
    async with Client(long_server(ResultSize(2000)), era=era) as client:
        assert (await client.call_tool("text", {"characters": 1500})).text == "a" * 1500
        for tool in ("text", "structured"):
            result = await client.call_tool(tool, {"characters": 3000})
            assert result.is_error
            assert "the limit is 2000" in result.text
        with pytest.raises(RpcError, match="the limit is 2000"):
            await client.read_resource("x://long")


@ERAS
@pytest.mark.parametrize("of", ["a", "ä", '"', "\n", "\U0001f600"])
async def test_a_text_is_cut_to_fit(era: str, of: str) -> None:
    async with raw_client(long_server(ResultSize(2000, over="truncate"))) as peer:
        version = "2025-11-25" if era == "legacy" else "2026-07-28"
        if era == "legacy":
            await peer.initialize(version, {})
        prefix = "io.modelcontextprotocol/"
        client = {"name": "c", "version": "1"}
        meta = {
            f"{prefix}protocolVersion": version,
            f"{prefix}clientInfo": client,
            f"{prefix}clientCapabilities": {},
        }
        params = {"name": "text", "arguments": {"characters": 3000, "of": of}}
        if era == "modern":
            params["_meta"] = meta
        answer = await peer.request(1, "tools/call", params)
        content = answer["result"]["content"]
    assert len(json.dumps(content, ensure_ascii=False).encode()) <= 2000
    assert len(content[0]["text"].encode()) > 700
    assert content[0]["text"] == of * len(content[0]["text"])
    assert content[1]["text"].startswith("[cut: the result has")
    assert not answer["result"].get("isError")


async def test_blocks_that_do_not_fit_are_left_out_and_schemas_are_kept() -> None:
    async with Client(long_server(ResultSize(2000, over="truncate"))) as client:
        result = await client.call_tool("mixed")
        assert [type(block) for block in result.content] == [TextContent] * 3
        assert "1 blocks are left out" in result.content[-1].text  # type: ignore[union-attr]
        assert (await client.call_tool("structured", {"characters": 3000})).is_error


@pytest.mark.parametrize("more", [{}, {"meta": {"a": "b" * 3000}}])
async def test_a_text_that_is_cut_stays_for_whom_it_was(more: Any) -> None:
    server = Server("s")
    server.middleware(ResultSize(2000, over="truncate"))

    @server.tool
    async def noted() -> CallToolResult:
        annotations = Annotations(audience=["user"])
        return CallToolResult([TextContent("a" * 3000, annotations=annotations, **more), TextContent("b")])

    async with Client(server) as client:
        result = await client.call_tool("noted")
    assert len(result.text) < 2000
    whole = [block for block in result.content if isinstance(block, TextContent) and "a" * 100 in block.text]
    assert [block.annotations for block in whole] == ([] if more else [Annotations(audience=["user"])])


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1024"):
        ResultSize(10)
    with pytest.raises(ValueError, match="truncate"):
        ResultSize(5000, over="cut")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        ResultCache(max_bytes=0)


# -- the cache -------------------------------------------------------------------------------------------------------


class Reads:
    """A server with a resource, and how often it was read by whom."""

    def __init__(self, cache: ResultCache, ttl_ms: int = 10_000, scope: Any = "private") -> None:
        self.server = Server("s", ttl_ms=ttl_ms, cache_scope=scope)
        self.server.middleware(cache)
        self.seen: list[str] = []
        self.length = 10

        @self.server.resource("x://{name}", name="some")
        async def read(name: str, ctx: Context) -> str:
            self.seen.append(name)
            return f"{name} {len(self.seen)} " + "a" * self.length

        @self.server.resource("y://own", name="own")
        async def own() -> ReadResourceResult:
            self.seen.append("own")
            return ReadResourceResult(
                [TextResourceContents("y://own", "text")], ttl_ms=60_000, cache_scope="public"
            )


@ERAS
async def test_a_result_is_given_again_until_its_time_is_over(era: str, autojump_clock: Any) -> None:
    cache = ResultCache()
    reads = Reads(cache)
    async with served(reads.server) as at, at.client("ann", era=era) as ann:
        first = await ann.read_resource("x://1", refresh=True)
        await trio.sleep(4)
        again = await ann.read_resource("x://1", refresh=True)
        assert again.contents == first.contents
        if era == "modern":
            assert first.ttl_ms == 10_000
            assert again.ttl_ms == 6_000
        await ann.read_resource("x://2", refresh=True)
        await trio.sleep(7)
        await ann.read_resource("x://1", refresh=True)
    assert reads.seen == ["1", "2", "1"]
    assert cache.hits == 1


async def test_private_results_are_for_one_principal_and_its_scopes(autojump_clock: Any) -> None:
    cache = ResultCache()
    reads = Reads(cache)
    async with served(reads.server) as at:
        for name, scopes in (
            ("ann", []),
            ("bob", []),
            ("ann", []),
            ("ann", ["more"]),
            (None, []),
            (None, []),
        ):
            async with at.client(name, scopes=scopes) as client:
                await client.read_resource("x://1")
    assert len(reads.seen) == 5
    assert cache.hits == 1


async def test_public_results_are_for_everybody(autojump_clock: Any) -> None:
    reads = Reads(ResultCache(), ttl_ms=0)
    async with served(reads.server) as at:
        for name in ("ann", "bob", None):
            async with at.client(name) as client:
                await client.read_resource("y://own")
                await client.read_resource("x://1")
    assert reads.seen == ["own", "1", "1", "1"]


async def test_a_change_makes_it_old_also_while_it_is_made(autojump_clock: Any) -> None:
    cache = ResultCache()
    reads = Reads(cache)
    server = reads.server
    async with served(server) as at, at.client("ann", era="legacy") as ann:
        await ann.read_resource("x://1")
        server.resource_updated("x://1")
        await ann.read_resource("x://1")
        assert reads.seen == ["1", "1"]
        await ann.list_resources()
        server.add_resource("z://new", lambda: "x", name="new")
        assert {each.name for each in (await ann.list_resources()).resources} == {"own", "new"}


async def test_it_is_bounded_by_bytes_and_by_number(autojump_clock: Any) -> None:
    cache = ResultCache(max_bytes=3000, max_entries=4)
    reads = Reads(cache)
    async with served(reads.server) as at, at.client("ann", era="legacy") as ann:
        for number in range(10):
            await ann.read_resource(f"x://{number}")
            assert len(cache) <= 4
            assert cache.held <= 3000
        reads.length = 4000
        await ann.read_resource("x://long")
        assert cache.held <= 3000
        await trio.sleep(11)
        reads.length = 10
        for number in range(4):
            await ann.read_resource(f"x://new{number}")
        assert len(cache) == 4
        cache.clear()
        assert (len(cache), cache.held) == (0, 0)


async def test_failures_are_not_kept() -> None:
    cache = ResultCache()
    reads = Reads(cache)
    async with served(reads.server) as at, at.client("ann") as ann:
        for _ in range(2):
            with pytest.raises(RpcError):
                await ann.read_resource("nothing://there")
    assert len(cache) == 0


# -- Callers over HTTP: by principal, or by address, and never by a session that anybody may open --------


@asynccontextmanager
async def at_url(server: Server, **options: Any) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        transport = HttpServerTransport("http://127.0.0.1:0/mcp", **options)
        (url,) = await nursery.start(server.serve, transport)
        yield str(url)
        nursery.cancel_scope.cancel()


def make_server(*middleware: Any) -> Server:
    server = Server("s")
    for each in middleware:
        server.middleware(each)

    @server.tool
    async def who(ctx: Context) -> str:
        """Says who calls."""
        return caller_of(ctx)

    return server


async def call_often(client: Client) -> None:
    for _ in range(10):
        await client.call_tool("who")


@ERAS
async def test_without_a_principal_all_sessions_of_an_address_are_one_caller(era: str) -> None:
    limit = RateLimit(0.001, burst=4)
    async with at_url(make_server(limit)) as url:
        for _ in range(2):
            async with Client(url, era=era) as client:
                assert (await client.call_tool("who")).text == "127.0.0.1"
        assert len(limit) == 1
        async with Client(url, era="legacy") as client:
            with pytest.raises(Overloaded) as refused:
                await call_often(client)
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 100


@ERAS
async def test_each_principal_is_a_caller(era: str) -> None:
    entries: list[AuditEntry] = []
    limit = RateLimit(0.001, burst=2)

    def authenticate(request: Any) -> str:
        return str(request.headers["authorization"].removeprefix("Bearer "))

    async with at_url(make_server(AuditLog(entries.append), limit), authenticate=authenticate) as url:
        for name in ("ann", "bob"):
            async with Client(url, era=era, auth=BearerToken(name)) as client:
                assert (await client.call_tool("who")).text == f"principal {name}"
                with pytest.raises(Overloaded):
                    await call_often(client)
    assert len(limit) == 2
    assert {entry.principal for entry in entries} == {"ann", "bob"}
    assert {entry.ending for entry in entries} == {"answered", "error 429"}
