"""Tasks as a client has them: a call simply waits, a handle stays, and nothing is started twice."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors.client import Progress
from mcp_actors.errors import (
    CallTimeout,
    ConnectionLost,
    InputRequired,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    TaskCancelled,
    TaskNotFound,
)
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import ElicitResult
from tests.client.task_scripts import EACH_DIALECT, EXTENSION, ID, TaskScript, completed, failed, playing
from tests.messages import CAPABILITIES, LEGACY, MODERN, TEXT, discover_result
from tests.scripted_peers import fail, greet, reply, scripted

WORKING = {"status": "working"}
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}},
}

each_dialect = pytest.mark.parametrize("version", EACH_DIALECT)


def asking(*keys: str) -> dict[str, Any]:
    return {"status": "input_required", "inputRequests": dict.fromkeys(keys, QUESTION)}


async def accept(question: Any) -> ElicitResult:
    return ElicitResult("accept", {})


@each_dialect
async def test_a_call_waits_for_the_task_that_it_became(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, WORKING, completed(version))
    async with playing(script) as client:
        result = await client.call_tool("t", {"a": 1})
    assert result.text == "done"
    assert script.methods.count("tools/call") == 1
    assert "tasks/cancel" not in script.methods


@each_dialect
async def test_looks_are_as_far_apart_as_the_server_wants(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, WORKING, WORKING, completed(version), poll=7000)
    script.grants_listening = False
    async with playing(script) as client:
        await client.call_tool("t")
    assert [round(b - a) for a, b in pairwise(script.looked_at)] == [7, 7, 7]


@each_dialect
@pytest.mark.parametrize(
    ("poll", "shortest", "longest"),
    [(0, 0.1, 0.11), (-5, 0.1, 0.11), (10**15, 60, 60.1), (10**400, 60, 60.1)],
)
async def test_a_hostile_interval_neither_spins_nor_stalls(
    version: str, poll: int, shortest: float, longest: float, autojump_clock: MockClock
) -> None:
    script = TaskScript(version, *[WORKING] * 3, completed(version), poll=poll)
    script.grants_listening = False
    async with playing(script) as client:
        await client.call_tool("t", cap=1000)
    gaps = [b - a for a, b in pairwise(script.looked_at)]
    assert len(gaps) == 3
    assert all(shortest - 1e-6 <= gap <= longest for gap in gaps)


@each_dialect
async def test_a_change_that_the_server_tells_of_is_looked_at_at_once(
    version: str, autojump_clock: MockClock
) -> None:
    script = TaskScript(version, WORKING, completed(version), poll=50_000)
    async with playing(script) as client, trio.open_nursery() as nursery:

        async def tell_of_it() -> None:
            await trio.sleep(52)
            await script.changed()

        nursery.start_soon(tell_of_it)
        began = trio.current_time()
        if version == MODERN:
            script.looks.insert(0, WORKING)
        await client.call_tool("t", cap=1000)
        assert trio.current_time() - began == pytest.approx(52, abs=0.2)


async def test_one_subscription_names_all_tasks_that_are_waited_for(autojump_clock: MockClock) -> None:
    script = TaskScript(MODERN, WORKING, WORKING, completed(MODERN), poll=30_000)
    async with playing(script) as client:
        await client.call_tool("t")
        await trio.sleep(5)
    listened = script.params("subscriptions/listen")
    assert [each["notifications"] for each in listened] == [{"taskIds": [ID]}]
    assert script.methods[-1] == "notifications/cancelled"


async def test_a_server_that_does_not_let_tasks_be_listened_for_is_asked_once(
    autojump_clock: MockClock,
) -> None:
    script = TaskScript(MODERN, WORKING, WORKING, completed(MODERN))
    script.grants_listening = False
    async with playing(script) as client:
        await client.call_tool("t")
        await client.call_tool("t")
    assert script.methods.count("subscriptions/listen") == 1


@each_dialect
async def test_who_leaves_a_call_cancels_its_task(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING)
    async with playing(script) as client:
        with trio.move_on_after(3) as scope:
            await client.call_tool("t")
        assert scope.cancelled_caught
        assert script.params("tasks/cancel")[0]["taskId"] == ID


@each_dialect
async def test_the_cap_bounds_the_whole_call_and_cancels_the_task(
    version: str, autojump_clock: MockClock
) -> None:
    script = TaskScript(version, WORKING)
    async with playing(script) as client:
        began = trio.current_time()
        with pytest.raises(CallTimeout) as caught:
            await client.call_tool("t", cap=20, timeout=1)
        assert caught.value.clock == "cap"
        assert trio.current_time() - began == pytest.approx(20, abs=0.5)
    assert "tasks/cancel" in script.methods


@each_dialect
async def test_a_server_that_no_longer_answers_is_noticed(version: str, autojump_clock: MockClock) -> None:
    class Silent(TaskScript):
        async def _look(self, peer: Any, request: Any) -> Any:
            return None

    script = Silent(version, WORKING)
    async with playing(script) as client:
        with pytest.raises(CallTimeout) as caught:
            await client.call_tool("t", timeout=4)
    assert (caught.value.clock, caught.value.method) == ("idle", "tasks/get")


@each_dialect
async def test_status_messages_are_reports_of_progress(version: str, autojump_clock: MockClock) -> None:
    told = [{**WORKING, "statusMessage": text} for text in ("one", "two", "two", "three")]
    script = TaskScript(version, *told, completed(version))
    reports: list[Progress] = []
    async with playing(script) as client:
        await client.call_tool("t", on_progress=reports.append)
    assert [(each.progress, each.message) for each in reports[:3]] == [(1, "one"), (2, "two"), (3, "three")]


@each_dialect
async def test_what_a_task_fails_with_is_raised(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, failed(version, -32050), result=-32050)
    async with playing(script) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("t")
    assert caught.value.code == -32050
    assert "tasks/cancel" not in script.methods


@each_dialect
async def test_a_task_that_somebody_else_cancels(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, {"status": "cancelled", "statusMessage": "by the operator"})
    async with playing(script) as client:
        with pytest.raises(TaskCancelled, match="by the operator") as caught:
            await client.call_tool("t")
    assert caught.value.task_id == ID
    assert ID not in str(caught.value)


@each_dialect
async def test_a_task_that_is_forgotten(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, -32602)
    async with playing(script) as client:
        with pytest.raises(TaskNotFound) as caught:
            await client.call_tool("t")
    assert caught.value.task_id == ID
    assert ID not in str(caught.value)


@each_dialect
async def test_a_lost_connection_is_gone_on_in_the_next_one(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, "lost", WORKING, completed(version))
    async with playing(script, restart=True) as client:
        result = await client.call_tool("t")
    assert result.text == "done"
    assert script.methods.count("tools/call") == 1


@each_dialect
async def test_without_another_connection_the_loss_is_raised(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, "lost")
    async with playing(script) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("t")


# -- questions ---------------------------------------------------------------------------------------------------------


async def test_questions_of_a_task_are_answered_once_each(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def answer(question: Any) -> ElicitResult:
        seen.append(question.message)
        return ElicitResult("accept", {})

    # The answered key is seen again, as a server may show it, and beside a new one.
    script = TaskScript(MODERN, asking("a"), asking("a"), asking("a", "b"), WORKING, completed(MODERN))
    async with playing(script, elicitation=answer) as client:
        result = await client.call_tool("t")
    assert result.text == "done"
    assert [sorted(each["inputResponses"]) for each in script.params("tasks/update")] == [["a"], ["b"]]
    assert script.params("tasks/update")[0]["inputResponses"]["a"]["action"] == "accept"
    assert len(seen) == 2


async def test_a_task_that_asks_without_an_end(autojump_clock: MockClock) -> None:
    looks = [asking(f"k{n}") for n in range(50)]
    script = TaskScript(MODERN, *looks)
    async with playing(script, elicitation=accept, max_rounds=4) as client:
        with pytest.raises(RemoteProtocolError, match="4 rounds"):
            await client.call_tool("t")
    assert len(script.params("tasks/update")) == 4
    assert "tasks/cancel" in script.methods


async def test_a_program_may_answer_by_itself(autojump_clock: MockClock) -> None:
    script = TaskScript(MODERN, asking("a"))
    async with playing(script, elicitation=accept, answer_input=False) as client:
        handle = await client.start_tool("t")
        with pytest.raises(InputRequired) as caught:
            await handle.result()
        assert list(caught.value.requests) == ["a"]
        script.looks = [completed(MODERN)]
        await handle.answer({"a": ElicitResult("accept", {})})
        assert (await handle.result()).text == "done"
    assert "tasks/cancel" not in script.methods


async def test_what_was_not_declared_must_not_be_asked(autojump_clock: MockClock) -> None:
    script = TaskScript(MODERN, asking("a"))
    async with playing(script) as client:
        with pytest.raises(RemoteProtocolError, match="must not"):
            await client.call_tool("t")
    assert "tasks/cancel" in script.methods


async def test_in_a_session_the_server_asks_while_its_result_is_waited_for(autojump_clock: MockClock) -> None:
    class Asking(TaskScript):
        async def give_result(self, peer: Any, request: Any) -> None:
            await peer.send({"jsonrpc": "2.0", "id": "q", **QUESTION})
            answer = await peer.receive()
            assert (answer["id"], answer["result"]["action"]) == ("q", "accept")
            await reply(peer, request, TEXT)

    script = Asking(LEGACY, WORKING, {"status": "input_required"})
    async with playing(script, elicitation=accept) as client:
        result = await client.call_tool("t")
    assert result.text == "done"
    assert script.params("tasks/result") == [{"taskId": ID}]


# -- handles -----------------------------------------------------------------------------------------------------------


@each_dialect
async def test_a_handle_is_there_at_once_and_leaving_it_leaves_the_task(
    version: str, autojump_clock: MockClock
) -> None:
    script = TaskScript(version, WORKING, completed(version), poll=1000)
    async with playing(script) as client:
        handle = await client.start_tool("t", {"a": 1}, ttl=60)
        assert handle.id == ID
        assert ID not in repr(handle)
        assert script.methods == ["tools/call"]
        status = await handle.status()
        assert (status.id, status.status, status.poll_interval, status.is_terminal) == (
            ID,
            "working",
            1.0,
            False,
        )
        assert (await handle.result()).text == "done"
        assert (await handle.result()).text == "done"
    assert "tasks/cancel" not in script.methods
    if version == LEGACY:
        assert script.params("tools/call")[0]["task"] == {"ttl": 60_000}
    else:
        assert "task" not in script.params("tools/call")[0]


@each_dialect
async def test_another_program_goes_on_with_the_id(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING, completed(version))
    async with playing(script) as client:
        assert (await client.task(ID).result()).text == "done"
    assert "tools/call" not in script.methods


@each_dialect
async def test_updates_end_with_the_task(version: str, autojump_clock: MockClock) -> None:
    looks = [WORKING, WORKING, {**WORKING, "statusMessage": "half"}, {"status": "cancelled"}]
    script = TaskScript(version, *looks)
    async with playing(script) as client:
        handle = await client.start_tool("t")
        seen = [(each.status, each.message) async for each in handle.updates()]
    assert seen == [("working", None), ("working", "half"), ("cancelled", None)]


@each_dialect
@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
async def test_updates_that_are_left_are_looked_for_no_more(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING)
    async with playing(script) as client:
        async for status in client.task(ID).updates():
            assert status.status == "working"
            break
        gc.collect()
        looks = script.methods.count("tasks/get")
        await trio.sleep(60)
        assert script.methods.count("tasks/get") == looks == 1
        assert "watched=0" in repr(client._tasks)


@each_dialect
async def test_a_task_is_cancelled_by_its_handle(version: str, autojump_clock: MockClock) -> None:
    script = TaskScript(version, WORKING)
    async with playing(script) as client:
        handle = await client.start_tool("t")
        await handle.cancel()
        await script.ended.wait()
        script.looks = [{"status": "cancelled"}]
        with pytest.raises(TaskCancelled):
            await handle.result()


async def test_a_task_that_has_ended_cannot_be_cancelled_and_that_is_no_error(
    autojump_clock: MockClock,
) -> None:
    class Ended(TaskScript):
        async def _answer(self, peer: Any, request: Any) -> Any:
            if request["method"] == "tasks/cancel":
                await peer.send(
                    {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32602, "message": "no"}}
                )
                return None
            return await super()._answer(peer, request)

    script = Ended(LEGACY, completed(LEGACY))
    async with playing(script) as client:
        await client.task(ID).cancel()
        script.looks = [-32602]
        with pytest.raises(TaskNotFound):
            await client.task(ID).cancel()


@each_dialect
async def test_a_server_that_answers_at_once_gives_a_handle_that_is_done(version: str) -> None:
    class Plain(TaskScript):
        async def _answer(self, peer: Any, request: Any) -> Any:
            if request["method"] == "tools/call":
                await reply(peer, request, self._stamped(TEXT))
                return None
            return await super()._answer(peer, request)

    script = Plain(version, WORKING)
    async with playing(script) as client:
        handle = await client.start_tool("t")
        assert handle.id is None
        assert (await handle.status()).is_terminal
        assert [each.status async for each in handle.updates()] == ["completed"]
        assert (await handle.result()).text == "done"
        await handle.cancel()
    assert script.methods == ["tools/call"]


async def test_tasks_are_listed_where_a_session_lists_them() -> None:
    script = TaskScript(LEGACY, WORKING)
    async with playing(script) as client:
        assert [(each.id, each.status) async for each in client.tasks()] == [(ID, "working")]
    script = TaskScript(MODERN, WORKING)
    async with playing(script) as client:
        with pytest.raises(LocalProtocolError, match="list of tasks"):
            await anext(aiter(client.tasks()))


# -- what is said to servers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [True, False])
async def test_the_extension_is_declared_in_each_request_unless_it_is_switched_off(tasks: bool) -> None:
    async with scripted(MODERN, tasks=tasks) as (client, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            request = await peer.receive()
            declared = request["params"]["_meta"][CAPABILITIES].get("extensions", {})
            assert declared == ({EXTENSION: {}} if tasks else {})
            await reply(peer, request, discover_result())

        nursery.start_soon(answer)
        await client.ping()


async def test_a_task_for_who_did_not_declare_it_is_an_error(autojump_clock: MockClock) -> None:
    script = TaskScript(MODERN, WORKING)
    async with playing(script, tasks=False) as client:
        with pytest.raises(RemoteProtocolError, match="unknown type 'task'"):
            await client.call_tool("t")


async def test_tools_of_a_session_that_need_no_task_are_called_plainly(autojump_clock: MockClock) -> None:
    class Plain(TaskScript):
        async def _answer(self, peer: Any, request: Any) -> Any:
            if request["method"] == "tools/call" and "task" not in request["params"]:
                await reply(peer, request, TEXT)
                return None
            return await super()._answer(peer, request)

    script = Plain(LEGACY, completed(LEGACY))
    script.support = "optional"
    async with playing(script) as client:
        assert (await client.call_tool("t")).text == "done"
        handle = await client.start_tool("t")
        assert handle.id == ID
    assert [("task" in each) for each in script.params("tools/call")] == [False, True]


@pytest.mark.parametrize("by_the_tool", [False, True])
async def test_a_tool_that_was_not_listed_is_called_as_the_task_that_it_must_be(
    by_the_tool: bool, autojump_clock: MockClock
) -> None:
    """The official servers refuse the plain call with an error of the tool."""

    class Strict(TaskScript):
        async def _answer(self, peer: Any, request: Any) -> Any:
            if request["method"] == "tools/call" and "task" not in request["params"]:
                if by_the_tool:
                    await reply(peer, request, {"content": [], "isError": True})
                else:
                    await fail(peer, request, -32601)
                return None
            return await super()._answer(peer, request)

    script = Strict(LEGACY, completed(LEGACY))
    async with playing(script, lists=False) as client:
        assert (await client.call_tool("t")).text == "done"
        assert (await client.call_tool("t")).text == "done"
    assert [("task" in each) for each in script.params("tools/call")] == [False, True, True]
    assert script.methods.count("tools/list") == 1


@each_dialect
@pytest.mark.parametrize(
    "look",
    [
        {"status": "asleep"},
        {"status": 5},
        {"taskId": 7, "status": "working"},
        {"taskId": "another one", "status": "completed"},
        {"status": "completed", "result": "text"},
        {"status": "failed", "error": {"code": "x"}},
    ],
)
async def test_a_malformed_look_is_an_error_that_cancels(
    version: str, look: dict[str, Any], autojump_clock: MockClock
) -> None:
    script = TaskScript(version, look, result={"content": "x"})
    async with playing(script) as client:
        with pytest.raises((RemoteProtocolError, RpcError)):
            await client.call_tool("t")


async def test_an_id_is_a_text() -> None:
    with pytest.raises(TypeError, match="id of a task"):
        Client(["x"]).task("")


# -- Questions of a session's server that the client answers later, as tasks of its own (MCP 2025-11-25, Tasks) ---

FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
RELATED = "io.modelcontextprotocol/related-task"


class Person:
    """Answers a question when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0
        self.back = trio.Event()

    async def __call__(self, question: Any) -> ElicitResult:
        self.asked += 1
        try:
            await self.back.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return ElicitResult("accept", {})


