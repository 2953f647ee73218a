"""``ctx.user_state``: what is kept for a caller over calls, sessions and nodes, and never seen by another one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.abc import SharedState
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.supervision.principal import Principal
from tests.redis_server import RedisServer
from tests.server.test_access import Authenticating

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)
ANN, BOB = Principal("ann"), Principal("bob")


def make_server(shared: SharedState | None = None, name: str = "notes") -> Server:
    server = Server(name, shared=shared, mask_errors=False)

    @server.tool
    async def put(key: str, value: Any, ctx: Context, ttl: float | None = None) -> None:
        await ctx.user_state.set(key, value, ttl=ttl)

    @server.tool
    async def get(key: str, ctx: Context) -> Any:
        return await ctx.user_state.get(key, "nothing")

    @server.tool
    async def drop(key: str, ctx: Context) -> bool:
        return await ctx.user_state.delete(key)

    @server.tool
    async def count(ctx: Context) -> int:
        result: int = await ctx.user_state.update("count", lambda number: number + 1, 0)
        return result

    @server.tool
    def count_in_thread(ctx: SyncContext) -> int:
        ctx.user_state.set("seen", True)
        assert ctx.user_state.get("seen")
        assert ctx.user_state.delete("seen")
        result: int = ctx.user_state.update("count", lambda number: number + 1, 0)
        return result

    return server


@asynccontextmanager
async def client_of(server: Server, principal: Principal | None, era: str) -> AsyncIterator[Client]:
    transport = Authenticating(principal)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport, era=era) as client:
            yield client
        nursery.cancel_scope.cancel()


async def value(client: Client, tool: str, **arguments: Any) -> Any:
    found = await client.call_tool(tool, arguments, returns=Any)
    # Revisions without other structured content than objects have it in one.
    return found["result"] if isinstance(found, dict) and "result" in found else found


@EACH_ERA
async def test_it_belongs_to_the_caller_and_to_no_other(era: str) -> None:
    server = make_server()
    async with client_of(server, ANN, era) as ann, client_of(server, BOB, era) as bob:
        await ann.call_tool("put", {"key": "city", "value": {"name": "Bern"}})
        assert await value(ann, "get", key="city") == {"name": "Bern"}
        assert await value(bob, "get", key="city") == "nothing"
        assert await value(bob, "drop", key="city") is False
        assert await value(ann, "drop", key="city") is True
        assert await value(ann, "get", key="city") == "nothing"
        assert [await value(each, "count") for each in (ann, ann, bob)] == [1, 2, 1]
        assert await value(ann, "count_in_thread") == 3
    async with client_of(server, ANN, era) as ann:
        assert await value(ann, "count") == 4


async def test_the_same_subject_of_another_issuer_is_another_caller() -> None:
    server = make_server()
    others = [ANN, Principal("ann", issuer="https://a.example"), Principal("ann", client="c")]
    for each in others:
        async with client_of(server, each, ERAS[1]) as client:
            assert await value(client, "count") == 1


@EACH_ERA
async def test_without_a_caller_it_is_that_of_the_session(era: str) -> None:
    server = make_server()
    async with client_of(server, None, era) as client:
        assert [await value(client, "count") for _ in range(2)] == [1, 2]
        assert await value(client, "count_in_thread") == 3
    async with client_of(server, None, era) as client:
        assert await value(client, "count") == 1


async def test_without_caller_and_session_an_error_says_so() -> None:
    server = make_server()
    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
        async with Client(url, era=ERAS[1]) as client:
            result = await client.call_tool("count")
        assert result.is_error
        assert "ctx.user_state belongs to a caller, and nothing is known of this one" in result.text
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_two_nodes_have_it_in_common_and_lose_no_change(
    kind: str, tmp_path: Path, redis: RedisServer
) -> None:
    makers: dict[str, Callable[[], SharedState]] = {
        "sqlite": lambda: SqliteShared(tmp_path / "state.db", timeout=30),
        "redis": lambda: RedisShared(redis.url, timeout=30, prefix=tmp_path.name),
    }
    in_memory = MemoryShared()
    make = makers.get(kind, lambda: in_memory)
    async with (
        client_of(make_server(make()), ANN, ERAS[1]) as one,
        client_of(make_server(make()), ANN, ERAS[1]) as other,
        client_of(make_server(make(), "other"), ANN, ERAS[1]) as elsewhere,
    ):
        await one.call_tool("put", {"key": "city", "value": "Bern"})
        assert await value(other, "get", key="city") == "Bern"
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon((one, other)[number % 2].call_tool, "count")
        assert await value(one, "count") == 11
        assert await value(elsewhere, "get", key="city") == "nothing"


async def test_a_mounted_server_has_its_own() -> None:
    host, mounted = make_server(), make_server(name="mounted")
    host.mount("m", mounted)
    async with client_of(host, ANN, ERAS[1]) as client:
        await client.call_tool("put", {"key": "a", "value": 1})
        assert await value(client, "m_get", key="a") == "nothing"
        assert await value(client, "m_count") == 1
        assert await value(client, "get", key="count") == "nothing"


async def test_a_value_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.time()
    monkeypatch.setattr(time, "time", lambda: begin)
    async with client_of(make_server(), ANN, ERAS[1]) as client:
        await client.call_tool("put", {"key": "short", "value": 1, "ttl": 60})
        await client.call_tool("put", {"key": "long", "value": 2})
        monkeypatch.setattr(time, "time", lambda: begin + 61)
        assert await value(client, "get", key="short") == "nothing"
        assert await value(client, "get", key="long") == 2
        monkeypatch.setattr(time, "time", lambda: begin + 31 * 86400)
        assert await value(client, "get", key="long") == "nothing"


async def test_it_is_bounded_for_each_user() -> None:
    async with client_of(make_server(), ANN, ERAS[1]) as client:
        too_long = await client.call_tool("put", {"key": "k", "value": "x" * 64 * 1024})
        assert "the limits are 256 and 65536" in too_long.text
        assert await value(client, "get", key="k") == "nothing"
        for number in range(256):
            await client.call_tool("put", {"key": str(number), "value": number})
        too_many = await client.call_tool("put", {"key": "one more", "value": 0})
        assert "would have 257 keys" in too_many.text
        await client.call_tool("drop", {"key": "0"})
        assert not (await client.call_tool("put", {"key": "one more", "value": 0})).is_error
        for key, ttl in (("k" * 201, None), ("k", 0)):
            assert (await client.call_tool("put", {"key": key, "value": 0, "ttl": ttl})).is_error


async def test_memory_takes_so_many_users_and_bytes_and_forgets_what_is_over() -> None:
    now = 0.0
    store = MemoryValueStore(max_values=2, max_bytes=2_000, clock=lambda: now)
    assert await store.replace("a", None, b"x", 10)
    assert await store.replace("b", None, b"x", 20)
    with pytest.raises(SharedStateUnavailable, match="2 values are kept"):
        await store.replace("c", None, b"x", 10)
    now = 11.0
    assert await store.replace("c", None, b"x", 10)
    assert await store.load("a") is None
    with pytest.raises(SharedStateUnavailable):
        await store.replace("b", b"x", b"x" * 2_000, 10)
    assert await store.load("b") == b"x"
    assert await store.replace("b", b"x", None, 10)
    assert await store.replace("c", b"x", b"x" * 1_500, 10)


async def test_what_another_program_has_written_counts_as_nothing() -> None:
    shared = MemoryShared()
    async with client_of(make_server(shared), ANN, ERAS[1]) as client:
        async with shared.open("notes") as state:
            await state.values.replace('["notes","ann"]', None, b"garbage", 60)
        assert await value(client, "get", key="a") == "nothing"
        assert await value(client, "count") == 1
