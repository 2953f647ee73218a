"""Functions that are declared with ``loop="asyncio"``, in a program that has no asyncio loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from mcp_actors import CallCancelled, Client, Context, Server, ToolError
from mcp_actors.bridges import asyncio_call
from mcp_actors.types import Completion, ElicitResult, PromptReference, Resource
from tests.transports.lines import until

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


class Seen:
    """What a function in the asyncio loop has seen, for a test that waits for it in Trio."""

    def __init__(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self.began = trio.Event()
        self.ended = trio.Event()
        self.raised: list[BaseException] = []

    def begin(self) -> None:
        self.token.run_sync_soon(self.began.set)

    def end(self) -> None:
        self.token.run_sync_soon(self.ended.set)


@ERAS
async def test_a_tool_uses_asyncio_and_its_context(era: str) -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def works(days: int, ctx: Context) -> str:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        answer = await ctx.elicit("On?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})
        for day in range(1, days + 1):
            await ctx.progress(day, days)
        await ctx.log("warning", "half of it")
        await ctx.notify("notifications/mine", {})
        ctx.close_stream()
        roots = await ctx.list_roots()
        return f"{ctx.method} {answer.content} {len(roots)} {threading.current_thread().name}"

    seen: list[float] = []
    logged: list[Any] = []

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"yes": True})

    async with Client(
        server,
        era=era,
        elicitation=person,
        roots=["file:///a"],
        on_log=lambda level, data, logger: logged.append(data),
        log_level="info",
    ) as client:
        result = await client.call_tool(
            "works", {"days": 3}, on_progress=lambda each: seen.append(each.progress)
        )
    assert result.text == "tools/call {'yes': True} 1 mcp-actors-asyncio"
    assert seen[:3] == [1, 2, 3]
    assert "half of it" in logged


async def test_every_kind_of_function_may_need_asyncio() -> None:
    server = Server("x")
    heard = Seen()

    @server.resource("a://b", loop="asyncio")
    async def one() -> str:
        return await asyncio.sleep(0, "one")

    async def listed() -> list[Resource]:
        return await asyncio.sleep(0, [Resource("t://1", "one")])

    @server.resource("t://{x}", loop="asyncio", list=listed)
    async def family(x: str) -> str:
        return await asyncio.sleep(0, x)

    @server.prompt(loop="asyncio")
    async def ask(word: str) -> str:
        return await asyncio.sleep(0, word)

    @server.completion(prompt="ask", argument="word", loop="asyncio")
    async def words(typed: str) -> Completion:
        return await asyncio.sleep(0, Completion([typed + "!"]))

    @server.method("my/method", loop="asyncio")
    async def mine(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.progress(1)
        return await asyncio.sleep(0, {**params, "method": ctx.method})

    @server.notification("notifications/mine", loop="asyncio")
    async def noticed() -> None:
        await asyncio.sleep(0)
        heard.end()

    async with Client(server) as client:
        assert (await client.read_resource("a://b")).text == "one"
        assert (await client.read_resource("t://2")).text == "2"
        assert {each.uri async for each in client.resources()} == {"a://b", "t://1"}
        assert (await client.get_prompt("ask", {"word": "w"})).messages[0].content.text == "w"  # type: ignore[union-attr]
        assert (await client.complete(PromptReference("ask"), "word", "x")).values == ["x!"]
        assert (await client.request("my/method", {"a": 1}))["method"] == "my/method"
        await client.notify("notifications/mine", {})
        with trio.fail_after(60):
            await heard.ended.wait()


@ERAS
@pytest.mark.parametrize("how", ["client", "timeout"])
async def test_a_cancelled_call_cancels_the_function(how: str, era: str, mock_clock: MockClock) -> None:
    """The clock stands still until the function runs, however long its loop takes to begin it."""
    server = Server("x")
    seen = Seen()

    @server.tool(loop="asyncio", timeout=5 if how == "timeout" else 1000)
    async def hangs(ctx: Context) -> None:
        seen.begin()
        try:
            await asyncio.sleep(1000)
        except BaseException as error:
            seen.raised.append(error)
            try:
                await ctx.progress(1)
            except CallCancelled as refused:
                seen.raised.append(refused)
            raise
        finally:
            seen.end()

    async with Client(server, era=era) as client, trio.open_nursery() as nursery:
        texts: list[str] = []

        async def call() -> None:
            texts.append((await client.call_tool("hangs")).text)

        nursery.start_soon(call)
        await seen.began.wait()
        if how == "timeout":
            mock_clock.jump(5)
        else:
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await seen.ended.wait()
    assert ["stopped" in each for each in texts] == [True] * (how == "timeout")
    assert [type(each) for each in seen.raised] == [asyncio.CancelledError, CallCancelled]


async def test_a_question_is_cancelled_with_the_task_that_asks() -> None:
    server = Server("x")
    cancelled = trio.Event()
    out_of_time: list[Callable[[], object]] = []

    @server.tool(loop="asyncio")
    async def asks(ctx: Context) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                out_of_time.append(lambda: loop.call_soon_threadsafe(limit.reschedule, loop.time()))
                await ctx.list_roots()
        except TimeoutError:
            return "in time"
        return "never"

    async def roots() -> list[str]:
        out_of_time[0]()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        return []

    async with Client(server, era="legacy", roots=roots) as client:
        assert (await client.call_tool("asks")).text == "in time"
        with trio.fail_after(60):
            await cancelled.wait()


async def test_a_function_that_goes_on_although_it_was_cancelled_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio_call, "CANCEL_TIME", 0.05)
    server = Server("x")
    release: list[asyncio.Future[None]] = []
    seen = Seen()

    @server.tool(loop="asyncio")
    async def stubborn(ctx: Context, password: str) -> None:
        gone = asyncio.get_running_loop().create_future()
        release.append(gone)
        while not gone.done():
            seen.begin()
            try:
                await asyncio.shield(gone)
            except asyncio.CancelledError:
                continue
        try:
            await ctx.progress(1)
        except CallCancelled as error:
            seen.raised.append(error)
        seen.end()

    with structlog.testing.capture_logs() as logs:
        async with Client(server) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "stubborn", {"password": "hunter2"})
                await seen.began.wait()
                nursery.cancel_scope.cancel()
    told = next(each for each in logs if each["event"] == "a function goes on although it was cancelled")
    assert told["function"].endswith(".stubborn")
    assert "hunter2" not in str(logs)
    release[0].get_loop().call_soon_threadsafe(release[0].set_result, None)
    with trio.fail_after(60):
        await seen.ended.wait()
    assert [type(each) for each in seen.raised] == [CallCancelled]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("for the model"), "for the model"),
        (ValueError("wrong"), "fails: ValueError: wrong"),
        (SystemExit(3), "fails: SystemExit: 3"),
        (GeneratorExit("g"), "fails: GeneratorExit: g"),
        (
            asyncio.CancelledError(),
            "fails: LoopClosed: the program has cancelled the function's asyncio task, or the loop has ended",
        ),
    ],
)
async def test_what_a_function_raises_ends_its_call_alone(error: BaseException, text: str) -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def fails() -> None:
        raise error

    @server.tool(loop="asyncio")
    async def works() -> str:
        return await asyncio.sleep(0, "works")

    async with Client(server) as client:
        result = await client.call_tool("fails")
        assert (result.is_error, result.text) == (True, text)
        assert (await client.call_tool("works")).text == "works"


async def test_a_function_that_blocks_its_loop_stops_no_other_calls() -> None:
    server = Server("x")
    go_on = threading.Event()
    seen = Seen()

    @server.tool(loop="asyncio")
    async def blocks() -> str:
        seen.begin()
        return str(go_on.wait(30))

    @server.tool
    async def native() -> str:
        return "beats"

    async with Client(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "blocks")
        await seen.began.wait()
        assert (await client.call_tool("native")).text == "beats"
        go_on.set()


async def test_a_function_that_stops_the_loop_stops_nobody() -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def stops() -> str:
        asyncio.get_running_loop().stop()
        return await asyncio.sleep(0, "stopped")

    async with Client(server) as client:
        with trio.fail_after(60):
            assert (await client.call_tool("stops")).text == "stopped"
            assert (await client.call_tool("stops")).text == "stopped"


async def test_context_variables_go_with_the_call() -> None:
    server = Server("x")
    variable = contextvars.ContextVar("variable", default="none")

    @server.middleware
    async def sets(ctx: Context, call_next: Any) -> Any:
        variable.set(ctx.params["arguments"]["value"])
        return await call_next()

    @server.tool(loop="asyncio")
    async def reads(value: str) -> str:
        await asyncio.sleep(0)
        return variable.get()

    texts: list[str] = []
    async with Client(server, era="legacy") as client:

        async def call(value: str) -> None:
            texts.append((await client.call_tool("reads", {"value": value})).text)

        async with trio.open_nursery() as nursery:
            for each in "abc":
                nursery.start_soon(call, each)
    assert sorted(texts) == ["a", "b", "c"]


async def test_a_call_of_a_function_for_asyncio_may_be_a_task() -> None:
    server = Server("x")

    @server.tool(loop="asyncio", task="required")
    async def long(ctx: Context) -> str:
        await ctx.progress(1, message="on it")
        return await asyncio.sleep(0, "done")

    async with Client(server) as client:
        handle = await client.start_tool("long")
        assert (await handle.result()).text == "done"


async def test_threads_that_a_function_starts_use_its_context() -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def works(ctx: Context) -> str:
        def in_a_thread() -> int:
            ctx.progress(1)  # type: ignore[unused-coroutine]
            ctx.log("info", "x")  # type: ignore[unused-coroutine]
            return len(ctx.list_roots())  # type: ignore[arg-type]

        roots = await asyncio.to_thread(in_a_thread)
        server.add_tool(lambda: None, name="later")
        server.log("info", "all")
        server.resource_updated("a://b")
        return f"{roots} {'later' in server.tools}"

    seen: list[float] = []
    async with Client(server, era="legacy", roots=["file:///a"]) as client:
        result = await client.call_tool("works", on_progress=lambda each: seen.append(each.progress))
    assert (result.text, seen) == ("1 True", [1])


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"loop": "trio"}, "loop='trio': write \"asyncio\", or leave it out"),
        ({"loop": "asyncio", "inline": True}, "remove inline=True"),
    ],
)
def test_a_wrong_option_is_told_at_its_own_line(how: Any, text: str) -> None:
    server = Server("x")

    async def fine() -> None:
        """Does nothing."""

    with pytest.raises(TypeError, match=f"test_asyncio_functions.py, line [0-9]+: .*{text}"):
        server.add_tool(fine, **how)


def test_a_plain_function_has_no_loop() -> None:
    server = Server("x")
    with pytest.raises(
        TypeError, match=r"line [0-9]+: .*plain is not async: write async def, or remove loop="
    ):

        @server.prompt(loop="asyncio")
        def plain() -> str:
            return ""


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_function_that_awaits_asyncio_on_trio_is_told_what_to_write(seconds: float) -> None:
    server = Server("x")

    @server.tool
    async def wrong() -> None:
        await asyncio.sleep(seconds)

    async with Client(server) as client:
        text = (await client.call_tool("wrong")).text
    assert text.endswith('it awaits something of asyncio, and runs on Trio: declare it with loop="asyncio"')


async def test_arguments_may_have_any_name() -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def names(self: str, function: str, args: str) -> str:
        return self + function + args

    @server.tool(loop="asyncio")
    async def names_too(ctx: Context, function: str) -> str:
        return function + ctx.method

    async with Client(server) as client:
        both = {"self": "a", "function": "b", "args": "c"}
        assert (await client.call_tool("names", both)).text == "abc"
        assert (await client.call_tool("names_too", {"function": "d"})).text == "dtools/call"


async def test_a_call_leaves_no_cycle_whatever_its_end() -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def works(ctx: Context, how: str) -> str:
        await ctx.progress(1)
        if how == "fails":
            raise ValueError("a mistake")
        if how == "hangs":
            await ctx.log("warning", "hangs")
            await asyncio.sleep(1000)
        return "done"

    async with Client(server, log_level="warning", on_log=lambda *_: scope.cancel()) as client:

        async def call(how: str) -> None:
            await client.call_tool("works", {"how": how}, on_progress=lambda _: None)

        cyclic = []
        for how in ("works", "fails", "hangs"):
            for rounds in (2, 10):
                gc.collect()
                gc.disable()
                try:
                    for _ in range(rounds):
                        with trio.CancelScope() as scope:
                            await call(how)
                    await trio.testing.wait_all_tasks_blocked()
                    cyclic.append(gc.collect())
                finally:
                    gc.enable()
    # Less than one object a call.
    assert max(cyclic[1::2]) < 10


@pytest.mark.parametrize("how", ["asks", "is cancelled"])
async def test_a_function_that_asks_sees_the_end_of_its_call_as_a_cancellation(how: str) -> None:
    """An `Exception` would be caught by functions that go on without the answer, and have side effects."""
    server = Server("x")
    seen: set[type[BaseException]] = set()

    @server.tool(loop="asyncio")
    async def asks(ctx: Context) -> None:
        try:
            await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        except BaseException as error:
            seen.add(type(error))
            raise

    async def person(question: Any) -> ElicitResult:
        if how == "is cancelled":
            scope.cancel()
            # An answer might be there before the cancellation.
            await trio.sleep_forever()
        return ElicitResult("accept", {})

    era = "modern" if how == "asks" else "legacy"
    async with Client(server, era=era, elicitation=person) as client:
        for _ in range(20):
            with trio.CancelScope() as scope:
                await client.call_tool("asks")
    # The function ends in the thread of its loop, when that has its turn.
    await until(lambda: bool(seen))
    assert seen == {asyncio.CancelledError}


# -- The asyncio loop of the engine's own, at the end of a program and in a fork of one ------------------

SERVER = """
import asyncio, os, sys, threading, trio
from mcp_actors import Client, Server
server = Server("x")
hanging = threading.Event()

