"""Sync functions and their context: in worker threads its methods wait, inline they are refused."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import (
    CallCancelled,
    Client,
    Context,
    LocalProtocolError,
    Server,
    SyncContext,
    current_context,
)
from mcp_actors._client.task_requests import LONGEST_PAUSE, SHORTEST_PAUSE, pause_before_look
from mcp_actors.errors import McpError
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitResult, TextContent
from tests.client.task_scripts import TaskScript, completed, playing
from tests.messages import MODERN
from tests.middleware.callers import served

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
    with trio.fail_after(60):
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
        with trio.fail_after(60):
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


# -- Functions in worker threads: whatever leaves one ends its call alone --------------------------------


def call(id: int, name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", [SystemExit, BaseException, GeneratorExit, ValueError])
async def test_what_a_function_in_a_thread_raises_ends_its_call_alone(
    kind: type[BaseException], era: str
) -> None:
    server = Server("threads")

    @server.tool
    def fails() -> None:
        raise kind("in a thread")

    @server.tool
    def works() -> str:
        return "works"

    async with Client(server, era=era) as client:
        for _ in range(100):
            result = await client.call_tool("fails")
            assert result.is_error
            assert result.content[0].text == f"fails: {kind.__name__}: in a thread"
        assert (await client.call_tool("works")).content[0].text == "works"


@pytest.mark.parametrize("inline", [False, True])
async def test_a_sync_function_tells_the_clients_of_sessions(inline: bool) -> None:
    server = Server("tells")
    ids: list[str] = []
    told: list[bool] = []

    @server.tool(inline=inline)
    def tells(ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.log("info", "session")
        server.log("info", "server")
        told.append(ctx.session.elicitation_complete("mine"))
        told.append(server.elicitation_complete(ids[0]))
        told.append(server.elicitation_complete("unknown"))

    @server.tool
    async def asks(ctx: Context) -> None:
        await ctx.elicit_url("Sign in", lambda id: f"https://example.org/?{ids.append(id)}")  # type: ignore[func-returns-value]

    heard: list[Any] = []
    capabilities = {"elicitation": {"url": {}}}
    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25", capabilities)
        await peer.send(call(1, "asks"))
        question = await peer.receive()
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
        assert (await peer.receive())["id"] == 1
        assert (await peer.request(2, "logging/setLevel", {"level": "info"}))["result"] == {}
        await peer.send(call(3, "tells"))
        while (message := await peer.receive()).get("id") != 3:
            heard.append(message["params"])
    assert not message["result"].get("isError"), message
    assert told == [True, True, False]
    assert heard == [
        {"level": "info", "data": "session"},
        {"level": "info", "data": "server"},
        {"elicitationId": "mine"},
        {"elicitationId": ids[0]},
    ]


@pytest.mark.parametrize("calls", [20, 200])
async def test_sync_functions_register_at_the_same_time(calls: int) -> None:
    server = Server("grows", page_size=7, capabilities=["resources", "prompts"])
    in_loop: list[bool] = []
    publish = server.tools.on_change
    assert publish is not None

    def on_change() -> None:
        in_loop.append(trio.lowlevel.in_trio_run())
        publish()

    @server.tool
    def grow(number: int) -> int:
        def added() -> str:
            return "added"

        server.add_tool(added, name=f"t{number}")
        server.add_resource(f"x://{number}", added)
        server.add_prompt(added, name=f"p{number}")
        server.remove_prompt(f"p{number}")
        server.resource_updated(f"x://{number}")
        assert server.resources.covers(f"x://{number}")
        return len(list(server.tools)) + len(server.tree().sessions)

    server.tools.on_change = on_change
    async with Client(server) as client:
        async with trio.open_nursery() as nursery:
            for number in range(calls):
                nursery.start_soon(client.call_tool, "grow", {"number": number})
        assert {tool.name async for tool in client.tools()} == {"grow"} | {f"t{n}" for n in range(calls)}
        assert len([each async for each in client.resources()]) == calls
        assert [each async for each in client.prompts()] == []
    assert in_loop == [True] * calls


async def test_a_mistake_in_a_worker_thread_is_told_at_its_own_line() -> None:
    server = Server("mistakes")

    @server.tool
    def again() -> None:
        server.add_tool(again)

    async with Client(server) as client:
        result = await client.call_tool("again")
    assert re.search(r"test_sync_functions\.py, line \d+: there is already a tool 'again'", result.text), (
        result.text
    )


async def test_a_sync_function_stops_its_server() -> None:
    server = Server("stops")

    @server.tool
    def stop() -> str:
        server.stop()
        return "stopped"

    async with Client(server) as client:
        with trio.fail_after(60):
            assert (await client.call_tool("stop")).text == "stopped"


@pytest.mark.parametrize("method", ["log", "elicitation_complete", "stop"])
async def test_a_thread_of_the_users_own_uses_the_server(method: str) -> None:
    server = Server("strangers")
    ids: list[str] = []
    raised: list[BaseException] = []
    answers: list[Any] = []
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "log": lambda: ("info", "x"),
        "elicitation_complete": lambda: (ids[0],),
        "stop": lambda: (),
    }

    @server.tool
    async def asks(ctx: Context) -> None:
        await ctx.elicit_url("Sign in", lambda id: f"https://example.org/?{ids.append(id)}")  # type: ignore[func-returns-value]

    def stranger() -> None:
        try:
            answers.append(getattr(server, method)(*arguments[method]()))
        except LocalProtocolError as error:
            raised.append(error)

    def beside() -> None:
        thread = threading.Thread(target=stranger)
        thread.start()
        thread.join(10)

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept")

    async with Client(server, era="legacy", elicitation=accept) as client:
        await client.call_tool("asks")
        await trio.to_thread.run_sync(beside)
    assert raised == []
    assert answers == [True if method == "elicitation_complete" else None]
    assert server.stopping == (method == "stop")


def test_a_server_without_a_loop_is_filled_watched_and_told_to_stop() -> None:
    server = Server("idle")
    server.add_tool(lambda: None, name="t")
    server.remove_tool("t")
    server.log("info", "nobody is there")
    server.stop()
    assert server.tree().sessions == ()


# -- The pauses between looks at a task, and what is asked of a person, whatever a server says -----------

QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


@given(told=st.none() | st.floats(), looks=st.integers(0, 10**9))
def test_every_pause_is_within_the_bounds(told: float | None, looks: int) -> None:
    assert SHORTEST_PAUSE <= pause_before_look(told, looks) <= LONGEST_PAUSE


@given(told=st.floats(SHORTEST_PAUSE, LONGEST_PAUSE), looks=st.integers(0, 100))
def test_a_sane_wish_is_kept(told: float, looks: int) -> None:
    assert pause_before_look(told, looks) == told


def test_pauses_grow_where_a_server_says_nothing() -> None:
    pauses = [pause_before_look(None, looks) for looks in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(5.0)


_LOOKS = st.one_of(
    st.just({"status": "working"}),
    st.builds(
        lambda keys: {"status": "input_required", "inputRequests": dict.fromkeys(keys, QUESTION)},
        st.lists(st.sampled_from("abc"), max_size=3),
    ),
    st.sampled_from(
        [{"status": "asleep"}, {"status": "cancelled"}, {"status": "failed"}, {"status": "completed"}]
    ),
)


@settings(max_examples=25, deadline=None)
@given(looks=st.lists(_LOOKS, max_size=8), poll=st.none() | st.integers(-(10**12), 10**12))
def test_any_course_of_a_task_ends_with_a_result_or_an_error_and_no_question_is_put_twice(
    looks: list[dict[str, Any]], poll: int | None
) -> None:
    script = TaskScript(MODERN, *looks, completed(MODERN), poll=poll)
    script.grants_listening = False

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async def play() -> str:
        async with playing(script, elicitation=accept) as client:
            try:
                return (await client.call_tool("t", cap=10_000)).text
            except McpError as error:
                return type(error).__name__

    outcome = trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    answered = [key for each in script.params("tasks/update") for key in each["inputResponses"]]
    assert sorted(answered) == sorted(set(answered))
    assert outcome in ("done", "TaskCancelled", "RemoteProtocolError")
    assert script.methods.count("tools/call") == 1


async def test_a_caller_has_half_of_the_threads_whatever_it_cancels() -> None:
    server, release = Server("threads"), threading.Event()

    @server.tool
    def block() -> str:
        release.wait(20)
        return "late"

    @server.tool
    def quick() -> str:
        return "quick"

    async with served(server) as way, way.client("ann") as hostile, way.client("bob") as other:
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(hostile.call_tool, "block")
                while server._features.tools._threads.running < 20:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            with trio.fail_after(60):
                assert (await other.call_tool("quick")).text == "quick"
            assert server._features.tools._threads.running == 20
        finally:
            release.set()
        while server._features.tools._threads.running:
            await trio.lowlevel.checkpoint()
        assert (await hostile.call_tool("quick")).text == "quick"
    assert server._features.tools._threads._shares == {}


# -- `current_context`: helpers that a context is not handed to find that of the call that they work for ---


def place_of_call() -> str:
    """A helper: what it says is that it was called for this call, in the form of the function's own context."""
    ctx = current_context()
    return f"{type(ctx).__name__} {ctx.method}"


