"""Messages to tasks: in order, bounded, at whatever node the function runs, and for as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.errors import CallEnded, InboxUnavailable, Overloaded, RpcError, TaskNotFound
from tests.scripted_peers import MODERN, fail, reply, scripted

from .nodes import FakeShared
from .talking import CORE, EXTENSION, make_server, talking

BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])
MOST = 256
ERA = {CORE: "legacy", EXTENSION: "modern"}


def make_node(shared: FakeShared | None = None, go: trio.Event | None = None) -> Server:
    server = make_server(shared)

    @server.tool(task="optional")
    async def steered(ctx: Context) -> list[Any]:
        assert ctx.inbox.is_open
        taken: list[Any] = []
        async for message in ctx.inbox:
            if message == "stop":
                break
            taken.append(message)
        return taken

    @server.tool(task="optional")
    async def deaf(ctx: Context) -> list[Any]:
        assert go is not None
        await go.wait()
        return list(ctx.inbox.take_all())

    @server.tool(task="optional", restartable=True)
    async def restartable(ctx: Context) -> list[Any]:
        taken = []
        async for message in ctx.inbox:
            taken.append(message)
            if message == "wait":
                await trio.sleep_forever()
            if message == "stop":
                break
        return taken

    return server


def list_of(result: Any) -> Any:
    """What a function returned, which sessions have in an object."""
    value = result["structuredContent"] if isinstance(result, dict) else result.structured_content
    return value["result"] if isinstance(value, dict) else value


@BOTH
async def test_messages_reach_the_function_in_order(version: str, autojump_clock: MockClock) -> None:
    async with Client(make_node(), era=ERA[version]) as client:
        task = await client.start_tool("steered")
        assert task.id is not None
        await task.send({"only": "sources after 2024"})
        for each in range(5):
            await task.send(each)
        await client.task(task.id).send(None)  # of another handle
        await task.send("stop")
        assert list_of(await task.result()) == [{"only": "sources after 2024"}, 0, 1, 2, 3, 4, None]
        with pytest.raises(CallEnded):
            await task.send("late")


@BOTH
async def test_a_function_in_a_thread_has_an_inbox_too(version: str) -> None:
    server = Server("s")
    server.add_tool(in_a_thread, task="optional")
    async with Client(server, era=ERA[version]) as client:
        task = await client.start_tool("in_a_thread")
        for each in (1, 2, "stop"):
            await task.send(each)
        assert list_of(await task.result()) == [1, 2]


def in_a_thread(ctx: Context) -> list[Any]:
    taken: list[Any] = []
    for message in ctx.inbox:
        if message == "stop":
            break
        taken.append(message)
    return taken


@BOTH
async def test_messages_that_wait_are_bounded(version: str, autojump_clock: MockClock) -> None:
    go = trio.Event()
    async with Client(make_node(go=go), era=ERA[version]) as client:
        task = await client.start_tool("deaf")
        for each in range(MOST):
            await task.send(each)
        began = trio.current_time()
        with pytest.raises(Overloaded):
            await task.send("one too many", timeout=5)
        assert 3 <= trio.current_time() - began <= 5
        go.set()
        assert list_of(await task.result()) == list(range(MOST))


@BOTH
async def test_the_bytes_of_messages_that_wait_are_bounded(version: str, autojump_clock: MockClock) -> None:
    go = trio.Event()
    async with Client(make_node(go=go), era=ERA[version]) as client:
        task = await client.start_tool("deaf")
        await task.send("x" * 700_000)
        with pytest.raises(Overloaded):
            await task.send("y" * 700_000, timeout=2)
        go.set()
        assert [each[0] for each in list_of(await task.result())] == ["x"]


@BOTH
async def test_what_the_function_takes_makes_room(version: str, autojump_clock: MockClock) -> None:
    async with Client(make_node(), era=ERA[version]) as client:
        task = await client.start_tool("steered")
        for each in range(3 * MOST):
            await task.send(each)
        await task.send("stop")
        assert list_of(await task.result()) == list(range(3 * MOST))


@asynccontextmanager
async def two_nodes(version: str, **options: Any) -> AsyncIterator[tuple[Any, Any, FakeShared]]:
    shared = FakeShared(**options)
    async with (
        talking(make_node(shared), version) as first,
        talking(make_node(shared), version) as second,
    ):
        yield first, second, shared


@BOTH
@pytest.mark.parametrize("bus_spans", [True, False])
async def test_messages_through_another_node(
    version: str, bus_spans: bool, autojump_clock: MockClock
) -> None:
    async with two_nodes(version, bus_spans=bus_spans) as (first, second, shared):
        id = await first.begin("steered")
        for each in (1, 2, 3, "stop"):
            node = first if each == 2 else second
            assert (await node.result("mcp-actors/tasks/send", {"taskId": id, "message": each})) is not None
        task = await second.until(id)
        assert task["status"] == "completed"
        result = (await second.result("tasks/result", {"taskId": id})) if version == CORE else task["result"]
        assert list_of(result) == [1, 2, 3]
        assert shared.store.records[id].messages == b"[]"
        if version == EXTENSION:
            assert await second.code("mcp-actors/tasks/send", {"taskId": id, "message": 1}) == 410


@BOTH
async def test_the_next_run_has_what_the_one_before_has_not_taken(
    version: str, autojump_clock: MockClock
) -> None:
    shared = FakeShared()
    async with talking(make_node(shared), version) as second:
        async with talking(make_node(shared), version) as first:
            id = await first.begin("restartable")
            for each in (1, "wait", 2):
                await first.result("mcp-actors/tasks/send", {"taskId": id, "message": each})
            await trio.sleep(1)
            node = shared.store.records[id].node
        shared.store.lost.add(node)
        await second.result("mcp-actors/tasks/send", {"taskId": id, "message": "stop"})
        task = await second.until(id)
        result = (await second.result("tasks/result", {"taskId": id})) if version == CORE else task["result"]
        assert list_of(result) == [2, "stop"]


@BOTH
async def test_a_request_that_makes_no_sense(version: str) -> None:
    async with talking(make_node(), version) as talk:
        id = await talk.begin("steered")
        assert await talk.code("mcp-actors/tasks/send", {"taskId": id}) == -32602
        assert await talk.code("mcp-actors/tasks/send", {"taskId": "guessed", "message": 1}) == -32602
        assert await talk.code("mcp-actors/tasks/send", {"message": 1}) == -32602


@BOTH
async def test_a_message_to_no_task(version: str) -> None:
    async with Client(make_node(), era=ERA[version]) as client:
        with pytest.raises(TaskNotFound):
            await client.task("guessed").send(1)


@pytest.mark.parametrize("code", [-32601, -32602])
@pytest.mark.parametrize("revision", [MODERN, CORE])
async def test_a_server_that_takes_no_messages_says_so(
    revision: str, code: int, autojump_clock: MockClock
) -> None:
    """Some official servers answer a method that they do not know with -32602."""
    async with scripted(revision) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            while True:
                request = await peer.receive()
                if request["method"] == "mcp-actors/tasks/send":
                    await fail(peer, request, code)
                else:
                    await reply(peer, request, TASK)

        nursery.start_soon(play)
        with pytest.raises(InboxUnavailable):
            await client.task("t1").send(1)
        nursery.cancel_scope.cancel()


TASK = {
    "resultType": "complete",
    "taskId": "t1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": 60000,
    "ttlMs": 60000,
}


@BOTH
async def test_an_outage_of_the_store_loses_no_message(version: str, autojump_clock: MockClock) -> None:
    async with two_nodes(version) as (first, second, shared):
        id = await first.begin("steered")
        await first.result("mcp-actors/tasks/send", {"taskId": id, "message": 1})
        await wait_all_tasks_blocked()
        shared.store.away = True
        assert await second.code("mcp-actors/tasks/send", {"taskId": id, "message": 2}) != -32602
        shared.store.away = False
        for each in (3, "stop"):
            await second.result("mcp-actors/tasks/send", {"taskId": id, "message": each})
        task = await second.until(id)
        result = (await second.result("tasks/result", {"taskId": id})) if version == CORE else task["result"]
        assert list_of(result) == [1, 3]


async def test_a_call_that_is_no_task_has_ended(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def one() -> int:
        return 1

    async with Client(server, era="modern") as client:
        task = await client.start_tool("one")
        assert task.id is None
        with pytest.raises(CallEnded):
            await task.send(1)
    assert issubclass(CallEnded, RpcError)
