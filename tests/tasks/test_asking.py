"""Tasks that ask their client: ``input_required`` in both dialects, and rounds before the task."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, MissingCapability, Server
from mcp_actors.errors import RpcError
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import CreateMessageResult, ElicitFormParams, ElicitResult, TextContent
from tests.messages import accept

from .talking import ASKED, CORE, DECLARED, EXTENSION, Talk, make_server, talking

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
RELATED = "io.modelcontextprotocol/related-task"


def make_asking(**settings: Any) -> tuple[Server, list[str]]:
    server, runs = make_server(**settings), list[str]()

    @server.tool(task="optional")
    async def one(ctx: Context) -> str:
        runs.append("one")
        answer = await ctx.elicit("Your name?", FORM, key="who")
        return f"Hello, {answer.content['name'] if answer.content else answer.action}!"

    @server.tool(task="optional")
    async def two(ctx: Context) -> str:
        runs.append("two")
        asked = {key: ElicitFormParams(message=key, requested_schema=FORM) for key in ("a", "b")}
        answers = await ctx.ask(asked)
        return " ".join((answers[key].content or {})["name"] for key in ("a", "b"))

    @server.tool(task="optional")
    def again_and_again(ctx: Context) -> str:
        runs.append("again")
        answers: list[Any] = [ctx.elicit("Next?", FORM, key="same") for _ in range(3)]
        return " ".join(each.content["name"] for each in answers)

    @server.tool(task="optional")
    async def impatient(ctx: Context) -> str:
        with trio.move_on_after(5):
            await ctx.elicit("Quick?", FORM)
        await trio.sleep(5)
        return "too late"

    return server, runs


async def test_an_update_answers_a_question(autojump_clock: MockClock) -> None:
    server, runs = make_asking()
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("one")
        task = await talk.until(id, "input_required")
        assert list(task["inputRequests"]) == ["who"]
        assert task["inputRequests"]["who"]["method"] == "elicitation/create"
        assert "requestState" not in task
        answers = {"who": accept(name="Ada"), "other": {"action": "accept"}}
        acknowledged = await talk.result("tasks/update", {"taskId": id, "inputResponses": answers})
        assert set(acknowledged) - {"_meta"} == {"resultType"}
        # The same answers once more: nothing happens.
        await talk.result("tasks/update", {"taskId": id, "inputResponses": {"who": accept(name="Eve")}})
        task = await talk.until(id)
        assert task["result"]["content"][0]["text"] == "Hello, Ada!"
        assert runs == ["one"]


async def test_partial_updates_leave_the_rest(autojump_clock: MockClock) -> None:
    server, _ = make_asking()
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("two")
        assert list((await talk.until(id, "input_required"))["inputRequests"]) == ["a", "b"]
        await talk.result("tasks/update", {"taskId": id, "inputResponses": {"a": accept(name="x")}})
        assert list((await talk.get(id))["inputRequests"]) == ["b"]
        await talk.result("tasks/update", {"taskId": id, "inputResponses": {"b": accept(name="y")}})
        assert (await talk.until(id))["result"]["content"][0]["text"] == "x y"


@pytest.mark.parametrize("answer", [None, 7, {"action": "fly"}, {"action": "accept", "content": {"name": 7}}])
async def test_an_answer_that_is_none_is_refused(answer: Any, autojump_clock: MockClock) -> None:
    server, _ = make_asking()
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("one")
        await talk.until(id, "input_required")
        assert await talk.code("tasks/update", {"taskId": id, "inputResponses": {"who": answer}}) == -32602
        assert await talk.code("tasks/update", {"taskId": id, "inputResponses": answer and []}) == -32602
        assert (await talk.get(id))["status"] == "input_required"


async def test_keys_are_unique_over_the_lifetime_of_a_task() -> None:
    server, _ = make_asking(poll_interval=0.01)
    seen: list[str] = []
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("again_and_again")
        while (task := await talk.until(id, "input_required", "completed"))["status"] != "completed":
            (key,) = task["inputRequests"]
            assert key not in seen
            seen.append(key)
            answers = {key: accept(name=str(len(seen)))}
            await talk.result("tasks/update", {"taskId": id, "inputResponses": answers})
        assert task["result"]["content"][0]["text"] == "1 2 3"


async def answer_next(talk: Talk, **content: Any) -> dict[str, Any]:
    """Answers the next question that comes as a request, and returns it."""
    while not talk.asked:
        message = await talk.peer.receive()
        (talk.asked if "id" in message and "method" in message else talk.notified).append(message)
    request = talk.asked.pop(0)
    await talk.peer.send({"jsonrpc": "2.0", "id": request["id"], "result": accept(**content)})
    return request


async def test_questions_travel_on_the_stream_of_the_result(autojump_clock: MockClock) -> None:
    server, runs = make_asking()
    async with talking(server, CORE) as talk:
        id = await talk.begin("one")
        assert (await talk.until(id, "input_required"))["status"] == "input_required"
        waiting = await talk.send("tasks/result", {"taskId": id})
        request = await answer_next(talk, name="Ada")
        assert request["method"] == "elicitation/create"
        assert request["params"]["_meta"][RELATED] == {"taskId": id}
        result = (await talk.answer_to(waiting))["result"]
        assert result["content"][0]["text"] == "Hello, Ada!"
        assert result["_meta"][RELATED] == {"taskId": id}
        assert runs == ["one"]
        states = [
            each["params"]["status"]
            for each in talk.notified
            if each["method"] == "notifications/tasks/status"
        ]
        assert states[0] == "input_required"
        assert states[-1] == "completed"


async def test_several_may_wait_and_each_question_is_asked_once(autojump_clock: MockClock) -> None:
    server, _ = make_asking()
    async with talking(server, CORE) as talk:
        id = await talk.begin("two")
        waiting = [await talk.send("tasks/result", {"taskId": id}) for _ in range(3)]
        texts = [(await answer_next(talk, name=name))["params"]["message"] for name in ("x", "y")]
        assert sorted(texts) == ["a", "b"]
        answers = {}
        while len(answers) < 3:
            message = await talk.peer.receive()
            assert "method" not in message or "id" not in message, "asked twice"
            if "method" not in message:
                answers[message["id"]] = message["result"]
        assert set(answers) == set(waiting)
        assert len({str(each["content"]) for each in answers.values()}) == 1


async def test_another_waiter_asks_when_the_first_one_leaves(autojump_clock: MockClock) -> None:
    server, _ = make_asking()
    async with talking(server, CORE) as talk:
        id = await talk.begin("one")
        first = await talk.send("tasks/result", {"taskId": id})
        asked = await talk.peer.receive()
        while "id" not in asked:
            asked = await talk.peer.receive()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first}}
        second = await talk.send("tasks/result", {"taskId": id})
        await talk.peer.send(cancel)
        await answer_next(talk, name="Eve")
        assert (await talk.answer_to(second))["result"]["content"][0]["text"] == "Hello, Eve!"


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_a_question_that_nobody_waits_for_is_withdrawn(version: str, autojump_clock: MockClock) -> None:
    server, _ = make_asking()
    async with talking(server, version) as talk:
        id = await talk.begin("impatient")
        await talk.until(id, "input_required")
        await trio.sleep(6)
        assert (await talk.get(id))["status"] == "working"
        assert (await talk.until(id))["status"] == "completed"


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_a_task_that_waits_for_an_answer_can_be_cancelled(
    version: str, autojump_clock: MockClock
) -> None:
    server, _ = make_asking()
    async with talking(server, version) as talk:
        id = await talk.begin("one")
        await talk.until(id, "input_required")
        await talk.result("tasks/cancel", {"taskId": id})
        task = await talk.get(id)
        assert task["status"] == "cancelled"
        assert "inputRequests" not in task
        if version == CORE:
            assert await talk.code("tasks/result", {"taskId": id}) == -32603


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_a_client_that_cannot_be_asked(version: str, autojump_clock: MockClock) -> None:
    server = make_server()
    seen: list[dict[str, Any]] = []

    @server.tool(task="optional")
    async def one(ctx: Context) -> str:
        try:
            await ctx.elicit("Your name?", FORM)
        except MissingCapability as error:
            seen.append(error.data)
        return "done"

    async with talking(server, version, DECLARED) as talk:
        assert (await talk.until(await talk.begin("one")))["status"] == "completed"
    assert seen == [{"requiredCapabilities": {"elicitation": {"form": {}}}}]


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_rounds_come_before_the_task(version: str, autojump_clock: MockClock) -> None:
    server = make_server()

    async def ask(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        answer = await ctx.elicit("Your name?", FORM, key="who")
        return {**arguments, "name": (answer.content or {})["name"]}

    @server.tool(task="optional", before_task=ask)
    async def greet(greeting: str, name: str = "nobody") -> str:
        return f"{greeting}, {name}!"

    params: dict[str, Any] = {"name": "greet", "arguments": {"greeting": "Hi"}}
    async with talking(server, version) as talk:
        if version == CORE:
            call = await talk.send("tools/call", {**params, "task": {}})
            await answer_next(talk, name="Ada")
            task = (await talk.answer_to(call))["result"]["task"]
        else:
            first = await talk.result("tools/call", params)
            assert first["resultType"] == "input_required"
            assert "taskId" not in first
            again = {"inputResponses": {"who": accept(name="Ada")}, "requestState": first["requestState"]}
            task = await talk.result("tools/call", {**params, **again})
            assert task["resultType"] == "task"
            assert not {"requestState", "inputRequests", "result", "error"} & set(task)
        ended = await talk.until(task["taskId"])
        if version == CORE:
            ended = {"result": await talk.result("tasks/result", {"taskId": task["taskId"]})}
        assert ended["result"]["content"][0]["text"] == "Hi, Ada!"
    async with talking(server, version, ASKED) as talk:
        call = await talk.send("tools/call", {**params, **({} if version == CORE else again)})
        if version == CORE:
            await answer_next(talk, name="Bob")
        result = (await talk.answer_to(call))["result"]
        if version == CORE:
            assert result["content"][0]["text"] == "Hi, Bob!"


async def test_what_runs_once_is_not_run_again_by_the_answer(autojump_clock: MockClock) -> None:
    server, runs = make_asking()
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("two")
        await talk.until(id, "input_required")
        for _ in range(3):
            await talk.result("tasks/update", {"taskId": id, "inputResponses": {}})
        await wait_all_tasks_blocked()
        assert runs == ["two"]


# -- Questions of a server that a session's client answers later, as tasks of its own (MCP 2025-11-25, Tasks) ---

HOSTS = {
    "elicitation": {"form": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}}},
}


def make_server_asked_tasks() -> Server:
    server = Server("s")

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", FORM, ttl=7200)
        return f"{answer.action} {answer.content}"

    @server.tool
    async def count(ctx: Context) -> str:
        sampled: Any = await ctx.sample("Count!", max_tokens=9, ttl=7200)
        return str(sampled.content.text)

    return server


@pytest.mark.parametrize("version", ["2025-06-18", CORE, EXTENSION])
@pytest.mark.parametrize("tasks", [True, False])
async def test_an_answer_is_the_same_however_it_comes(
    version: str, tasks: bool, autojump_clock: MockClock
) -> None:
    async def person(question: Any) -> ElicitResult:
        await trio.sleep(90)
        return ElicitResult("accept", {"name": "Ada"})

    async def model(question: Any) -> CreateMessageResult:
        await trio.sleep(90)
        return CreateMessageResult(role="assistant", content=TextContent(text="1, 2"), model="m")

    async with Client(
        make_server_asked_tasks(), era=version, elicitation=person, sampling=model, tasks=tasks
    ) as client:
        greeted = await client.call_tool("greet")
        assert greeted.content[0].text == "accept {'name': 'Ada'}"
        counted = await client.call_tool("count")
        assert counted.content[0].text == "1, 2"


async def test_a_person_may_take_longer_than_one_message_may(autojump_clock: MockClock) -> None:
    """`Limits.ask_timeout` is ten minutes."""

    async def person(question: Any) -> ElicitResult:
        await trio.sleep(3000)
        return ElicitResult("decline")

    async with Client(
        make_server_asked_tasks(), era=CORE, elicitation=person, cap=9000, timeout=9000
    ) as client:
        assert (await client.call_tool("greet")).content[0].text == "decline None"


class Asked:
    """A scripted client that was asked with a task."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        self.methods: list[str] = []

    async def begin(self, task: Any) -> dict[str, Any]:
        await self.peer.initialize(CORE, HOSTS)
        params = {"name": "greet", "arguments": {}}
        await self.peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        question = await self.take()
        await self.reply(question, {"task": task})
        return question

    async def take(self) -> dict[str, Any]:
        """The next request of the server, or the answer to the call."""
        while True:
            message: dict[str, Any] = await self.peer.receive()
            if "id" in message:
                self.methods.append(message.get("method", "answer"))
                return message

    async def reply(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        await self.peer.send({"jsonrpc": "2.0", "id": request["id"], "result": result})


async def test_a_task_is_looked_at_until_it_has_ended(autojump_clock: MockClock) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        question = await asked.begin({"taskId": "t", "status": "working", "pollInterval": 20_000})
        assert question["params"]["task"] == {"ttl": 7_200_000}
        began = trio.current_time()
        look = await asked.take()
        assert (look["params"], trio.current_time() - began) == ({"taskId": "t"}, 20)
        await asked.reply(look, {"taskId": "t", "status": "completed"})
        await asked.reply(await asked.take(), {"action": "decline"})
        answer = await asked.take()
        assert answer["result"]["content"][0]["text"] == "decline None"
        assert asked.methods == ["elicitation/create", "tasks/get", "tasks/result", "answer"]


async def test_a_task_that_asked_and_was_answered_is_not_cancelled(autojump_clock: MockClock) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "input_required"})
        await asked.reply(await asked.take(), {"action": "decline"})
        answer = await asked.take()
        assert answer["result"]["content"][0]["text"] == "decline None"
        assert asked.methods == ["elicitation/create", "tasks/result", "answer"]


