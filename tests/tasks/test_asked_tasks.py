"""Questions of a server that a session's client answers later, as tasks of its own (MCP 2025-11-25, Tasks)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.errors import RpcError
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import CreateMessageResult, ElicitResult, TextContent

from .talking import CORE, EXTENSION

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
HOSTS = {
    "elicitation": {"form": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}}},
}


def make_server() -> Server:
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

    async with Client(make_server(), era=version, elicitation=person, sampling=model, tasks=tasks) as client:
        greeted = await client.call_tool("greet")
        assert greeted.content[0].text == "accept {'name': 'Ada'}"
        counted = await client.call_tool("count")
        assert counted.content[0].text == "1, 2"


async def test_a_person_may_take_longer_than_one_message_may(autojump_clock: MockClock) -> None:
    """`Limits.ask_timeout` is ten minutes."""

    async def person(question: Any) -> ElicitResult:
        await trio.sleep(3000)
        return ElicitResult("decline")

    async with Client(make_server(), era=CORE, elicitation=person, cap=9000, timeout=9000) as client:
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
    async with raw_client(make_server()) as peer:
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
    async with raw_client(make_server()) as peer:
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
    async with raw_client(make_server()) as peer:
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
    async with raw_client(make_server()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "working", "pollInterval": interval})
        began = trio.current_time()
        assert (await asked.take())["method"] == "tasks/get"
        assert 0.1 <= trio.current_time() - began <= 60


@pytest.mark.parametrize("looks", [0, 1, 3])
async def test_a_call_that_is_cancelled_cancels_its_question(looks: int, autojump_clock: MockClock) -> None:
    async with raw_client(make_server()) as peer:
        asked = Asked(peer)
        await asked.begin({"taskId": "t", "status": "working", "pollInterval": 1000})
        for _ in range(looks):
            await asked.reply(await asked.take(), {"taskId": "t", "status": "working", "pollInterval": 1000})
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await peer.send(cancelled)
        last = await asked.take()
        assert (last["method"], last["params"]) == ("tasks/cancel", {"taskId": "t"})


async def test_the_time_of_a_question_ends(autojump_clock: MockClock) -> None:
    async with raw_client(make_server()) as peer:
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

    async with Client(make_server(), era=CORE, elicitation=person) as client:
        with pytest.raises(RpcError, match="asleep"):
            await client.call_tool("greet")
