"""A request always gets an answer: what an answer repeats is cut, and one that is too long becomes an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import ResourceNotFound, RpcError, Server
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer
from tests.messages import BATCHING

from .peers import LEGACY, Serves, call, modern_call, request, settled

LIMIT = 100_000
server = Server("long answers")


@server.resource("x:{name}")
async def nothing(name: str) -> str:
    raise ResourceNotFound(f"x:{name}")


@server.tool
async def refuses(times: int) -> str:
    raise RpcError(-32000, "no " * times, {"why": "no " * times})


@server.tool
async def repeats(times: int, text: str = "x") -> str:
    return text * times


@asynccontextmanager
async def client(version: str = LEGACY, limit: int = LIMIT) -> AsyncIterator[ScriptedPeer]:
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=limit) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(near))
        peer = ScriptedPeer(far)
        await peer.initialize(version)
        yield peer
        nursery.cancel_scope.cancel()


async def idle() -> bool:
    """Whether nothing is in flight: a request without an answer would keep its session busy for ever."""
    await settled()
    return all(not session.calls for session in server.tree().sessions)


@pytest.mark.parametrize("length", [5_000, 50_000, LIMIT - 200])
@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("resources/read", "uri"),
        ("resources/subscribe", "uri"),
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("logging/setLevel", "level"),
        ("tools/list", "cursor"),
    ],
)
async def test_what_an_error_repeats_is_cut(length: int, method: str, member: str) -> None:
    async with client() as peer:
        answer = await peer.request(1, method, {member: "y" * length})
        assert "error" in answer, answer
        assert len(json.dumps(answer)) < 2 * 4096
        assert await idle()


async def test_a_method_of_any_length_is_refused_with_a_short_text() -> None:
    async with client() as peer:
        answer = await peer.request(1, "m" * (LIMIT - 100), {})
        assert answer["error"]["code"] == -32601
        assert len(json.dumps(answer)) < 4096


@pytest.mark.parametrize("make", [call, modern_call])
async def test_an_error_that_is_too_long_to_be_sent_is_replaced_by_one_that_says_so(make: Any) -> None:
    async with client() as peer:
        await peer.send(make(1, "refuses", times=LIMIT))
        answer = await peer.receive()
        assert answer["id"] == 1
        assert answer["error"]["code"] == -32603
        assert f"the limit is {LIMIT}" in answer["error"]["message"]
        assert await idle()


@pytest.mark.parametrize("number", [10, 100])
async def test_every_one_of_many_requests_is_answered(number: int) -> None:
    async with client() as peer, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def read() -> None:
            while len(answers) < number:
                answers.append(await peer.receive())

        nursery.start_soon(read)
        for id in range(number):
            uri = f"x:{'y' * 8000}" if id % 2 else "z" * (LIMIT - 200)
            await peer.send(request(id, "resources/read", {"uri": uri}))
        await settled()
        assert sorted(answer["id"] for answer in answers) == list(range(number))
        assert await idle()


async def test_an_id_that_is_too_long_is_refused_without_it() -> None:
    """The error cannot repeat the id, which alone may be longer than the connection carries."""
    async with client() as peer:
        await peer.send(request("x" * (LIMIT - 200), "ping"))
        answer = await peer.receive()
        assert "id" not in answer
        assert answer["error"]["code"] == -32600
        assert "1024" in answer["error"]["message"]
        assert "result" in await peer.request("x" * 1024, "ping")


@pytest.mark.parametrize("make", [call, modern_call])
async def test_a_progress_token_that_is_too_long_is_refused(make: Any) -> None:
    async with client() as peer:
        message = make(1, "repeats", times=1)
        message["params"].setdefault("_meta", {})["progressToken"] = "t" * 1025
        await peer.send(message)
        answer = await peer.receive()
        assert answer["error"]["code"] == -32602
        assert "1024" in answer["error"]["message"]


@pytest.mark.parametrize("size", [10, 100])
async def test_each_request_of_a_batch_is_answered_although_their_answers_are_too_long_together(
    size: int,
) -> None:
    async with client(BATCHING) as peer:
        await peer.send([call(id, "repeats", times=2 * LIMIT // size) for id in range(size)])
        first = await peer.receive()
        assert {each["id"] for each in first} == set(range(size))
        answered = [each for each in first if "result" in each]
        refused = [each for each in first if "error" in each]
        assert answered
        assert refused
        assert all("too long" in each["error"]["message"] for each in refused)
        assert await idle()
