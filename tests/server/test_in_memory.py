"""A client and a server in one process are as far apart as any two, whoever's turn a frame is delivered in."""

from __future__ import annotations

import contextvars
import gc
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mcp_actors import CallTimeout, Client, ConnectionLost, Context, Server
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors.testing import raw_client
from tests.scripted_peers import EVERY, begin, meta, scripted

who = contextvars.ContextVar("who", default="nobody")

eras = pytest.mark.parametrize("era", ["legacy", "modern"])


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def asks_who() -> str:
        return who.get()

    @server.tool(inline=True)
    def at_once() -> str:
        return "done"

    @server.tool
    async def counts(ctx: Context) -> str:
        for number in range(1, 4):
            await ctx.progress(number)
        return "done"

    @server.tool
    async def tidies_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)

    return server


@eras
async def test_a_handler_sees_nothing_of_its_callers_context(era: str) -> None:
    async with Client(make_server(), era=era) as client:
        who.set("the caller")
        for _ in range(2):
            result = await client.call_tool("asks_who")
            assert result.content[0].text == "nobody"  # type: ignore[union-attr]


@eras
async def test_a_call_that_is_answered_at_once_is_a_checkpoint_all_the_same(era: str) -> None:
    async with Client(make_server(), era=era) as client:
        with trio.testing.assert_checkpoints():
            await client.call_tool("at_once")
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.call_tool("at_once")
        assert scope.cancelled_caught


@eras
async def test_progress_comes_before_the_answer_and_in_order(era: str) -> None:
    seen: list[float] = []
    async with Client(make_server(), era=era) as client:
        result = await client.call_tool("counts", on_progress=lambda p: seen.append(p.progress))
        assert (seen, result.is_error) == ([1, 2, 3], None)


@eras
async def test_nobody_waits_for_a_handler_that_tidies_up(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with Client(make_server(), era=era) as client:
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await client.call_tool("tidies_up", timeout=5)
        with trio.move_on_after(5):
            await client.call_tool("tidies_up")
        assert trio.current_time() - began == 10
        assert [call.state for call in client.tree().calls] == []


@eras
async def test_what_fails_while_it_is_delivered_ends_the_session_and_not_the_sender(
    era: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with Client(make_server(), era=era) as client:

        def fail(self: Dispatcher, request: object, outlet: object) -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr(Dispatcher, "open", fail)
        with pytest.raises(ConnectionLost):
            await client.call_tool("at_once")
    assert "session failed" in "".join(capsys.readouterr())


# -- A server that owns its process lets the garbage collector rest; one that is embedded touches nothing ---


class Looks:
    """A transport that has a look at the collector and is done."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    async def serve(
        self, handler: Any, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started("here")
        self.seen.append(gc.get_threshold())


def test_only_a_server_that_is_run_has_rare_full_passes() -> None:
    before, looks = gc.get_threshold(), Looks()
    trio.run(Server("embedded").serve, looks)
    Server("run").run(looks)
    assert looks.seen[0] == before
    assert looks.seen[1] != before
    assert gc.get_threshold() == before


# -- JSON-RPC batches: one revision has them, all others refuse them -------------------------------------


def make_server_batches() -> Server:
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
    async with raw_client(make_server_batches()) as peer:
        await begin(peer, version)
        await peer.send([ping(1)])
        answer = await peer.receive()
        assert answer["error"]["code"] == -32600
        assert "id" not in answer


async def test_no_batch_before_the_handshake_and_no_handshake_in_a_batch() -> None:
    async with raw_client(make_server_batches()) as peer:
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
    async with raw_client(make_server_batches()) as peer:
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
    async with raw_client(make_server_batches()) as peer:
        await peer.initialize("2025-03-26")
        await peer.send([call(1, "wait"), ping(2)])
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        answers = await peer.receive()
        assert [answer["id"] for answer in answers] == [2]


async def test_a_batch_of_notifications_alone_is_not_answered(autojump_clock: MockClock) -> None:
    async with raw_client(make_server_batches()) as peer:
        await peer.initialize("2025-03-26")
        told = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        await peer.send([told, told])
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught


async def test_an_empty_batch_is_an_invalid_request() -> None:
    async with raw_client(make_server_batches()) as peer:
        await peer.initialize("2025-03-26")
        await peer.send(b"[]")
        assert (await peer.receive())["error"]["code"] == -32600


async def test_a_modern_request_may_travel_in_the_batch_of_a_session() -> None:
    async with raw_client(make_server_batches()) as peer:
        await peer.initialize("2025-03-26")
        modern = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta()}}
        await peer.send([modern, ping(2)])
        answers = {answer["id"]: answer for answer in await peer.receive()}
        assert answers[1]["result"]["resultType"] == "complete"
        assert answers[2]["result"] == {}


async def test_a_client_answers_a_batch_whose_other_entry_is_broken() -> None:
    async with scripted("2025-03-26") as (_, peer):
        await peer.send([ping(1), {"jsonrpc": "2.0", "id": 2, "method": 5}])
        with trio.fail_after(60):
            assert await peer.receive() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
