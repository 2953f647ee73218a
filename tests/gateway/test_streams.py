"""Parts of results and messages to calls through a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors._client.tool_streams import WINDOW
from mcp_actors.client import Progress
from mcp_actors.errors import CallEnded
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams

PART = 10_000
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
EACH = [(mine, theirs) for mine in ("modern", "legacy") for theirs in ("modern", "legacy")]

each_pair = pytest.mark.parametrize(("mine", "theirs"), EACH)


class Behind:
    """A gateway before a server with tools that yield."""

    def __init__(self, theirs: str, *, has_tasks: bool = False) -> None:
        server = Server("behind")
        self.gateway = Gateway([Upstream(name="u", target=server, era=theirs)])
        self.yielded = 0
        self.closed = False

        @server.tool
        async def long(number: int) -> AsyncIterator[str]:
            try:
                for _ in range(number):
                    self.yielded += 1
                    yield "x" * PART
            finally:
                self.closed = True

        @server.tool
        async def steered(ctx: Context) -> AsyncIterator[str]:
            async for message in ctx.inbox:
                if message == "stop":
                    return
                yield f"got {message}"

        @server.tool
        async def plain(a: int) -> str:
            return str(a + 1)

        if has_tasks:

            @server.tool(task="optional")
            async def planned(ctx: Context) -> AsyncIterator[str]:
                async for message in ctx.inbox:
                    if message == "stop":
                        return
                    yield f"got {message}, "

            @server.tool(task="required")
            async def task_alone(ctx: Context) -> str:
                taken = []
                async for message in ctx.inbox:
                    if message == "stop":
                        break
                    taken.append(message)
                return str(taken)


@each_pair
async def test_parts_pass_and_a_slow_reader_holds_the_function_behind(
    mine: str, theirs: str, autojump_clock: MockClock
) -> None:
    behind = Behind(theirs)
    async with Client(behind.gateway, era=mine) as client:
        async with client.stream_tool("u_long", {"number": 200}) as stream:
            await anext(stream)
            await trio.sleep(60)
            # The window of the client, and that of the gateway.
            assert behind.yielded <= 2 * WINDOW // PART + 3
            assert (await client.call_tool("u_plain", {"a": 1})).text == "2"
            assert len([each async for each in stream]) == 199
            assert stream.result.text == "x" * 200 * PART


@each_pair
async def test_leaving_the_block_closes_the_function_behind(
    mine: str, theirs: str, autojump_clock: MockClock
) -> None:
    behind = Behind(theirs)
    async with Client(behind.gateway, era=mine) as client:
        async with client.stream_tool("u_long", {"number": 1000}) as stream:
            await anext(stream)
        await trio.sleep(1)
        assert behind.closed
        assert behind.yielded < 1000


@each_pair
@pytest.mark.parametrize("has_tasks", [False, True])
async def test_messages_pass_in_order(
    mine: str, theirs: str, has_tasks: bool, autojump_clock: MockClock
) -> None:
    async with Client(Behind(theirs, has_tasks=has_tasks).gateway, era=mine) as client:
        async with client.stream_tool("u_steered") as stream:
            for message in (1, 2, 3):
                await stream.send(message)
            assert [await anext(stream) for _ in range(3)] == ["got 1", "got 2", "got 3"]
            await stream.send("stop")
            assert [each async for each in stream] == []
            with pytest.raises(CallEnded):
                await stream.send("late")


@each_pair
async def test_a_client_without_parts_gets_them_as_progress(mine: str, theirs: str) -> None:
    reports: list[Progress] = []
    async with Client(Behind(theirs).gateway, era=mine) as client:
        await client.call_tool("u_long", {"number": 3}, on_progress=reports.append)
    assert [each.progress for each in reports] == [1, 2, 3]
    assert all((each.message or "").startswith("xxx") for each in reports)


@each_pair
async def test_a_part_comes_once_although_its_function_begins_again_to_take_an_answer(
    mine: str, theirs: str, autojump_clock: MockClock
) -> None:
    server = Server("behind")

    @server.tool
    async def asks(ctx: Context) -> AsyncIterator[str]:
        yield "before"
        for number in range(2):
            answer = await ctx.elicit(f"Number {number}?", FORM)
            yield f"{(answer.content or {})['name']}"
        for _ in range(100):
            yield "x" * PART
        yield await anext(ctx.inbox)

    async def answer(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        return ElicitResult("accept", {"name": question.message[7]})

    gateway = Gateway([Upstream(name="u", target=server, era=theirs)])
    parts: list[str] = []
    async with Client(gateway, era=mine, elicitation=answer) as client:
        async with client.stream_tool("u_asks", {}) as stream:
            async for part in stream:
                parts.append(part)
                if len(parts) == 103:
                    await stream.send("after")
    assert parts == ["before", "0", "1", *["x" * PART] * 100, "after"]
    assert stream.result.text == "".join(parts)


@pytest.mark.parametrize(("mine", "theirs"), [each for each in EACH if each != ("legacy", "modern")])
@pytest.mark.parametrize(
    ("name", "whole"), [("u_planned", "got 1, got 2, got 3, "), ("u_task_alone", "[1, 2, 3]")]
)
async def test_messages_to_a_task_pass_in_order(
    mine: str, theirs: str, name: str, whole: str, autojump_clock: MockClock
) -> None:
    """The task is one of the gateway, whatever the call behind it is: a plain one, or a task of the server.

    A client with a session has no task where the server has none: there the gateway waits until the task has ended.
    """
    async with Client(Behind(theirs, has_tasks=True).gateway, era=mine) as client:
        assert name in [each.name async for each in client.tools()]
        task = await client.start_tool(name)
        for message in (1, 2, 3):
            await task.send(message)
        await task.send("stop")
        with trio.fail_after(60):
            assert (await task.result()).text == whole
        with pytest.raises(CallEnded):
            await task.send("late")
