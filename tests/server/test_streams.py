"""Tools that yield: their parts at clients of every kind, and messages to calls that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors._client.tool_streams import WINDOW
from mcp_actors._server.inbox import MOST_MESSAGES
from mcp_actors._server.streams import LONGEST_MESSAGE
from mcp_actors.client import Progress
from mcp_actors.errors import (
    CallEnded,
    InboxUnavailable,
    LocalProtocolError,
    Overloaded,
    RemoteProtocolError,
    RpcError,
    ToolFailed,
    UnexpectedResult,
)
from mcp_actors.types import UNSET, ElicitResult, ImageContent, TextContent
from tests.messages import LEGACY, MODERN
from tests.scripted_peers import fail, notify, reply, scripted

each_era = pytest.mark.parametrize("era", ["modern", "legacy"])
PART = 10_000
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@dataclass
class Row:
    name: str
    size: int


class Tools:
    """A server with tools that yield, and what their functions have gone through."""

    def __init__(self) -> None:
        self.server = server = Server("streams")
        self.yielded = 0
        self.closed: list[int] = []
        self.go = trio.Event()

        @server.tool
        async def say(text: str) -> AsyncIterator[str]:
            for word in text.split():
                yield f"{word} "

        @server.tool
        async def rows(number: int) -> AsyncIterator[Row]:
            for each in range(number):
                yield Row(f"r{each}", each)

        @server.tool
        def numbers(number: int) -> Iterator[int]:
            yield from range(number)

        @server.tool(loop="asyncio")
        async def ticks(number: int) -> AsyncIterator[int]:
            for each in range(number):
                await asyncio.sleep(0)
                yield each

        @server.tool
        async def pictures() -> AsyncIterator[TextContent | ImageContent]:
            yield TextContent("one")
            yield ImageContent("AAAA", "image/png")

        @server.tool
        async def long(number: int) -> AsyncIterator[str]:
            try:
                for _ in range(number):
                    self.yielded += 1
                    yield "x" * PART
            finally:
                self.closed.append(self.yielded)

        @server.tool
        async def stuck() -> AsyncIterator[str]:
            try:
                yield "begun"
                await trio.sleep_forever()
            finally:
                self.closed.append(1)

        @server.tool
        async def failing() -> AsyncIterator[int]:
            yield 1
            raise ValueError("no more")

        @server.tool
        async def nothing() -> AsyncIterator[str]:
            if self.yielded:
                yield "something"

        @server.tool
        async def steered(ctx: Context) -> AsyncIterator[str]:
            async for message in ctx.inbox:
                if message == "stop":
                    return
                yield f"got {message}"

        @server.tool
        def steered_in_a_thread(ctx: SyncContext) -> list[Any]:
            heard = []
            for message in ctx.inbox:
                if message == "stop":
                    return heard
                heard.append(message)
            return ["nobody can write"]

        @server.tool(loop="asyncio")
        async def steered_in_asyncio(ctx: Context) -> list[Any]:
            heard = []
            async for message in ctx.inbox:
                if message == "stop":
                    return heard
                heard.append(message)
            return ["nobody can write"]

        @server.tool
        async def deaf(ctx: Context) -> list[Any]:
            await self.go.wait()
            return ctx.inbox.take_all()

        @server.tool
        async def plain(a: int) -> int:
            return a + 1


@pytest.fixture
def tools() -> Tools:
    return Tools()


# -- parts -----------------------------------------------------------------------------------------------------------


@each_era
@pytest.mark.parametrize(
    ("name", "arguments", "parts", "text"),
    [
        ("say", {"text": "a b c"}, ["a ", "b ", "c "], "a b c "),
        ("numbers", {"number": 3}, [0, 1, 2], "[0,1,2]"),
        ("ticks", {"number": 3}, [0, 1, 2], "[0,1,2]"),
        ("rows", {"number": 1}, [{"name": "r0", "size": 0}], '[{"name":"r0","size":0}]'),
        ("nothing", {}, [], ""),
        ("numbers", {"number": 0}, [], "[]"),
    ],
)
async def test_parts_come_one_by_one_and_the_result_has_them_all(
    tools: Tools, era: str, name: str, arguments: dict[str, Any], parts: list[Any], text: str
) -> None:
    async with Client(tools.server, era=era) as client, client.stream_tool(name, arguments) as stream:
        assert [each async for each in stream] == parts
        assert stream.result.text == text
        assert await client.call_tool(name, arguments) == stream.result


async def test_content_is_listed(tools: Tools) -> None:
    async with Client(tools.server) as client, client.stream_tool("pictures") as stream:
        got = [each async for each in stream]
        assert got == ["one", ImageContent("AAAA", "image/png")]
        assert stream.result.content == [TextContent("one"), ImageContent("AAAA", "image/png")]
        assert stream.result.structured_content is UNSET


@each_era
async def test_a_part_of_several_blocks_is_as_many_of_the_whole(era: str) -> None:
    server = Server("x")

    @server.tool
    async def pairs() -> AsyncIterator[list[TextContent]]:
        yield [TextContent("a"), TextContent("b")]
        yield [TextContent("c")]

    async with Client(server, era=era) as client, client.stream_tool("pairs") as stream:
        assert [each async for each in stream] == [["a", "b"], "c"]
        assert [getattr(each, "text", None) for each in stream.result.content] == ["a", "b", "c"]
        assert stream.result.structured_content is UNSET


async def test_the_output_schema_is_that_of_the_whole(tools: Tools) -> None:
    async with Client(tools.server) as client:
        schemas = {each.name: each.output_schema async for each in client.tools()}
    assert schemas["numbers"] == {"type": "array", "items": {"type": "integer"}}
    assert schemas["say"] is None


@each_era
async def test_a_part_comes_before_the_next_one_is_made(tools: Tools, era: str) -> None:
    async with Client(tools.server, era=era) as client, client.stream_tool("stuck") as stream:
        assert await anext(stream) == "begun"
        with pytest.raises(LocalProtocolError, match="has not ended"):
            _ = stream.result


async def test_parts_of_a_class(tools: Tools) -> None:
    async with Client(tools.server) as client:
        async with client.stream_tool("rows", {"number": 2}, returns=Row) as stream:
            assert [each async for each in stream] == [Row("r0", 0), Row("r1", 1)]
        async with client.stream_tool("numbers", {"number": 2}, returns=str) as stream:
            with pytest.raises(UnexpectedResult):
                await anext(stream)
        async with client.stream_tool("plain", {"a": 1}, returns=int) as stream:
            assert [each async for each in stream] == [2]
        async with client.stream_tool("failing", returns=int) as stream:
            assert await anext(stream) == 1
            with pytest.raises(ToolFailed, match="no more"):
                await anext(stream)


async def test_a_failure_comes_after_the_parts_before_it(tools: Tools) -> None:
    async with Client(tools.server) as client, client.stream_tool("failing") as stream:
        assert [each async for each in stream] == [1]
        assert stream.result.is_error


@each_era
async def test_other_clients_get_parts_as_reports_of_progress(tools: Tools, era: str) -> None:
    reports: list[Progress] = []
    async with Client(tools.server, era=era) as client:
        result = await client.call_tool("rows", {"number": 2}, on_progress=reports.append)
        await client.call_tool("say", {"text": "y" * 2 * LONGEST_MESSAGE}, on_progress=reports.append)
    assert [each.progress for each in reports] == [1, 2, 1]
    assert [each.message for each in reports[:2]] == ['{"name":"r0","size":0}', '{"name":"r1","size":1}']
    assert len(reports[2].message or "") == LONGEST_MESSAGE
    assert result.structured_content is not UNSET


async def test_reports_of_the_function_and_its_parts_go_together() -> None:
    server = Server("x")

    @server.tool
    async def work(ctx: Context) -> AsyncIterator[str]:
        await ctx.progress(50, 100)
        yield "half"
        await ctx.progress(100, 100)

    reports: list[Progress] = []
    async with Client(server) as client:
        await client.call_tool("work", on_progress=reports.append)
    assert [each.message for each in reports] == [None, "half", None]
    assert [each.progress for each in reports] == sorted({each.progress for each in reports})


@pytest.mark.parametrize("name", ["wrong", "wrong_in_a_thread", "half"])
async def test_a_part_that_cannot_be_sent_is_a_failure_of_the_tool(name: str) -> None:
    server = Server("wrong parts", mask_errors=False)

    @server.tool
    async def wrong() -> AsyncIterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    @server.tool
    def wrong_in_a_thread() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    @server.tool
    async def half() -> AsyncIterator[str]:
        yield "one"
        yield "half a \ud83d pair"

    async with Client(server) as client, client.stream_tool(name) as stream:
        assert len([each async for each in stream]) == 1
        assert stream.result.is_error
        assert stream.result.text.startswith(f"{name}: it returned what cannot be sent: ")


async def test_an_error_of_the_protocol_is_raised_by_the_iteration(tools: Tools) -> None:
    async with Client(tools.server) as client, client.stream_tool("unknown") as stream:
        with pytest.raises(RpcError, match="unknown tool"):
            await anext(stream)


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_a_part_that_comes_twice_counts_once_and_one_that_is_missing_is_told(version: str) -> None:
    async with scripted(version) as (client, peer):
        for numbers, got in (((0, 1, 0, 1, 2), ["0", "1", "2", "end"]), ((0, 2), ["0", "lost"])):
            async with client.stream_tool("t") as stream:
                request = await peer.receive()
                token = request["params"]["_meta"]["mcp-actors/streams"]["token"]
                for number in numbers:
                    content = [{"type": "text", "text": str(number)}]
                    params = {"partialResultToken": token, "seq": number, "content": content}
                    await notify(peer, "notifications/mcp-actors/partial_result", **params)
                await notify(peer, "notifications/mcp-actors/partial_result", partialResultToken=7, seq=3)
                if got[-1] == "end":
                    await reply(peer, request, {"content": [{"type": "text", "text": "all"}]})
                assert [await anext(stream) for _ in got[:-1]] == got[:-1]
                with pytest.raises(StopAsyncIteration if got[-1] == "end" else RemoteProtocolError):
                    await anext(stream)


async def test_the_parts_of_one_result_are_bounded(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors._server.streams.MOST_STREAMED", 5 * PART)
    async with Client(tools.server) as client, client.stream_tool("long", {"number": 99}) as stream:
        assert len([each async for each in stream]) == 4
        assert stream.result.is_error
        assert "one message" in stream.result.text
    assert tools.closed == [5]


# -- back-pressure, and the end of a stream --------------------------------------------------------------------------


@each_era
async def test_parts_that_are_made_again_after_a_question_do_not_fill_the_window(
    era: str, autojump_clock: MockClock
) -> None:
    server = Server("x")
    number = 2 * WINDOW // PART

    @server.tool
    async def ask(ctx: Context) -> AsyncIterator[str]:
        for _ in range(number):
            yield "x" * PART
        answer = await ctx.elicit("Name?", FORM)
        assert answer.content is not None
        yield str(answer.content["name"])

    async def answer(params: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ada"})

    async with Client(server, era=era, elicitation=answer) as client:
        with trio.fail_after(60):
            async with client.stream_tool("ask") as stream:
                parts = [each async for each in stream]
    assert parts == ["x" * PART] * number + ["Ada"]


@each_era
async def test_a_slow_reader_holds_the_function_and_not_the_connection(
    tools: Tools, era: str, autojump_clock: MockClock
) -> None:
    async with Client(tools.server, era=era) as client:
        async with client.stream_tool("long", {"number": 200}) as stream:
            await anext(stream)
            await trio.sleep(200)
            most = WINDOW // PART + 1
            assert tools.yielded <= most
            assert (await client.call_tool("plain", {"a": 1})).text == "2"
            number = 1
            async for part in stream:
                number += 1
                assert part == "x" * PART
                assert tools.yielded <= number + most
            assert number == 200
    assert tools.closed == [200]


async def test_a_part_that_is_longer_than_the_window_goes_alone(autojump_clock: MockClock) -> None:
    server, made = Server("x"), []

    @server.tool
    async def huge() -> AsyncIterator[str]:
        for each in range(4):
            made.append(each)
            yield "x" * (WINDOW + 1)

    async with Client(server) as client, client.stream_tool("huge") as stream:
        await trio.sleep(1)
        for each in range(4):
            assert len(made) == max(1, each)
            # The server hears of a part that was read when the next one is asked for.
            await anext(stream)
        assert [each async for each in stream] == []


@each_era
@pytest.mark.parametrize("read", [0, 1, 30])
async def test_leaving_the_block_closes_the_function(
    tools: Tools, era: str, read: int, autojump_clock: MockClock
) -> None:
    async with Client(tools.server, era=era) as client:
        async with client.stream_tool("long", {"number": 1000}) as stream:
            for _ in range(read):
                await anext(stream)
            await trio.sleep(1)
        await trio.sleep(1)
        assert tools.closed == [tools.yielded]
        assert client.tree().in_flight == 0
        with pytest.raises(LocalProtocolError):
            _ = stream.result


@each_era
async def test_cancelling_the_reader_cancels_the_call(
    tools: Tools, era: str, autojump_clock: MockClock
) -> None:
    async with Client(tools.server, era=era) as client:
        with trio.move_on_after(1) as scope:
            async with client.stream_tool("stuck") as stream:
                async for _ in stream:
                    pass
        assert scope.cancelled_caught
        await trio.lowlevel.checkpoint()
        await trio.sleep(1)
        assert tools.closed == [1]


async def test_a_reader_that_is_cancelled_at_each_wait_loses_no_part(tools: Tools) -> None:
    async with Client(tools.server) as client:
        async with client.stream_tool("long", {"number": 60}) as stream:
            got = 0
            while got < 60:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await anext(stream)
                    got += 1
                with trio.CancelScope():
                    await anext(stream)
                    got += 1
            assert [each async for each in stream] == []


async def test_a_generator_in_a_thread_is_closed(tools: Tools) -> None:
    closed = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @tools.server.tool
    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            token.run_sync_soon(closed.set)

    async with Client(tools.server) as client:
        async with client.stream_tool("endless") as stream:
            await anext(stream)
    with trio.fail_after(60):
        await closed.wait()
    assert closed.is_set()


async def test_outside_of_a_connection_nothing_is_called(tools: Tools) -> None:
    client = Client(tools.server)
    with pytest.raises(LocalProtocolError, match="not connected"):
        async with client.stream_tool("stuck"):
            pass


# -- messages --------------------------------------------------------------------------------------------------------


@each_era
async def test_messages_arrive_in_order_and_end_with_the_call(
    tools: Tools, era: str, autojump_clock: MockClock
) -> None:
    async with Client(tools.server, era=era) as client, client.stream_tool("steered") as stream:
        await stream.send({"only": "sources after 2024"})
        await stream.send(2)
        assert await anext(stream) == "got {'only': 'sources after 2024'}"
        assert await anext(stream) == "got 2"
        await stream.send("stop")
        assert [each async for each in stream] == []
        with pytest.raises(CallEnded):
            await stream.send("late")


@each_era
@pytest.mark.parametrize("name", ["steered_in_a_thread", "steered_in_asyncio"])
async def test_functions_elsewhere_have_an_inbox(tools: Tools, era: str, name: str) -> None:
    async with Client(tools.server, era=era) as client:
        async with client.stream_tool(name) as stream:
            for message in (1, [2], "stop"):
                await stream.send(message)
            assert [each async for each in stream] in ([[1, [2]]], [{"result": [1, [2]]}])
        assert "nobody can write" in (await client.call_tool(name)).text


async def test_messages_before_the_function_looks_are_kept_and_bounded(
    tools: Tools, autojump_clock: MockClock
) -> None:
    async with Client(tools.server) as client, client.stream_tool("deaf") as stream:
        for each in range(MOST_MESSAGES):
            await stream.send(each)
        began = trio.current_time()
        with pytest.raises(Overloaded):
            await stream.send("one too many", timeout=3)
        # It was tried again, for as long as there was time.
        assert 2 <= trio.current_time() - began <= 3
        tools.go.set()
        async for _ in stream:
            pass
        assert stream.result.structured_content == list(range(MOST_MESSAGES))


async def test_a_call_without_a_link_takes_no_messages(tools: Tools) -> None:
    async with Client(tools.server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "deaf")
        await trio.testing.wait_all_tasks_blocked()
        for token in ("", "guessed"):
            with pytest.raises(CallEnded):
                await client.request("mcp-actors/streams/send", {"token": token, "message": 1})
        for params in ({}, {"token": "x"}, {"token": 1, "message": 1}):
            with pytest.raises(RpcError) as refused:
                await client.request("mcp-actors/streams/send", params)
            assert refused.value.code == -32602
        tools.go.set()


async def test_a_server_without_the_extension_says_so(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), client.stream_tool("t") as stream:
        called = await peer.receive()

        async def refuse() -> None:
            request = await peer.receive()
            assert request["method"] == "mcp-actors/streams/send"
            await fail(peer, request, -32601)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)
            with pytest.raises(InboxUnavailable, match="mcp-actors/streams"):
                await stream.send("hello")
        await reply(peer, called, {"content": [{"type": "text", "text": "all"}]})
        assert [each async for each in stream] == ["all"]


# -- programs without Trio -------------------------------------------------------------------------------------------


def test_an_asyncio_program_reads_parts_and_sends_messages(tools: Tools) -> None:
    async def main() -> None:
        async with mcp_actors.asyncio.Client(tools.server) as client:
            async with client.stream_tool("say", {"text": "a b"}) as stream:
                assert [each async for each in stream] == ["a ", "b "]
                assert stream.result.text == "a b "
            async with client.stream_tool("steered") as stream:
                await stream.send(1)
                assert await anext(stream) == "got 1"

    asyncio.run(main())


def test_a_sync_program_reads_parts_and_sends_messages(tools: Tools) -> None:
    with mcp_actors.sync.Client(tools.server) as client:
        with client.stream_tool("numbers", {"number": 2}) as stream:
            assert list(stream) == [0, 1]
            assert stream.result.text == "[0,1]"
        with client.stream_tool("steered") as stream:
            stream.send(1)
            assert next(stream) == "got 1"