@pytest.mark.parametrize(
    ("task", "then"),
    [
        ({"taskId": "t", "status": "cancelled"}, []),
        ({"taskId": "t", "status": "asleep"}, ["tasks/cancel"]),
        ({"taskId": "t", "status": ["working"]}, ["tasks/cancel"]),
        ({"taskId": "t"}, ["tasks/cancel"]),
        ({"taskId": "", "status": "working"}, []),
        ({"taskId": "t" * 257, "status": "working"}, []),
        ({"status": "working"}, []),
    ],
)
async def test_a_task_that_comes_to_nothing_is_an_error_of_the_call(
    task: dict[str, Any], then: list[str], autojump_clock: MockClock
) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        await asked.begin(task)
        while "method" in (message := await asked.take()):
            await asked.reply(message, {})
        assert "error" in message or message["result"]["isError"] is True
        assert asked.methods == ["elicitation/create", *then, "answer"]


@pytest.mark.parametrize("interval", [0, -1, 10**400, 1e-300, True, "soon", None])
async def test_an_interval_of_any_kind_neither_spins_nor_stalls(
    interval: Any, autojump_clock: MockClock
) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "working", "pollInterval": interval})
        began = trio.current_time()
        assert (await asked.take())["method"] == "tasks/get"
        assert 0.1 <= trio.current_time() - began <= 60


