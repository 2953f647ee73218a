"""A server made of a recording, and faults from a text."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.abc import Frame
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import CallTimeout, RpcError
from mcp_actors.gateway.gateway import bridge_to
from mcp_actors.testing import Faults, FaultyTransport, MockServer, Recording, RecordingTransport
from mcp_actors.testing.mocked import MAX_IN_FLIGHT
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams

FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


def everything() -> Server:
    server = Server("everything")
    numbers = iter(range(100))

    @server.tool
    async def count() -> int:
        """Counts."""
        return next(numbers)

    @server.tool
    async def slow(ctx: Context) -> str:
        """Reports progress."""
        await ctx.progress(1, 2)
        await ctx.progress(2, 2)
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        """Asks."""
        answer = await ctx.elicit("Who?", FORM)
        return f"hello {(answer.content or {}).get('name')}"

    @server.tool
    async def fail() -> str:
        """Fails."""
        raise RpcError(-32000, "out of order", {"part": 7})

    @server.resource("note://one")
    async def note() -> str:
        """A note."""
        return "one"

    return server


async def answer(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


async def used(client: Client) -> list[Any]:
    reports: list[float] = []
    found: list[Any] = [sorted([each.name async for each in client.tools()])]
    found += [(await client.call_tool("count")).text for _ in range(2)]
    slow = await client.call_tool("slow", on_progress=lambda report: reports.append(report.progress))
    found += [slow.text, reports, (await client.call_tool("ask")).text]
    try:
        await client.call_tool("fail")
    except RpcError as error:
        found.append((error.code, error.message, error.data))
    assert found[3:6] == ["done", [1, 2], "hello Ada"]
    found.append((await client.read_resource("note://one")).contents)
    return found


async def recorded(path: Path, era: str) -> list[Any]:
    transport: Any = client_transport("memory:")
    server = everything()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(RecordingTransport(transport, path), era=era, elicitation=answer) as client:
            found = await used(client)
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_mock_answers_as_the_server_did(era: str, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    expected = await recorded(path, era)
    mock = MockServer(Recording.load(path))
    for _ in range(2):
        async with Client(mock, elicitation=answer) as client:
            assert client.era == era
            assert await used(client) == expected
    assert not [each for each in mock.unknown if each != "server/discover"]


@pytest.mark.parametrize("front", ["modern", "legacy"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_bridge_serves_a_mock_in_both_eras(era: str, front: str, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    await recorded(path, era)
    mock = MockServer(Recording.load(path))
    async with Client(bridge_to(lambda: mock), era=front, elicitation=answer) as client:
        assert {each.name async for each in client.tools()} == {"count", "slow", "ask", "fail"}
        assert (await client.call_tool("count")).text == "0"
        assert client.server_info.name == "everything"


async def test_what_was_not_recorded_is_an_error_and_the_last_answer_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    await recorded(path, "modern")
    mock = MockServer(Recording.load(path))
    async with Client(mock) as client:
        assert [(await client.call_tool("count")).text for _ in range(3)] == ["0", "1", "1"]
        with pytest.raises(RpcError) as refused:
            await client.call_tool("count", {"by": 2})
    assert refused.value.data == {"reason": "not_recorded"}
    assert mock.unknown == ["tools/call"]


async def test_a_mock_refuses_calls_beyond_those_that_wait_and_answers_these(
    tmp_path: Path, autojump_clock: object
) -> None:
    path = tmp_path / "day.jsonl"
    await recorded(path, "legacy")
    received: list[dict[str, Any]] = []

    async def receive_until(what: Callable[[dict[str, Any]], bool], number: int) -> list[dict[str, Any]]:
        while len(found := [each for each in received if what(each)]) < number:
            received.append(json.loads((await channel.receive()).data))
        return found

    async def send(**members: Any) -> None:
        await channel.send(Frame(json.dumps({"jsonrpc": "2.0", **members}).encode()))

    ask = {"method": "tools/call", "params": {"name": "ask"}}
    with trio.fail_after(30):
        async with MockServer(Recording.load(path)).connect() as channel:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_until, lambda each: "method" in each, MAX_IN_FLIGHT)
                for number in range(MAX_IN_FLIGHT):
                    await send(id=number, **ask)
            await send(id="one more", **ask)
            [refused] = await receive_until(lambda each: each.get("id") == "one more", 1)
            assert (refused["error"]["code"], refused["error"]["data"]["reason"]) == (429, "overloaded")
            questions = [each["id"] for each in received if "method" in each]
            await send(method="notifications/cancelled", params={"requestId": 0})
            await send(id="in its place", method="tools/call", params={"name": "count"})
            await receive_until(lambda each: each.get("id") == "in its place" and "result" in each, 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_until, lambda each: "hello Ada" in str(each), MAX_IN_FLIGHT - 1)
                for question in questions:
                    await send(id=question, result={"action": "accept", "content": {"name": "Ada"}})


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
async def test_a_recording_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text("older, and for everybody")
    path.chmod(0o644)
    await recorded(path, "modern")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


# -- faults from a text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", Faults()),
        (
            "latency=200ms loss=1% lose-answers=2% stall=5s",
            Faults(latency=0.2, loss=0.01, lose_answers=0.02, stall=0.01, stall_seconds=5),
        ),
        (
            "jitter=0.5s stall=1s/10% duplicate=100% bandwidth=100KB",
            Faults(jitter=0.5, stall=0.1, stall_seconds=1, duplicate=1, bandwidth=100_000),
        ),
    ],
)
def test_faults_are_read(text: str, faults: Faults) -> None:
    assert Faults.parse(text) == faults


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("latency", "there is no 'latency'"),
        ("slow=1s", "there is no 'slow=1s'"),
        ("latency=200", "latency=200 is no amount: write latency=1ms or latency=1s"),
        ("loss=0.1", "write loss=1%"),
        ("loss=101%", "loss is a probability"),
        ("loss=1% loss=2%", "given twice"),
        ("stall=1s stall=2s", "given twice"),
        ("latency=-1s", "no amount"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Faults.parse(text)


async def test_an_answer_is_lost_and_the_connection_goes_on(autojump_clock: object) -> None:
    server = everything()
    transport: Any = client_transport("memory:")
    faulty = FaultyTransport(transport, Faults(), back=Faults(lose_answers=1.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(faulty, era="legacy", timeout=3) as client:
            with pytest.raises(CallTimeout):
                await client.call_tool("count")
        nursery.cancel_scope.cancel()
    assert faulty.statistics().answers_lost == 1
    async with Client(server) as client:
        assert (await client.call_tool("count")).text == "1"
