"""Tasks that ask their client: ``input_required`` in both dialects, and rounds before the task."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, MissingCapability, Server
from mcp_actors.types import ElicitFormParams

from .talking import ASKED, CORE, DECLARED, EXTENSION, Talk, make_server, talking

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
RELATED = "io.modelcontextprotocol/related-task"


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


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
