"""`ResultCache` between callers, servers and event loops: who is given what was made for another call."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.errors import RpcError
from mcp_actors.middleware import ResultCache
from mcp_actors.server import CallNext
from mcp_actors.types import ElicitResult, ListToolsResult, ReadResourceResult, TextResourceContents

from .callers import served

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


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

    async with served(server) as at, at.client("ann", era="legacy") as ann:
        with trio.move_on_after(0.5):
            await ann.read_resource("x://1")
        await trio.sleep(1)
        assert (len(reads), len(cache)) == (1, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ann.read_resource, "x://1")
        assert (len(reads), len(cache)) == (4, 1)
        await ann.read_resource("x://1", refresh=True)
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