@asynccontextmanager
async def asking_client_hosted_tasks(
    person: Person, **task: Any
) -> AsyncIterator[tuple[ScriptedPeer, str, Client]]:
    """A server that has asked with a task, the task's id, and the client."""
    async with scripted(LEGACY, elicitation=person) as (client, peer):
        answer = await peer.request("ask", "elicitation/create", {**FORM, "task": task})
        described = answer["result"]["task"]
        assert described["status"] == "working"
        yield peer, described["taskId"], client


async def test_a_question_is_answered_later(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person, ttl=5000) as (peer, id, _):
        seen = await peer.request(1, "tasks/get", {"taskId": id})
        assert (seen["result"]["status"], seen["result"]["ttl"]) == ("working", 5000)
        listed = await peer.request(2, "tasks/list")
        assert [each["taskId"] for each in listed["result"]["tasks"]] == [id]
        person.back.set()
        told = await peer.receive()
        assert (told["method"], told["params"]["status"]) == ("notifications/tasks/status", "completed")
        answer = await peer.request(3, "tasks/result", {"taskId": id})
        assert answer["result"] == {"action": "accept", "content": {}, "_meta": {RELATED: {"taskId": id}}}
        again = await peer.request(4, "tasks/result", {"taskId": id})
        assert again["result"] == answer["result"]
    assert person.asked == 1


