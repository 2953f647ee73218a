"""Questions of a session's server that the client answers later, as tasks of its own (MCP 2025-11-25, Tasks)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import ElicitResult
from tests.messages import CAPABILITIES, LEGACY, MODERN

from .peers import greet, scripted

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
async def asking(person: Person, **task: Any) -> AsyncIterator[tuple[ScriptedPeer, str, Client]]:
    """A server that has asked with a task, the task's id, and the client."""
    async with scripted(LEGACY, elicitation=person) as (client, peer):
        answer = await peer.request("ask", "elicitation/create", {**FORM, "task": task})
        described = answer["result"]["task"]
        assert described["status"] == "working"
        yield peer, described["taskId"], client


async def test_a_question_is_answered_later(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking(person, ttl=5000) as (peer, id, _):
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
    async with asking(person) as (peer, id, _), trio.open_nursery() as nursery:

        async def come_back() -> None:
            await trio.sleep(100)
            person.back.set()

        nursery.start_soon(come_back)
        answer = await peer.request(1, "tasks/result", {"taskId": id})
        assert answer["result"]["action"] == "accept"
        assert trio.current_time() >= 100


async def test_a_question_is_cancelled_once(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking(person) as (peer, id, _):
        cancelled = await peer.request(1, "tasks/cancel", {"taskId": id})
        assert cancelled["result"]["status"] == "cancelled"
        assert (await peer.request(2, "tasks/cancel", {"taskId": id}))["error"]["code"] == -32602
        assert "error" in await peer.request(3, "tasks/result", {"taskId": id})
    assert person.cancelled == 1


async def test_the_time_of_a_question_ends(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking(person, ttl=5000) as (peer, id, _):
        await trio.sleep(6)
        assert (await peer.receive())["params"]["status"] == "failed"
        assert (await peer.request(1, "tasks/get", {"taskId": id}))["error"]["code"] == -32602
    assert person.cancelled == 1


async def test_questions_end_with_the_connection(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking(person) as (peer, _, _client):
        await peer.channel.aclose()
        await trio.sleep(1)
        assert person.cancelled == 1


async def test_questions_are_limited(autojump_clock: MockClock) -> None:
    person = Person()
    async with asking(person) as (peer, _, _client):
        for n in range(31):
            assert "result" in await peer.request(n, "elicitation/create", {**FORM, "task": {}})
        refused = await peer.request("more", "elicitation/create", {**FORM, "task": {}})
        assert refused["error"]["code"] == 429
    assert person.asked == 32


async def test_a_time_that_no_clock_holds_is_cut(autojump_clock: MockClock) -> None:
    async with asking(Person(), ttl=10**400) as (peer, id, _client):
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
