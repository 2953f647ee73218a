"""Sync functions and their context: in worker threads its methods wait, inline they are refused."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import CallCancelled, Client, Context, Server, SyncContext
from mcp_actors.types import ElicitResult

ERAS = ["legacy", "modern"]


def test_no_method_of_the_context_is_left_to_be_awaited() -> None:
    for name, method in inspect.getmembers(Context, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            own = SyncContext.__dict__[name]
            assert not inspect.iscoroutinefunction(own), name
            ours, theirs = inspect.signature(own).parameters, inspect.signature(method).parameters
            assert list(ours) == list(theirs), name


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("annotation", [Context, SyncContext])
async def test_a_function_in_a_thread_uses_its_context(annotation: Any, era: str) -> None:
    server = Server("threads")

    def works(days: int, ctx: Any) -> str:
        assert threading.current_thread() is not threading.main_thread()
        for day in range(1, days + 1):
            ctx.progress(day, days)
        ctx.log("warning", "half of it")
        answer = ctx.elicit("Go on?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})
        return f"{ctx.method}: {answer.content}"

    works.__annotations__["ctx"] = annotation
    server.add_tool(works)
    seen: list[float] = []
    logged: list[Any] = []

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"yes": True})

    def on_log(level: Any, data: Any, logger: Any) -> None:
        logged.append(data)

    async with Client(server, era=era, elicitation=person, on_log=on_log, log_level="info") as client:
        result = await client.call_tool(
            "works", {"days": 3}, on_progress=lambda each: seen.append(each.progress)
        )
    assert result.content[0].text == "tools/call: {'yes': True}"
    assert seen[:3] == [1, 2, 3]
    assert "half of it" in logged


@pytest.mark.parametrize("era", ERAS)
async def test_a_thread_whose_call_was_cancelled_learns_of_it(era: str) -> None:
    server = Server("threads")
    begun, go_on, ended = trio.Event(), threading.Event(), trio.Event()
    raised: list[BaseException] = []

    @server.tool
    def slow(ctx: SyncContext) -> None:
        trio.from_thread.run_sync(begun.set)
        go_on.wait(10)
        try:
            ctx.progress(1)
        except BaseException as error:
            raised.append(error)
        trio.from_thread.run_sync(ended.set)

    async with Client(server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "slow")
        await begun.wait()
        nursery.cancel_scope.cancel()
    go_on.set()
    with trio.fail_after(10):
        await ended.wait()
    assert [type(each) for each in raised] == [CallCancelled]


async def test_a_question_that_a_thread_waits_for_ends_with_its_call() -> None:
    server = Server("threads")
    asked, ended = trio.Event(), trio.Event()
    raised: list[BaseException] = []

    @server.tool
    def asks(ctx: SyncContext) -> None:
        try:
            ctx.list_roots()
        except BaseException as error:
            raised.append(error)
        trio.from_thread.run_sync(ended.set)

    async def roots() -> list[str]:
        asked.set()
        await trio.sleep_forever()
        return []

    async with Client(server, era="legacy", roots=roots) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "asks")
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            await ended.wait()
    assert [type(each) for each in raised] == [CallCancelled]


@pytest.mark.parametrize("era", ERAS)
async def test_an_inline_function_is_refused_what_waits(era: str) -> None:
    server = Server("inline")

    @server.tool(inline=True)
    def works(ctx: SyncContext) -> str:
        ctx.progress(1)
        return ctx.method

    async with Client(server, era=era) as client:
        result = await client.call_tool("works")
    assert result.is_error
    assert result.content[0].text == (  # type: ignore[union-attr]
        "works: LocalProtocolError: ctx.progress() waits, which an inline function must not: write async def, "
        "or remove inline=True"
    )


async def test_a_plain_function_round_an_async_one_awaits_the_context() -> None:
    server = Server("wrapped")
    seen: list[float] = []

    async def body(ctx: Context) -> str:
        await ctx.progress(1)
        return "done"

    def works(ctx: Context) -> Any:
        return body(ctx)

    server.add_tool(works)
    async with Client(server) as client:
        result = await client.call_tool("works", on_progress=lambda each: seen.append(each.progress))
    assert (result.content[0].text, seen) == ("done", [1])  # type: ignore[union-attr]


@pytest.mark.parametrize("era", ERAS)
async def test_threads_that_a_sync_function_starts_use_its_context(era: str) -> None:
    server = Server("threads")

    @server.tool
    def works(ctx: SyncContext) -> str:
        with ThreadPoolExecutor(2) as threads:
            for _ in threads.map(ctx.progress, [1, 2]):
                continue
            return str(threads.submit(ctx.list_roots).result()[0].uri)

    seen: list[float] = []
    async with Client(server, era=era, roots=["file:///a"]) as client:
        result = await client.call_tool("works", on_progress=lambda each: seen.append(each.progress))
    assert result.text == "file:///a"
    assert max(seen) == 2


async def test_a_thread_that_outlives_its_call_is_told() -> None:
    server = Server("threads")
    contexts: list[SyncContext] = []

    @server.tool
    def works(ctx: SyncContext) -> None:
        contexts.append(ctx)

    async with Client(server) as client:
        await client.call_tool("works")
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(contexts[0].progress, 1)
        with pytest.raises(CallCancelled):
            await trio.to_thread.run_sync(later.result)
