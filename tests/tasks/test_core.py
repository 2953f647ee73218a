"""The rules of MCP 2025-11-25, Tasks, that the extension has not, and those of negotiation in both dialects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Server
from mcp_actors.abc import TaskBounds, TaskRecord
from mcp_actors.abc.discovery import client_transport, server_transport
from mcp_actors.errors import LocalProtocolError, SharedStateUnavailable
from mcp_actors.supervision.principal import Principal
from mcp_actors.tasks import TASKS, Tasks
from mcp_actors.tasks.dialects import IMMEDIATE_RESPONSE
from mcp_actors.testing import ScriptedPeer
from tests.messages import modern_meta

from .nodes import FakeShared, FakeStore
from .talking import CORE, DECLARED, EXTENSION, Talk, make_server, talking

METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602


def with_tools(server: Server) -> Server:
    @server.tool(task="optional", meta={IMMEDIATE_RESPONSE: "It runs."})
    async def may() -> str:
        return "may"

    @server.tool(task="required")
    async def must() -> str:
        await trio.sleep(5)
        return "must"

    @server.tool
    async def never() -> str:
        return "never"

    return server


async def test_what_is_declared() -> None:
    async with talking(with_tools(make_server()), EXTENSION) as talk:
        capabilities = (await talk.result("server/discover"))["capabilities"]
        assert capabilities["extensions"] == {TASKS: {}}
        assert "tasks" not in capabilities
        tools = {each["name"]: each for each in (await talk.result("tools/list"))["tools"]}
        assert not any("execution" in each for each in tools.values())
    async with talking(with_tools(make_server()), CORE) as talk:
        tools = {each["name"]: each for each in (await talk.result("tools/list"))["tools"]}
        assert tools["may"]["execution"] == {"taskSupport": "optional"}
        assert tools["must"]["execution"] == {"taskSupport": "required"}
        assert "execution" not in tools["never"]


async def test_a_server_without_tasks_knows_nothing_of_them() -> None:
    server = Server("s")
    server.add_tool(lambda: "plain", name="plain")
    for version in (CORE, EXTENSION):
        async with talking(server, version) as talk:
            for method in ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"):
                assert await talk.code(method, {"taskId": "x"}) == METHOD_NOT_FOUND
            result = await talk.result("tools/call", {"name": "plain", "task": {"ttl": 1}})
            assert result["content"][0]["text"] == "plain"


async def test_a_tool_brings_the_extension() -> None:
    server = Server("s")
    assert server.capabilities.tasks is None
    server.add_tool(lambda: "x", name="x", task="optional")
    server.add_tool(lambda: "y", name="y", task="optional")
    assert server.capabilities.extensions == {TASKS: {}}


async def test_the_first_task_of_a_server_that_serves_is_refused_where_it_is_added() -> None:
    server = Server("s")
    server.add_tool(lambda: "plain", name="plain")
    async with talking(server, CORE) as talk:
        with pytest.raises(LocalProtocolError, match="while the server serves"):
            server.add_tool(lambda: "late", name="late", task="optional")
        assert [each["name"] for each in (await talk.result("tools/list"))["tools"]] == ["plain"]
        assert (await talk.result("tools/call", {"name": "plain"}))["content"][0]["text"] == "plain"


async def test_a_server_with_tasks_takes_such_tools_while_it_serves(autojump_clock: MockClock) -> None:
    server = Server("s", extensions=[Tasks()])
    async with talking(server, CORE) as talk:

        @server.tool(task="optional")
        async def late() -> str:
            return "late"

        created = await talk.result("tools/call", {"name": "late", "task": {}})
        result = await talk.result("tasks/result", {"taskId": created["task"]["taskId"]})
        assert result["content"][0]["text"] == "late"


@pytest.mark.parametrize(
    "options",
    [
        {"task": "perhaps"},
        {"task": "optional", "inline": True},
        {"restartable": True},
        {"before_task": lambda arguments, ctx: None},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="task"):
        Server("s").add_tool(lambda: "x", name="x", **options)


@pytest.mark.parametrize(
    "settings",
    [{"ttl": 0}, {"ttl": 10, "max_ttl": 5}, {"poll_interval": -1}, {"running": 0}, {"in_all": True}],
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Tasks(**settings)


async def test_who_decides(autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server()), CORE) as talk:
        assert await talk.code("tools/call", {"name": "must"}) == METHOD_NOT_FOUND
        assert await talk.code("tools/call", {"name": "never", "task": {}}) == METHOD_NOT_FOUND
        assert (await talk.result("tools/call", {"name": "may"}))["content"][0]["text"] == "may"
        created = await talk.result("tools/call", {"name": "may", "task": {}})
        assert created["_meta"] == {IMMEDIATE_RESPONSE: "It runs."}
        for task in (None, 7, {"ttl": "x"}, {"ttl": 0}, {"ttl": True}):
            assert await talk.code("tools/call", {"name": "may", "task": task}) == INVALID_PARAMS
    async with talking(with_tools(make_server()), EXTENSION, {}) as talk:
        refused = await talk.ask("tools/call", {"name": "must"})
        assert refused["error"]["code"] == -32021
        assert refused["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        assert (await talk.result("tools/call", {"name": "may"}))["content"][0]["text"] == "may"
    async with talking(with_tools(make_server()), EXTENSION) as talk:
        # What older revisions ask for means nothing here.
        result = await talk.result("tools/call", {"name": "never", "task": {"ttl": 5}})
        assert result["resultType"] == "complete"
        for method in ("tasks/result", "tasks/list"):
            assert await talk.code(method, {"taskId": "x"}) == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ({}, 60_000),
        ({"ttl": 30_000}, 30_000),
        ({"ttl": 10**9}, 90_000),
        ({"ttl": None}, 90_000),
        ({"ttl": 10**400}, 90_000),
    ],
)
async def test_the_time_that_is_granted(asked: Any, granted: int, autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server(ttl=60, max_ttl=90)), CORE) as talk:
        created = await talk.result("tools/call", {"name": "may", "task": asked})
        assert created["task"]["ttl"] == granted


async def test_a_time_that_no_clock_holds_is_one_without_an_end(autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server(max_ttl=None)), CORE) as talk:
        created = await talk.result("tools/call", {"name": "may", "task": {"ttl": 10**400}})
        assert created["task"]["ttl"] is None


async def test_results_block_until_the_end(autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server()), CORE) as talk:
        id = await talk.begin("must")
        began = trio.current_time()
        first, second = [await talk.send("tasks/result", {"taskId": id}) for _ in range(2)]
        results = [(await talk.answer_to(each))["result"] for each in (first, second)]
        assert results[0] == results[1]
        assert trio.current_time() - began == pytest.approx(5)
        assert results[0]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": id}


async def test_a_session_lists_its_own_tasks(autojump_clock: MockClock) -> None:
    server = with_tools(make_server())
    memory: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, memory)
        async with memory.connect() as one, memory.connect() as other:
            talks = [Talk(ScriptedPeer(each), CORE, DECLARED) for each in (one, other)]
            for each in talks:
                await each.peer.initialize(CORE, DECLARED)
            ids = [await talks[0].begin("may") for _ in range(3)]
            listed = await talks[0].result("tasks/list")
            assert [each["taskId"] for each in listed["tasks"]] == ids
            rest = await talks[0].result("tasks/list", {"cursor": ids[0]})
            assert [each["taskId"] for each in rest["tasks"]] == ids[1:]
            assert (await talks[1].result("tasks/list"))["tasks"] == []
            for cursor in (7, "nothing", ""):
                assert await talks[0].code("tasks/list", {"cursor": cursor}) == INVALID_PARAMS
            # What one session has is no cursor of another one.
            assert await talks[1].code("tasks/list", {"cursor": ids[0]}) == INVALID_PARAMS
        nursery.cancel_scope.cancel()


class As:
    """A transport in memory whose peers are somebody."""

    def __init__(self, *names: str) -> None:
        self._principals = [Principal(name) for name in names]
        self._memory: Any = client_transport("memory:")

    async def serve(self, handler: Any, *, task_status: trio.TaskStatus[Any]) -> None:
        async def served(channel: Any) -> None:
            await handler(channel, self._principals.pop(0))

        served.stopping = handler.stopping  # type: ignore[attr-defined]
        await self._memory.serve(served, task_status=task_status)

    def connect(self) -> Any:
        return self._memory.connect()


@asynccontextmanager
async def two_callers(server: Server, version: str) -> AsyncIterator[tuple[Talk, Talk]]:
    transport = As("ada", "eve")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with transport.connect() as one:
            ada = Talk(ScriptedPeer(one), version, DECLARED)
            if version == CORE:
                await ada.peer.initialize(version, DECLARED)
            else:
                await ada.result("server/discover")
            async with transport.connect() as other:
                eve = Talk(ScriptedPeer(other), version, DECLARED)
                if version == CORE:
                    await eve.peer.initialize(version, DECLARED)
                yield ada, eve
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_a_task_is_that_of_its_principal(version: str, autojump_clock: MockClock) -> None:
    async with two_callers(with_tools(make_server()), version) as (ada, eve):
        id = await ada.begin("must")
        assert (await ada.get(id))["status"] == "working"
        methods = ["tasks/get", "tasks/cancel"]
        methods += ["tasks/result"] if version == CORE else ["tasks/update"]
        for method in methods:
            params = {"taskId": id, "inputResponses": {}}
            theirs = await eve.ask(method, params)
            unknown = await eve.ask(method, {**params, "taskId": "nothing"})
            assert theirs["error"] == unknown["error"]
        if version == CORE:
            assert [each["taskId"] for each in (await ada.result("tasks/list"))["tasks"]] == [id]
            assert (await eve.result("tasks/list"))["tasks"] == []
        else:
            await eve.send("subscriptions/listen", {"notifications": {"taskIds": [id]}})
            acknowledged = await eve.peer.receive()
            assert acknowledged["params"]["notifications"] == {"taskIds": []}
        assert (await ada.until(id))["status"] == "completed"


async def test_each_principal_has_a_bound_of_its_own(autojump_clock: MockClock) -> None:
    async with two_callers(with_tools(make_server(per_principal=2)), CORE) as (ada, eve):
        for _ in range(2):
            await ada.begin("must")
        assert await ada.code("tools/call", {"name": "must", "task": {}}) == 429
        await eve.begin("must")


async def test_the_context_of_a_task() -> None:
    server, seen = make_server(poll_interval=0.01), list[Any]()

    @server.tool(task="optional")
    def look(ctx: Context) -> str:
        ctx.log("info", "logged")  # type: ignore[unused-coroutine]
        ctx.notify("notifications/mine", {"a": 1})  # type: ignore[unused-coroutine]
        seen.extend([ctx.params, ctx.method, ctx.principal, ctx.session is not None, ctx.state])
        return "looked"

    async with talking(server, CORE) as talk:
        await talk.until(await talk.begin("look"))
        assert seen == [{"name": "look", "arguments": {}}, "tools/call", None, True, None]
        methods = [each["method"] for each in talk.notified]
        assert "notifications/message" in methods
        assert "notifications/mine" in methods


# -- The bounds of callers that nobody has authenticated: each address has its own -----------------------

ACCEPT = {"accept": "application/json, text/event-stream"}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    server = Server("s", extensions=[Tasks(**settings)])

    @server.tool(task="optional")
    async def forever() -> str:
        await trio.sleep_forever()
        return "never"

    @server.tool(task="optional")
    async def quick() -> str:
        return "done"

    async with trio.open_nursery() as nursery:
        (place,) = await nursery.start(server.serve, server_transport("http://127.0.0.1:0/mcp"))
        yield str(place)
        nursery.cancel_scope.cancel()


class Caller:
    """A client at an address; the whole of 127.0.0.0/8 is this host."""

    def __init__(self, url: str, version: str, address: str) -> None:
        self._url = url
        self._version = version
        self._transport = httpx2.AsyncHTTPTransport(local_address=address)

    async def codes(self, tool: str, times: int) -> list[int]:
        """Begins tasks, in a session of its own, and returns the codes of the errors, 0 for a task that is there."""
        headers = {**ACCEPT, "mcp-protocol-version": self._version}
        async with httpx2.AsyncClient(transport=self._transport, headers=headers) as http:
            if self._version == CORE:
                hello = {
                    "protocolVersion": CORE,
                    "capabilities": {},
                    "clientInfo": {"name": "c", "version": "0"},
                }
                response = await self._post(http, "initialize", hello)
                http.headers["mcp-session-id"] = response.headers["mcp-session-id"]
                params: dict[str, Any] = {"name": tool, "arguments": {}, "task": {}}
            else:
                params = {"name": tool, "arguments": {}, "_meta": modern_meta(DECLARED)}
                http.headers.update({"mcp-method": "tools/call", "mcp-name": tool})
            answers = [(await self._post(http, "tools/call", params)).json() for _ in range(times)]
            return [each.get("error", {}).get("code", 0) for each in answers]

    async def _post(self, http: httpx2.AsyncClient, method: str, params: dict[str, Any]) -> httpx2.Response:
        return await http.post(
            self._url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        )


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_one_address_cannot_take_the_places_of_all(version: str) -> None:
    async with serving(running=4) as url:
        greedy = Caller(url, version, "127.0.0.1")
        assert await greedy.codes("forever", 3) == [0, 0, 429]
        # Another session of the same address is no other caller.
        assert await Caller(url, version, "127.0.0.1").codes("forever", 1) == [429]
        assert await Caller(url, version, "127.0.0.2").codes("forever", 2) == [0, 0]


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_tasks_that_are_kept_count_for_their_address(version: str) -> None:
    async with serving(per_principal=2) as url:
        assert await Caller(url, version, "127.0.0.1").codes("quick", 3) == [0, 0, 429]
        assert await Caller(url, version, "127.0.0.1").codes("quick", 1) == [429]
        assert await Caller(url, version, "127.0.0.2").codes("quick", 1) == [0]


# -- The beginning of a task, cut off at every phase, and what it keeps of the session that began it -----

BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])


class SlowStore(FakeStore):
    """A store that takes a second to create a task, and keeps it before or after that."""

    def __init__(self, keeps: Literal["before", "after", "late"]) -> None:
        super().__init__()
        self._keeps = keeps

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        if self._keeps == "before":
            await super().create(record, bounds)
        await trio.sleep(1)
        if self._keeps == "late":
            # It was sent, and arrives when the connection is there again.
            trio.lowlevel.spawn_system_task(self._create_later, record, bounds)
            raise SharedStateUnavailable("tasks", "a test has cut it off")
        if self._keeps == "after":
            return await super().create(record, bounds)
        return None

    async def _create_later(self, record: TaskRecord, bounds: TaskBounds) -> None:
        await trio.sleep(3)
        await super().create(record, bounds)


@asynccontextmanager
async def beginning(version: str, store: FakeStore) -> AsyncIterator[tuple[Talk, int, list[str]]]:
    """A call that is about to become a task: its id, and what has run."""
    shared, runs = FakeShared(), list[str]()
    shared.store = store
    server = make_server(shared, running=2)

    @server.tool(task="required")
    async def work() -> str:
        runs.append("work")
        await trio.sleep(60)
        return "done"

    async with talking(server, version) as talk:
        id = await talk.send("tools/call", {"name": "work", **({"task": {}} if version == CORE else {})})
        yield talk, id, runs


@BOTH
@pytest.mark.parametrize("keeps", ["before", "after"])
async def test_a_call_that_is_cancelled_while_its_task_is_created_leaves_none_that_nobody_runs(
    version: str, keeps: Literal["before", "after"], autojump_clock: MockClock
) -> None:
    store = SlowStore(keeps)
    async with beginning(version, store) as (talk, id, runs):
        await trio.sleep(0.5)
        params = {"requestId": id, "reason": "never mind"}
        await talk.peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await trio.sleep(5)
        assert runs == []
        assert [each.state for each in store.records.values()] == (["failed"] if keeps == "before" else [])
        # Its place is free again: one client may run half of two.
        another = await talk.begin("work")
        assert (await talk.until(another))["status"] == "completed"


@BOTH
async def test_a_creation_that_arrives_after_an_outage_is_ended(
    version: str, autojump_clock: MockClock
) -> None:
    store = SlowStore("late")
    async with beginning(version, store) as (talk, id, runs):
        answer = await talk.answer_to(id)
        assert answer["error"]["code"] == 503
        await trio.sleep(20)
        assert [(each.state, each.message) for each in store.records.values()] == [
            ("failed", "its creation was interrupted")
        ]
        assert runs == []


@BOTH
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.5])
async def test_a_client_that_leaves_while_its_task_is_created(
    version: str, after: float, autojump_clock: MockClock
) -> None:
    """Whenever it leaves, its task either runs or is not there."""
    store = SlowStore("before")
    async with beginning(version, store) as (talk, _, runs):
        await trio.sleep(after)
        await talk.peer.channel.aclose()
        await trio.sleep(70)
        ended = [each.state for each in store.records.values()]
        assert ended == (["completed"] if runs else ["failed"] if store.records else [])


async def test_an_ended_session_is_not_kept_by_its_tasks(autojump_clock: MockClock) -> None:
    server, seen = make_server(), list[Any]()

    @server.tool(task="optional")
    async def work(ctx: Context) -> str:
        assert ctx.session is not None
        seen.append(ctx.session.name)
        await trio.sleep(60)
        seen.append(ctx.session)
        return "done"

    memory: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, memory)
        async with memory.connect() as channel:
            peer = ScriptedPeer(channel)
            await peer.initialize(CORE)
            await Talk(peer, CORE, {}).begin("work")
            await wait_all_tasks_blocked()
            held = weakref.ref(next(iter(server._runtime.sessions)).dispatcher)
        await wait_all_tasks_blocked()
        gc.collect()
        assert (held(), len(seen)) == (None, 1)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert seen[1] is None