@server.tool(loop="asyncio")
async def works() -> str:
    return await asyncio.sleep(0, threading.current_thread().name)

@server.tool(loop="asyncio")
async def hangs() -> None:
    try:
        hanging.set()
        await asyncio.sleep(1000)
    finally:
        print("cancelled", flush=True)

@server.tool(loop="asyncio")
async def leaves() -> None:
    global left
    left = asyncio.create_task(hangs())
    await asyncio.sleep(0)

async def call(name):
    async with Client(server) as client:
        return (await client.call_tool(name)).text
"""

ENDS = {
    "idle": ("print(trio.run(call, 'works'))", "mcp-actors-asyncio\n"),
    "never used": ("print('nothing')", "nothing\n"),
    "with a task": ("trio.run(call, 'leaves')", "cancelled\n"),
    "with a call": (
        """
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "hangs")
        await trio.to_thread.run_sync(hanging.wait)
        nursery.cancel_scope.cancel()
trio.run(main)
""",
        "cancelled\n",
    ),
    "with a call of a daemon thread": (
        """
began = threading.Event()
@server.tool(loop="asyncio")
async def begins() -> None:
    began.set()
    await asyncio.sleep(1000)
threading.Thread(target=trio.run, args=(call, "begins"), daemon=True).start()
began.wait()
print("ends")
""",
        "ends\n",
    ),
    "in a fork": (
        """
# From 3.12 on CPython says of every fork beside threads that it may hang.
import warnings; warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
print(trio.run(call, "works"), flush=True)
if os.fork() == 0:
    print("child", trio.run(call, "works"), flush=True)
    sys.exit(0)
print(os.wait()[1])
""",
        "mcp-actors-asyncio\nchild mcp-actors-asyncio\n0\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_and_leaves_nothing(end: str) -> None:
    program, printed = ENDS[end]
    result = subprocess.run(
        [sys.executable, "-c", SERVER + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == (printed, "", 0)


def test_a_server_without_such_functions_imports_no_asyncio() -> None:
    program = "import sys, mcp_actors; mcp_actors.Server('x').add_tool(lambda: None, name='t')\n"
    asks = "print('mcp_actors.bridges.asyncio_bridge' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program + asks], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "False\n"
