"""JSON-RPC batches: one revision has them, all others refuse them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Server
from mcp_actors.testing import raw_client

from .peers import EVERY, begin, meta, scripted


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    @server.tool
    async def wait() -> str:
        """Never ends."""
        await trio.sleep_forever()
        return ""

    return server


def ping(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


def call(id: Any, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


@pytest.mark.parametrize("version", [each for each in EVERY if each != "2025-03-26"])
async def test_no_other_revision_has_batches(version: str) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version)
        await peer.send([ping(1)])
        answer = await peer.receive()
        assert answer["error"]["code"] == -32600
        assert "id" not in answer


async def test_no_batch_before_the_handshake_and_no_handshake_in_a_batch() -> None:
    async with raw_client(make_server()) as peer:
        await peer.send([ping(1)])
        assert (await peer.receive())["error"]["code"] == -32600
        await peer.initialize("2025-03-26")
        params = {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.send([ping(2), {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": params}])
        assert (await peer.receive())["error"]["code"] == -32600


async def test_the_answers_of_a_batch_come_as_one_array() -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-03-26")
        broken = {"jsonrpc": "2.0", "id": 5, "method": 5}
        told = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        await peer.send([ping(1), told, call("2", "echo", text="hi"), call(3, "unknown"), broken])
        answers = await peer.receive()
        assert isinstance(answers, list)
        by_id = {answer["id"]: answer for answer in answers}
        assert set(by_id) == {1, "2", 3, 5}
        assert by_id[1]["result"] == {}
        assert by_id["2"]["result"]["content"][0]["text"] == "hi"
        assert by_id[3]["error"]["code"] == -32602
        assert by_id[5]["error"]["code"] == -32600


async def test_entries_are_cancelled_one_by_one() -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-03-26")
        await peer.send([call(1, "wait"), ping(2)])
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        answers = await peer.receive()
        assert [answer["id"] for answer in answers] == [2]


async def test_a_batch_of_notifications_alone_is_not_answered(autojump_clock: MockClock) -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-03-26")
        told = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        await peer.send([told, told])
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught


async def test_an_empty_batch_is_an_invalid_request() -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-03-26")
        await peer.send(b"[]")
        assert (await peer.receive())["error"]["code"] == -32600


async def test_a_modern_request_may_travel_in_the_batch_of_a_session() -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-03-26")
        modern = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta()}}
        await peer.send([modern, ping(2)])
        answers = {answer["id"]: answer for answer in await peer.receive()}
        assert answers[1]["result"]["resultType"] == "complete"
        assert answers[2]["result"] == {}


async def test_a_client_answers_a_batch_whose_other_entry_is_broken() -> None:
    async with scripted("2025-03-26") as (_, peer):
        await peer.send([ping(1), {"jsonrpc": "2.0", "id": 2, "method": 5}])
        with trio.fail_after(10):
            assert await peer.receive() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