async def with_helpers() -> Server:
    server = Server("helpers")

    @server.tool
    async def waits(marker: str) -> list[str]:
        found = []

        async def child() -> None:
            found.append(place_of_call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        await trio.lowlevel.checkpoint()
        return [*found, place_of_call(), str(current_context().params["arguments"]["marker"])]

    @server.tool
    def blocks() -> str:
        current_context().log("info", "from the thread")
        return place_of_call()

    @server.tool(inline=True)
    def at_once(ctx: SyncContext) -> str:
        assert current_context().request_id == ctx.request_id
        return place_of_call()

    @server.tool(loop="asyncio")
    async def elsewhere() -> str:
        await asyncio.sleep(0)
        return f"{place_of_call()} {await asyncio.to_thread(place_of_call)}"

    @server.prompt
    async def greeting() -> str:
        return place_of_call()

    @server.resource("place://here")
    def here() -> str:
        return place_of_call()

    @server.method("x/place")
    async def place(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"place": place_of_call()}

    return server


@pytest.mark.parametrize("era", ERAS)
async def test_a_helper_asks_for_the_context_of_its_call(era: str) -> None:
    async with Client(await with_helpers(), era=era) as client:
        for marker in ("a", "b"):
            found = await client.call_tool("waits", {"marker": marker}, returns=list[str])
            assert found == ["Context tools/call", "Context tools/call", marker]
        async with trio.open_nursery() as nursery:
            for number in range(20):

                async def ask(marker: str) -> None:
                    found = await client.call_tool("waits", {"marker": marker}, returns=list[str])
                    assert found[-1] == marker

                nursery.start_soon(ask, str(number))
        texts = {name: (await client.call_tool(name, {})).text for name in ("blocks", "at_once", "elsewhere")}
        assert texts == {
            "blocks": "SyncContext tools/call",
            "at_once": "SyncContext tools/call",
            "elsewhere": "AsyncioContext tools/call AsyncioContext tools/call",
        }
        prompt = await client.get_prompt("greeting", {})
        assert prompt.messages[0].content == TextContent("Context prompts/get")
        assert (await client.read_resource("place://here")).text == "SyncContext resources/read"
        assert (await client.request("x/place", {}))["place"] == "Context x/place"


def test_elsewhere_there_is_none() -> None:
    with pytest.raises(LocalProtocolError, match="no call is answered here"):
        current_context()