async def test_a_result_is_waited_for(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person) as (peer, id, _), trio.open_nursery() as nursery:

        async def come_back() -> None:
            await trio.sleep(100)
            person.back.set()

        nursery.start_soon(come_back)
        answer = await peer.request(1, "tasks/result", {"taskId": id})
        assert answer["result"]["action"] == "accept"
        assert trio.current_time() >= 100


async def test_a_question_is_cancelled_once(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person) as (peer, id, _):
        cancelled = await peer.request(1, "tasks/cancel", {"taskId": id})
        assert cancelled["result"]["status"] == "cancelled"
        assert (await peer.request(2, "tasks/cancel", {"taskId": id}))["error"]["code"] == -32602
        assert "error" in await peer.request(3, "tasks/result", {"taskId": id})
    assert person.cancelled == 1


async def test_the_time_of_a_question_ends(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person, ttl=5000) as (peer, id, _):
        await trio.sleep(6)
        assert (await peer.receive())["params"]["status"] == "failed"
        assert (await peer.request(1, "tasks/get", {"taskId": id}))["error"]["code"] == -32602
    assert person.cancelled == 1


async def test_questions_end_with_the_connection(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person) as (peer, _, _client):
        await peer.channel.aclose()
        await trio.sleep(1)
        assert person.cancelled == 1


