"""What tasks are in both dialects: created, looked at, ended; seen from the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Context, RpcError, Server, ToolError
from mcp_actors.abc import SharedState
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.tasks import Tasks
from mcp_actors.testing import ScriptedPeer

from .nodes import FakeShared
from .talking import CORE, EXTENSION, Talk, make_server, talking

pytestmark = pytest.mark.parametrize("version", [CORE, EXTENSION])


def with_tools(server: Server) -> Server:
    @server.tool(task="optional")
    async def add(a: int, b: int) -> int:
        await trio.sleep(3)
        return a + b

    @server.tool(task="optional")
    def blocking(word: str) -> str:
        return word * 2

    @server.tool(task="required")
    async def refuse() -> str:
        raise ToolError("not today")

    @server.tool(task="required")
    async def protest() -> str:
        raise RpcError(-32099, "a protocol error", {"why": 1})

    @server.tool(task="required")
    async def crash() -> str:
        raise SystemExit(3)

    @server.tool(task="optional")
    async def forever() -> str:
        await trio.sleep_forever()
        return "never"

    @server.tool
    async def plain() -> str:
        return "plain"

    return server


async def end_of(talk: Talk, id: str) -> dict[str, Any]:
    """The answer to the plain call, as the dialect has it."""
    if talk.version == CORE:
        answer = await talk.ask("tasks/result", {"taskId": id})
        return {key: answer[key] for key in ("result", "error") if key in answer}
    task = await talk.until(id)
    return {key: task[key] for key in ("result", "error") if key in task}


def without_related(outcome: dict[str, Any]) -> dict[str, Any]:
    if "result" in outcome:
        meta = dict(outcome["result"].get("_meta", {}))
        related = meta.pop("io.modelcontextprotocol/related-task", None)
        bare = {key: value for key, value in outcome["result"].items() if key != "_meta"}
        return {"result": {**bare, **({"_meta": meta} if meta else {})}, "related": related is not None}
    return outcome


async def compare(version: str, name: str, arguments: dict[str, Any]) -> None:
    """Calls a tool both ways."""
    plain = Server("s")
    for each in with_tools(make_server())._features.tools:
        plain._features.tools.insert(each)
    params = {"name": name, "arguments": arguments}
    async with talking(plain, version) as talk:
        answer = await talk.ask("tools/call", params)
    async with talking(with_tools(make_server(poll_interval=0.01)), version) as talk:
        outcome = without_related(await end_of(talk, await talk.begin(name, arguments)))
    related = outcome.pop("related", version == CORE)
    assert related == (version == CORE)
    assert outcome == {key: answer[key] for key in ("result", "error") if key in answer}


def numbered_server(number: int, noted: list[str], shared: SharedState | None = None) -> Server:
    """A server that notes when it begins and ends, with a tool that says the number of the server."""

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[int]:
        noted.append(f"enter {number}")
        yield number
        noted.append(f"leave {number}")

    server: Server[Any] = Server(
        "s", extensions=[Tasks(clock=trio.current_time)], shared=shared, lifespan=lifespan
    )

    @server.tool(task="optional")
    async def work(ctx: Context, seconds: float) -> str:
        """Takes its time."""
        try:
            await ctx.progress(1)
            await trio.sleep(seconds)
        except trio.Cancelled:
            noted.append(f"cancelled {number}")
            raise
        return f"{number} {ctx.state}"

    return server


async def test_a_task_ends_with_what_the_call_would_have_returned(
    version: str, autojump_clock: MockClock
) -> None:
    async with talking(with_tools(make_server()), version) as talk:
        id = await talk.begin("add", {"a": 1, "b": 2})
        task = await talk.get(id)
        assert (task["taskId"], task["status"]) == (id, "working")
        assert task["createdAt"].endswith("Z")
        times = ("ttl", "pollInterval") if version == CORE else ("ttlMs", "pollIntervalMs")
        assert [task[name] for name in times] == [3_600_000, 1000]
        outcome = await end_of(talk, id)
        assert outcome["result"]["content"] == [{"type": "text", "text": "3"}]
        assert (await talk.get(id))["status"] == "completed"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("add", {"a": 1, "b": 2}),
        ("add", {"a": "x"}),
        ("refuse", {}),
        ("protest", {}),
        ("crash", {}),
    ],
)
async def test_the_outcome_is_that_of_the_plain_call(
    version: str, name: str, arguments: dict[str, Any], autojump_clock: MockClock
) -> None:
    await compare(version, name, arguments)


async def test_the_outcome_of_a_function_in_a_thread_is_that_of_the_plain_call(version: str) -> None:
    await compare(version, "blocking", {"word": "ab"})


async def test_how_a_failure_is_called(version: str, autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server()), version) as talk:
        refused = await talk.until(await talk.begin("refuse"))
        assert refused["status"] == ("failed" if version == CORE else "completed")
        protested = await talk.until(await talk.begin("protest"))
        assert protested["status"] == "failed"
        if version == EXTENSION:
            assert protested["error"] == {"code": -32099, "message": "a protocol error", "data": {"why": 1}}
            assert "result" not in protested
        # The server goes on after a function that tried to end the process.
        await talk.until(await talk.begin("crash"))
        assert (await talk.get(await talk.begin("forever")))["status"] == "working"


async def test_cancelling_ends_the_function(version: str, autojump_clock: MockClock) -> None:
    server = make_server()
    seen: list[str] = []

    @server.tool(task="optional")
    async def long(ctx: Context) -> str:
        try:
            await trio.sleep_forever()
        finally:
            seen.append("cancelled")
        return "never"

    async with talking(server, version) as talk:
        id = await talk.begin("long")
        await trio.testing.wait_all_tasks_blocked()
        result = await talk.result("tasks/cancel", {"taskId": id})
        if version == CORE:
            assert result["status"] == "cancelled"
        else:
            assert {key for key in result if key != "_meta"} == {"resultType"}
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["cancelled"]
        assert (await talk.get(id))["status"] == "cancelled"
        again = await talk.ask("tasks/cancel", {"taskId": id})
        if version == CORE:
            assert again["error"]["code"] == -32602
        else:
            assert "result" in again


async def test_an_unknown_task(version: str) -> None:
    async with talking(with_tools(make_server()), version) as talk:
        for method in ("tasks/get", "tasks/cancel"):
            assert await talk.code(method, {"taskId": "nothing"}) == -32602
            assert await talk.code(method, {"taskId": "x" * 10_000}) == -32602
            assert await talk.code(method, {"taskId": 7}) == -32602
            assert await talk.code(method) == -32602


async def test_a_task_ends_with_its_time(version: str, autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server(ttl=10, max_ttl=10)), version) as talk:
        id = await talk.begin("forever")
        await trio.sleep(9)
        assert (await talk.get(id))["status"] == "working"
        await trio.sleep(2)
        assert await talk.code("tasks/get", {"taskId": id}) == -32602


async def test_the_task_outlives_its_connection(version: str, autojump_clock: MockClock) -> None:
    server = with_tools(make_server())
    memory: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, memory)
        async with memory.connect() as channel:
            peer = ScriptedPeer(channel)
            capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
            if version == CORE:
                await peer.initialize(version, capabilities)
            id = await Talk(peer, version, capabilities).begin("add", {"a": 1, "b": 2})
        async with memory.connect() as channel:
            peer = ScriptedPeer(channel)
            if version == CORE:
                await peer.initialize(version, capabilities)
            assert (await Talk(peer, version, capabilities).until(id))["status"] == "completed"
        nursery.cancel_scope.cancel()


async def test_too_many_tasks_are_refused(version: str, autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server(in_all=2)), version) as talk:
        await talk.begin("forever")
        await talk.begin("forever")
        params = {"name": "forever", "task": {}}
        assert await talk.code("tools/call", params) == 429
    async with talking(with_tools(make_server(running=1)), version) as talk:
        id = await talk.begin("forever")
        assert await talk.code("tools/call", params) == 429
        await talk.result("tasks/cancel", {"taskId": id})
        await trio.testing.wait_all_tasks_blocked()
        await talk.begin("forever")


async def test_progress_becomes_the_status_message(version: str, autojump_clock: MockClock) -> None:
    server = make_server()

    @server.tool(task="optional")
    async def counting(ctx: Context) -> str:
        for number in range(1, 5):
            await ctx.progress(number, 4, f"step {number}")
            await trio.sleep(2)
        return "done"

    async with talking(server, version) as talk:
        id = await talk.begin("counting", progressToken="t")
        await trio.sleep(3)
        assert (await talk.get(id))["statusMessage"] == "step 2"
        await talk.until(id)
        reported = [each for each in talk.notified if each["method"] == "notifications/progress"]
        assert [each["params"]["progress"] for each in reported] == ([1, 2, 3, 4] if version == CORE else [])


# -- another server takes the place of the one with the tasks: they go on with the old code, and clients find them ----


async def test_a_task_goes_on_and_its_lifespan_ends_after_it(version: str, autojump_clock: MockClock) -> None:
    noted: list[str] = []
    server = ReplaceableServer(numbered_server(1, noted, FakeShared(spans=False)))
    async with talking(server, version) as talk:
        old = await talk.begin("work", {"seconds": 50})
        await server.replace(numbered_server(2, noted))
        new = await talk.begin("work", {"seconds": 10})
        assert (await talk.get(old))["status"] == "working"
        await talk.until(new)
        await trio.sleep(1)
        assert noted == ["enter 1", "enter 2"]
        await talk.until(old)
        await trio.sleep(1)
        assert noted == ["enter 1", "enter 2", "leave 1"]
        if version == CORE:
            ended = [await talk.result("tasks/result", {"taskId": id}) for id in (old, new)]
        else:
            ended = [(await talk.get(id))["result"] for id in (old, new)]
        assert [each["content"][0]["text"] for each in ended] == ["1 1", "2 2"]


async def test_a_task_of_the_old_server_is_cancelled_through_the_new_one(
    version: str, autojump_clock: MockClock
) -> None:
    noted: list[str] = []
    server = ReplaceableServer(numbered_server(1, noted, FakeShared(spans=False)))
    async with talking(server, version) as talk:
        id = await talk.begin("work", {"seconds": 5000})
        for number in (2, 3):
            await server.replace(numbered_server(number, noted))
        await talk.result("tasks/cancel", {"taskId": id})
        assert (await talk.until(id))["status"] == "cancelled"
        await trio.sleep(1)
        assert sorted(noted[:3]) == ["enter 1", "enter 2", "enter 3"]
        assert sorted(noted[3:]) == ["cancelled 1", "leave 1", "leave 2"]
        assert noted.index("cancelled 1") < noted.index("leave 1")
