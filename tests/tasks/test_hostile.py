"""What hostile clients, other tenants and careless authors of tools get: a refusal, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Context, Server
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import RpcError
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitFormParams
from tests.actors.peers import Serves

from .talking import ASKED, CORE, DECLARED, EXTENSION, Talk, make_server, talking

BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])
OVERLOADED = 429


def with_tools(server: Server) -> Server:
    @server.tool(task="optional")
    async def quick(text: str = "") -> str:
        return "quick"

    @server.tool(task="optional")
    async def large(size: int) -> str:
        return "x" * size

    @server.tool(task="optional")
    async def says(ctx: Context) -> str:
        await ctx.progress(1, 2, "half \ud800 done")
        await trio.sleep(5)
        return "done"

    @server.tool(task="optional")
    async def refuses(size: int) -> str:
        raise RpcError(-32000, "no", {"why": "x" * size})

    return server


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_ttl", [None, 60.0])
@pytest.mark.parametrize("asked", [10**400, 1e308, 2**64])
async def test_no_number_is_too_large_for_a_time(
    asked: float, max_ttl: float | None, autojump_clock: MockClock
) -> None:
    async with talking(with_tools(make_server(ttl=60, max_ttl=max_ttl)), CORE) as talk:
        task = (await talk.result("tools/call", {"name": "quick", "task": {"ttl": asked}}))["task"]
        assert task["ttl"] == (None if max_ttl is None else 60_000)
        assert (await talk.until(task["taskId"]))["status"] == "completed"


async def test_tasks_whose_time_is_over_hide_none_from_the_list(autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server()), CORE) as talk:
        for _ in range(102):
            await talk.result("tools/call", {"name": "quick", "task": {"ttl": 1}})
        kept = [await talk.begin("quick") for _ in range(101)]
        await trio.sleep(1)
        first = await talk.result("tasks/list")
        second = await talk.result("tasks/list", {"cursor": first["nextCursor"]})
        assert [each["taskId"] for each in first["tasks"] + second["tasks"]] == kept
        assert "nextCursor" not in second


@BOTH
async def test_one_address_cannot_take_the_bytes_of_all(version: str, autojump_clock: MockClock) -> None:
    server = with_tools(make_server(bytes_per_principal=100_000, bytes_in_all=1_000_000))
    async with talking(server, version) as talk:
        arguments = {"text": "x" * 30_000}
        created = [await talk.ask("tools/call", _call(version, "quick", arguments)) for _ in range(5)]
        assert ["error" in each for each in created] == [False, False, False, True, True]
        assert created[3]["error"]["code"] == OVERLOADED
        assert created[3]["error"]["data"]["scope"] == "holder"
        # It may go on when the time of its tasks is over.
        await trio.sleep(3600)
        assert "result" in await talk.ask("tools/call", _call(version, "quick", arguments))


@BOTH
async def test_results_count_for_the_address_that_has_them_kept(
    version: str, autojump_clock: MockClock
) -> None:
    server = with_tools(make_server(bytes_per_principal=100_000))
    async with talking(server, version) as talk:
        await talk.until(await talk.begin("large", {"size": 150_000}))
        assert await talk.code("tools/call", _call(version, "quick", {})) == OVERLOADED


@BOTH
async def test_a_refused_task_counts_for_nobody(version: str, autojump_clock: MockClock) -> None:
    server = with_tools(make_server(in_all=1))
    async with talking(server, version) as talk:
        await talk.begin("quick")
        for _ in range(1001):
            refused = await talk.ask("tools/call", _call(version, "quick", {}))
            assert refused["error"]["data"] == {"reason": "overloaded", "scope": "all", "limit": 1}


def _call(version: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    return {**params, "task": {}} if version == CORE else params


async def test_answers_that_a_task_has_not_taken_are_bounded(autojump_clock: MockClock) -> None:
    server = make_server()

    @server.tool(task="optional")
    async def asks(ctx: Context) -> str:
        form = {"type": "object", "properties": {"text": {"type": "string"}}}
        asked = {name: ElicitFormParams(message=name, requested_schema=form) for name in "abcd"}
        return str(len(await ctx.ask(asked)))

    answer = {"action": "accept", "content": {"text": "x" * 12_000_000}}
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("asks")
        asked = await talk.until(id, "input_required")
        answers = [
            await talk.ask("tasks/update", {"taskId": id, "inputResponses": {name: answer}})
            for name in asked["inputRequests"]
        ]
        assert ["error" in each for each in answers] == [False, False, False, True]


# -- authors of tools -------------------------------------------------------------------------------------------------


@BOTH
async def test_a_status_message_that_json_cannot_hold(version: str, autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with talking(with_tools(make_server()), version) as talk:
            id = await talk.begin("says")
            await trio.sleep(2)
            assert (await talk.get(id))["statusMessage"] == "half ? done"
            assert (await talk.until(id))["status"] == "completed"
    assert [each for each in logs if each["log_level"] == "error"] == []


@BOTH
@pytest.mark.parametrize("tool", ["large", "refuses"])
@pytest.mark.parametrize("around", [-5000, -300, 300, 50_000])
async def test_what_no_answer_can_carry_is_no_outcome(
    version: str, tool: str, around: int, autojump_clock: MockClock
) -> None:
    """A task whose outcome cannot be sent would never be known to have ended."""
    limit = 100_000
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=limit) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(with_tools(make_server()).serve, Serves(near))
        talk = Talk(ScriptedPeer(far), version, {**ASKED, **DECLARED})
        if version == CORE:
            await talk.peer.initialize(version, {})
        id = await talk.begin(tool, {"size": limit + around})
        task = await talk.until(id)
        shown = task if version == EXTENSION else await talk.ask("tasks/result", {"taskId": id})
        assert shown["error"]["code"] in (-32603, -32000)
        assert len(str(shown)) < 2000
        nursery.cancel_scope.cancel()