async def test_questions_are_limited(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking_client_hosted_tasks(person) as (peer, _, _client):
        for n in range(31):
            assert "result" in await peer.request(n, "elicitation/create", {**FORM, "task": {}})
        refused = await peer.request("more", "elicitation/create", {**FORM, "task": {}})
        assert refused["error"]["code"] == 429
    assert person.asked == 32


async def test_a_time_that_no_clock_holds_is_cut(autojump_clock: MockClock) -> None:
    async with asking_client_hosted_tasks(Person(), ttl=10**400) as (peer, id, _client):
        seen = await peer.request(1, "tasks/get", {"taskId": id})
        assert seen["result"]["ttl"] == 3_600_000


@pytest.mark.parametrize("task", [[], "x", {"ttl": "x"}, {"ttl": 0}, {"ttl": True}])
async def test_a_malformed_wish_is_refused(task: Any) -> None:
    async with scripted(LEGACY, elicitation=Person()) as (_, peer):
        answer = await peer.request(1, "elicitation/create", {**FORM, "task": task})
        assert answer["error"]["code"] == -32602


async def test_a_function_that_fails_costs_its_task(autojump_clock: MockClock) -> None:
    async def fails(question: Any) -> ElicitResult:
        raise ValueError("a secret")

    async with scripted(LEGACY, elicitation=fails) as (_, peer):
        answer = await peer.request("ask", "elicitation/create", {**FORM, "task": {}})
        while "method" in answer:
            answer = await peer.receive()
        id = answer["result"]["task"]["taskId"]
        failed = await peer.request(2, "tasks/result", {"taskId": id})
        assert "secret" not in failed["error"]["message"]
        assert (await peer.request(3, "ping"))["result"] == {}


@pytest.mark.parametrize("tasks", [True, False])
async def test_it_is_declared_in_the_handshake_of_a_session(tasks: bool) -> None:
    told: list[dict[str, Any]] = []
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def play() -> None:
            told.append(await greet(await server.accept(), LEGACY))

        nursery.start_soon(play)
        async with Client(server.transport, era=LEGACY, elicitation=Person(), tasks=tasks):
            requests = {"elicitation": {"create": {}}}
            declared = {"list": {}, "cancel": {}, "requests": requests} if tasks else None
            assert told[0]["params"]["capabilities"].get("tasks") == declared
        nursery.cancel_scope.cancel()


async def test_stateless_requests_say_nothing_of_it() -> None:
    async with scripted(MODERN, elicitation=Person()) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(client.ping)
        request = await peer.receive()
        assert "tasks" not in request["params"]["_meta"][CAPABILITIES]
        nursery.cancel_scope.cancel()
