"""`ResultCache` and `ResultSize`: which result is given again, to whom, and how long one may be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.auth import BearerToken
from mcp_actors.errors import Overloaded, RpcError
from mcp_actors.middleware import AuditEntry, AuditLog, RateLimit, ResultCache, ResultSize, caller_of
from mcp_actors.server import CallNext
from mcp_actors.testing import raw_client
from mcp_actors.types import (
    Annotations,
    CallToolResult,
    ElicitResult,
    ImageContent,
    ListToolsResult,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)
from mcp_transports.http.server import HttpServerTransport

from .callers import served

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


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


def texts(result: ReadResourceResult) -> str:
    (contents,) = result.contents
    assert isinstance(contents, TextResourceContents)
    return contents.text


def server_of(cache: ResultCache, name: str, **options: Any) -> Server:
    """A server whose one resource says the name of the server, and how often it was read."""
    server, reads = Server("s", ttl_ms=60_000, **options), []
    server.middleware(cache)

    @server.resource("x://1", name="one")
    async def one() -> str:
        reads.append(1)
        return f"{name} {len(reads)}"

    return server


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


# -- between callers, servers and event loops ------------------------------------------------------------------------


@ERAS
async def test_middleware_round_it_sees_the_same_kind_of_result_on_a_hit(era: str) -> None:
    """A filter of rights that looks for a class would let everything pass that comes from memory as another one."""
    server, cache = Server("s", ttl_ms=60_000, cache_scope="public"), ResultCache()

    @server.middleware
    async def without_hidden(ctx: Context, call_next: CallNext) -> Any:
        result = await call_next()
        if isinstance(result, ListToolsResult):
            return ListToolsResult([tool for tool in result.tools if tool.name != "hidden"])
        return result

    server.middleware(cache)
    for name in ("shown", "hidden"):
        server.add_tool(lambda: "x", name=name, description="A tool.")
    for _ in range(2):
        async with Client(server, era=era) as client:
            assert [tool.name for tool in (await client.list_tools(refresh=True)).tools] == ["shown"]
    async with Client(server, era=era) as client:
        await client.list_tools(refresh=True)
        await client.list_tools(refresh=True)
    assert cache.hits > 0


@ERAS
async def test_what_is_kept_comes_back_as_it_was(era: str) -> None:
    server, cache = Server("s", ttl_ms=60_000), ResultCache()
    server.middleware(cache)

    @server.resource("y://own", name="own", mime_type="text/plain")
    async def own() -> ReadResourceResult:
        contents = [TextResourceContents("y://own", "ä\ntext", mime_type="text/plain", meta={"a": [1]})]
        return ReadResourceResult(contents, ttl_ms=60_000, meta={"b": {"c": None}}, extra={"acme": 1})

    async with served(server) as at, at.client("ann", era=era) as ann:
        first = await ann.read_resource("y://own", refresh=True)
        again = await ann.read_resource("y://own", refresh=True)
    assert cache.hits == 1
    assert (again.contents, again.extra) == (first.contents, first.extra)
    assert (again.meta or {}).get("b") == (first.meta or {}).get("b") == {"c": None}


async def test_one_cache_of_two_servers_gives_neither_what_the_other_one_said() -> None:
    cache = ResultCache()
    one, other = (server_of(cache, name, cache_scope="public") for name in ("one", "other"))
    async with Client(one) as of_one, Client(other) as of_other:
        assert texts(await of_one.read_resource("x://1")) == "one 1"
        assert texts(await of_other.read_resource("x://1")) == "other 1"


async def test_a_session_is_not_given_what_was_for_one_of_the_same_name() -> None:
    """The numbers of sessions begin anew when a server that has ended is served again."""
    server = server_of(ResultCache(), "s")
    for reads in (1, 2):
        async with Client(server, era="legacy") as client:
            assert texts(await client.read_resource("x://1")) == f"s {reads}"


def test_nothing_outlives_its_time_in_another_event_loop() -> None:
    """Each event loop of Trio has a clock with a beginning of its own."""
    server = server_of(ResultCache(), "s", cache_scope="public")

    async def read() -> str:
        async with Client(server, era="legacy") as client:
            return texts(await client.read_resource("x://1"))

    assert trio.run(read, clock=trio.testing.MockClock(rate=1)) == "s 1"
    assert trio.run(read, clock=trio.testing.MockClock(rate=1)) == "s 2"


async def test_principals_with_other_claims_are_told_apart(autojump_clock: Any) -> None:
    """The token of another tenant for the same user is another authorization; a renewed one is not."""
    cache = ResultCache()
    server = Server("s", ttl_ms=60_000)
    server.middleware(cache)

    @server.resource("x://1", name="one")
    async def one(ctx: Context) -> str:
        assert ctx.principal is not None
        return str(ctx.principal.claims.get("tenant"))

    async with served(server) as at:
        for claims in ({"tenant": "a", "exp": 1}, {"tenant": "b", "exp": 1}, {"tenant": "a", "exp": 2}):
            async with at.client("ann", claims=claims) as ann:
                assert texts(await ann.read_resource("x://1")) == claims["tenant"]
        assert cache.hits == 1
        for _ in range(2):
            async with at.client("ann", claims={"tenant": object()}) as ann:
                await ann.read_resource("x://1")
    assert cache.hits == 1


@pytest.mark.parametrize("action", ["accept", "decline"])
@ERAS
async def test_what_follows_from_an_answer_of_the_client_is_not_kept(era: str, action: Any) -> None:
    cache, asked = ResultCache(), []
    server = Server("s", ttl_ms=60_000, cache_scope="public")
    server.middleware(cache)

    @server.resource("x://1", name="one")
    async def one(ctx: Context) -> str:
        return (await ctx.elicit("Name?", FORM, key="name")).action

    async def answered(question: Any) -> ElicitResult:
        asked.append(question)
        return ElicitResult(action, {"name": "x"} if action == "accept" else None)

    async with served(server) as at:
        for name in ("ann", "bob"):
            async with at.client(name, era=era, elicitation=answered) as client:
                assert texts(await client.read_resource("x://1")) == action
    assert len(asked) == 2
    assert len(cache) <= 1  # the discovery


async def test_a_resource_that_is_gone_is_not_given_any_more() -> None:
    server = server_of(ResultCache(), "s")
    async with Client(server, era="legacy") as client:
        await client.read_resource("x://1")
        server.resources.remove("x://1")
        with pytest.raises(RpcError):
            await client.read_resource("x://1", refresh=True)


@pytest.mark.parametrize("ttl", [pytest.param(10**400, id="huge"), 0, float("nan")])
async def test_no_time_to_live_that_a_function_says_fails_its_call(ttl: Any, autojump_clock: Any) -> None:
    server, cache, reads = Server("s"), ResultCache(), []
    server.middleware(cache)

    @server.resource("y://own", name="own")
    async def own() -> ReadResourceResult:
        reads.append(1)
        return ReadResourceResult([TextResourceContents("y://own", "text")], ttl_ms=ttl)

    async with served(server) as at, at.client("ann", era="legacy") as ann:
        for _ in range(2):
            await ann.read_resource("y://own", refresh=True)
        assert len(reads) == (1 if ttl > 0 else 2)
        await trio.sleep(25 * 3600)
        await ann.read_resource("y://own", refresh=True)
    assert len(reads) == (2 if ttl > 0 else 3)


async def test_each_of_those_that_miss_at_once_makes_its_own_and_a_cancelled_one_keeps_nothing(
    autojump_clock: Any,
) -> None:
    server, cache, reads = Server("s", ttl_ms=60_000), ResultCache(), []
    server.middleware(cache)

    @server.resource("x://1", name="one")
    async def one() -> str:
        reads.append(1)
        await trio.sleep(1)
        return "text"

    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(served(server))
        # What one client asks for at once is one request.
        clients = [await stack.enter_async_context(at.client("ann", era="legacy")) for _ in range(3)]
        with trio.move_on_after(0.5):
            await clients[0].read_resource("x://1")
        await trio.sleep(1)
        assert (len(reads), len(cache)) == (1, 0)
        async with trio.open_nursery() as nursery:
            for each in clients:
                nursery.start_soon(each.read_resource, "x://1")
        assert (len(reads), len(cache)) == (4, 1)
        await clients[0].read_resource("x://1", refresh=True)
    assert (len(reads), cache.hits) == (4, 1)


async def test_what_callers_ask_for_counts_by_its_bytes() -> None:
    cache = ResultCache(max_bytes=20_000)
    server = Server("s", ttl_ms=60_000)
    server.middleware(cache)
    server.add_resource("x://{name}", lambda name: "a", name="some")
    async with served(server) as at, at.client("ann", era="legacy") as ann:
        for number in range(5):
            await ann.read_resource(f"x://{number}" + "\U0001f600" * 1500)
            assert cache.held <= 20_000
    assert len(cache) <= 3


# -- how long a result may be ----------------------------------------------------------------------------------------


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


# -- callers over HTTP: by principal, or by address, and never by a session, which anybody may open ------------------


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