@pytest.mark.parametrize("looks", [0, 1, 3])
async def test_a_call_that_is_cancelled_cancels_its_question(looks: int, autojump_clock: MockClock) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "working", "pollInterval": 1000})
        for _ in range(looks):
            await asked.reply(await asked.take(), {"taskId": "t", "status": "working", "pollInterval": 1000})
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await peer.send(cancelled)
        last = await asked.take()
        assert (last["method"], last["params"]) == ("tasks/cancel", {"taskId": "t"})


async def test_the_time_of_a_question_ends(autojump_clock: MockClock) -> None:
    async with raw_client(make_server_asked_tasks()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "working", "pollInterval": 60_000})
        began = trio.current_time()
        while (message := await asked.take())["method"] == "tasks/get":
            await asked.reply(message, {"taskId": "t", "status": "working", "pollInterval": 60_000})
        assert message["method"] == "tasks/cancel"
        assert trio.current_time() - began == 7200
        await asked.reply(message, {})
        assert (await asked.take())["result"]["isError"] is True


async def test_an_error_of_the_client_is_that_of_the_question(autojump_clock: MockClock) -> None:
    async def person(question: Any) -> ElicitResult:
        raise RpcError(-1, "the person is asleep")

    async with Client(make_server_asked_tasks(), era=CORE, elicitation=person) as client:
        with pytest.raises(RpcError, match="asleep"):
            await client.call_tool("greet")
