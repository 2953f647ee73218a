"""What leaves a handler costs its call: never another call, never the session, never the server."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, RpcError, Server, ToolError
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Invocation
from mcp_actors.testing import connected_pair

from .peers import arrived, call, cancelled, legacy_client, settled

# Calls that fail in one test: ten times what ended a server before.
MANY = 1000


class Leftovers:
    """What tools have left open or kept."""

    def __init__(self) -> None:
        self.scopes: list[trio.CancelScope] = []
        self.generators: list[Any] = []
        self.cancelled: list[BaseException] = []


def hostile_server(kept: Leftovers) -> Server:
    """A server with one tool for each way in which user code can fail."""
    server = Server("hostile")

    async def scope_left_open() -> AsyncGenerator[int, None]:
        with trio.CancelScope() as scope:
            kept.scopes.append(scope)
            yield 1

    async def nursery_left_open() -> AsyncGenerator[int, None]:
        async with trio.open_nursery() as nursery:
            kept.scopes.append(nursery.cancel_scope)
            yield 1

    async def leave_open(generator: AsyncGenerator[int, None]) -> str:
        kept.generators.append(generator)
        await anext(generator)
        return "left open"

    @server.tool
    async def echo(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return text

    @server.tool
    async def wait(seconds: float) -> str:
        await trio.sleep(seconds)
        return "waited"

    @server.tool
    async def exception() -> None:
        raise ZeroDivisionError

    @server.tool
    async def base_exception() -> None:
        raise BaseException("not even an Exception")

    @server.tool
    async def system_exit() -> None:
        raise SystemExit(3)

    @server.tool
    def system_exit_in_a_thread() -> None:
        raise SystemExit(3)

    @server.tool(inline=True)
    def system_exit_in_place() -> None:
        raise SystemExit(3)

    @server.tool(inline=True)
    def base_exception_in_place() -> None:
        raise BaseException("in place")

    @server.tool
    async def generator_exit() -> None:
        raise GeneratorExit

    @server.tool
    async def group_of_base_exceptions() -> None:
        raise BaseExceptionGroup("several", [SystemExit(3), ValueError("x")])

    @server.tool
    async def stored_cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept.cancelled.append(error)
                raise
        raise kept.cancelled[-1]

    @server.tool
    async def leaves_a_scope_open() -> str:
        return await leave_open(scope_left_open())

    @server.tool
    async def leaves_a_nursery_open() -> str:
        return await leave_open(nursery_left_open())

    return server


@asynccontextmanager
async def served(server: Server, name: str) -> AsyncIterator[Callable[[], Client]]:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, f"memory:{name}")
        yield lambda: Client(f"memory:{name}", timeout=1000, cap=1000)
        server.stop()


FAILURES = [
    "exception",
    "base_exception",
    "system_exit",
    "system_exit_in_place",
    "base_exception_in_place",
    "generator_exit",
    "group_of_base_exceptions",
    "stored_cancelled",
]


@pytest.mark.parametrize("tool", FAILURES)
async def test_whatever_a_function_raises_ends_its_call_alone(tool: str) -> None:
    async with served(hostile_server(Leftovers()), "contained") as connect:
        async with connect() as client, connect() as other, trio.open_nursery() as nursery:
            waited: list[str] = []

            @nursery.start_soon
            async def wait() -> None:
                waited.append((await other.call_tool("wait", {"seconds": 100})).content[0].text)

            await trio.testing.wait_all_tasks_blocked()
            for _ in range(MANY):
                assert (await client.call_tool(tool)).content[0].text.startswith(f"{tool}: ")
            assert (await client.call_tool("echo", {"text": "alive"})).content[0].text == "alive"
        assert waited == ["waited"]


# Python and Trio say of the abandoned generators that they were abandoned.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("tool", ["leaves_a_scope_open", "leaves_a_nursery_open"])
async def test_what_a_function_leaves_open_reaches_no_later_call(tool: str) -> None:
    kept = Leftovers()
    async with served(hostile_server(kept), "left_open") as connect:
        async with connect() as client, connect() as other:
            for number in range(MANY):
                assert (await client.call_tool(tool)).content[0].text == "left open"
                # Before and after it is cancelled, nobody else's call runs inside of it.
                assert (await other.call_tool("echo", {"text": "a"})).content[0].text == "a"
                kept.scopes[number].cancel()
                assert (await other.call_tool("echo", {"text": "b"})).content[0].text == "b"
                assert (await client.call_tool("echo", {"text": "c"})).content[0].text == "c"
    kept.generators.clear()


async def test_ctrl_c_in_a_function_is_no_failure_of_the_call() -> None:
    server = Server("s")

    @server.tool
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True, allow_unwrapped=True):
        async with served(server, "ctrl_c") as connect, connect() as client:
            await client.call_tool("interrupted")


async def test_a_call_in_flight_shows_trio_the_frames_of_its_function() -> None:
    server = Server("s")

    async def deep_inside() -> None:
        await trio.sleep(100)

    @server.tool
    async def hangs() -> None:
        await deep_inside()

    def frames(task: trio.lowlevel.Task) -> Iterator[str]:
        return (frame.f_code.co_name for frame, _ in task.iter_await_frames())

    def tasks(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
        yield task
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from tasks(child)

    async with Client(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "hangs")
        await trio.testing.wait_all_tasks_blocked()
        root = trio.lowlevel.current_root_task()
        assert root is not None
        seen = [list(frames(task)) for task in tasks(root) if task.name.startswith("call tools/call")]
        assert len(seen) == 1
        begin = seen[0].index("hangs")
        assert seen[0][begin : begin + 3] == ["hangs", "deep_inside", "sleep"]
        nursery.cancel_scope.cancel()


# -- nothing ---------------------------------------------------------------------------------------------
#
# Has ended keeps what a peer sent.


def alive(*classes: type) -> list[Any]:
    """The instances that are reachable or wait for the collector."""
    return [each for each in gc.get_objects() if isinstance(each, classes)]


def server_for_endings() -> Server:
    server = Server("endings")

    @server.tool
    async def returns(payload: str) -> str:
        return "x"

    @server.tool
    async def waits_and_returns(payload: str) -> str:
        await trio.sleep(1)
        return "x"

    @server.tool
    async def raises(payload: str) -> str:
        await trio.lowlevel.checkpoint()
        raise ValueError(payload[:3])

    @server.tool
    async def tool_error(payload: str) -> str:
        raise ToolError("no")

    @server.tool
    async def hangs(payload: str) -> str:
        await trio.sleep_forever()
        return ""

    @server.tool
    async def hangs_in_a_nursery(payload: str) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
        return ""

    @server.tool
    async def cleans_up_and_raises(payload: str) -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    @server.tool(inline=True)
    def in_place(payload: str) -> str:
        return "x"

    @server.tool
    async def exits(payload: str) -> str:
        raise SystemExit

    @server.tool
    async def asks(payload: str, ctx: Context) -> str:
        await ctx.elicit("why?", {"type": "object", "properties": {}})
        return "x"

    return server


ENDINGS = [
    "returns",
    "waits_and_returns",
    "raises",
    "tool_error",
    "hangs",
    "hangs_in_a_nursery",
    "cleans_up_and_raises",
    "in_place",
    "exits",
    "asks",
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("tool", ENDINGS)
async def test_a_call_that_has_ended_keeps_nothing(tool: str, era: str, collector_rests: None) -> None:
    async with Client(server_for_endings(), era=era) as client:
        await client.call_tool("returns", {"payload": "first"})
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        for number in range(20):
            with trio.move_on_after(2):
                try:
                    await client.call_tool(tool, {"payload": f"{number}" * 1000})
                except (RpcError, Exception) as error:
                    error.__traceback__ = None
                    del error
        await trio.testing.wait_all_tasks_blocked()
        assert alive(InboundCall, Context, Invocation) == []


async def test_a_session_that_has_ended_keeps_nothing(collector_rests: None) -> None:
    server = server_for_endings()
    async with served(server, "dropped") as connect:
        async with connect() as client:
            await client.call_tool("returns", {"payload": "first"})
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        for _ in range(20):
            async with connect() as client, trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "hangs", {"payload": "x" * 1000})
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        del client, nursery
        await trio.testing.wait_all_tasks_blocked()
        assert alive(InboundCall, Context, Invocation) == []


# -- What its peer sees when a handler fails: that this call failed, and nothing of why if errors are masked ---

SECRET = "hunter2"


# -- a handler that raises -------------------------------------------------------------------------------------------


async def plainly() -> None:
    raise ValueError(SECRET)


async def in_its_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(plainly)


async def deep_in_nurseries() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_its_nursery)


async def twice() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plainly)
        nursery.start_soon(plainly)


async def with_a_bad_text() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError(SECRET)

    raise Unprintable


async def unencodable() -> Any:
    return {"a": object()}


async def by_recursion() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


async def by_stopping_iteration() -> None:
    raise StopAsyncIteration(SECRET)


async def with_a_timeout() -> None:
    with trio.fail_after(1):
        await trio.sleep_forever()


async def with_a_foreign_cancellation() -> None:
    """Cancels a scope of its own and loses the exception: nobody outside may take it for theirs."""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    "fail",
    [
        plainly,
        in_its_nursery,
        deep_in_nurseries,
        twice,
        with_a_bad_text,
        unencodable,
        by_recursion,
        by_stopping_iteration,
        with_a_timeout,
        with_a_foreign_cancellation,
    ],
)
async def test_a_handler_that_raises_fails_its_call_and_tells_nothing(
    fail: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("s", mask_errors=True)
    server.add_tool(fail, name="fail")

    @server.tool
    async def nap() -> str:
        await trio.sleep(10)
        return "slept"

    async with legacy_client(server) as peer:
        await peer.send(call("sibling", "nap"))
        refusal = await peer.request(1, "tools/call", {"name": "fail"})
        assert refusal["result"]["isError"] is True
        assert "reference" in refusal["result"]["content"][0]["text"]
        assert SECRET not in json.dumps(refusal)
        assert "Traceback" not in json.dumps(refusal)
        [answer] = await arrived(peer, within=20)
        assert answer["id"] == "sibling"
        assert "result" in answer
        [session] = server.tree().sessions
        assert session.calls == ()


@pytest.mark.parametrize("nested", [False, True])
async def test_an_error_response_on_purpose_speaks_for_itself(nested: bool) -> None:
    server = Server("s")

    async def refuse() -> None:
        raise RpcError(1234, "on purpose", {"why": [1, None]})

    @server.tool
    async def fail() -> None:
        if not nested:
            await refuse()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)

    async with connected_pair(server) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("fail")
        error = caught.value
        assert (error.code, error.message, error.data) == (1234, "on purpose", {"why": [1, None]})


async def test_a_tool_error_reaches_the_model() -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        raise ToolError("no such city")

    async with connected_pair(server) as client:
        result = await client.call_tool("fail")
        assert result.is_error
        assert result.content[0].text == "no such city"  # type: ignore[union-attr]


@pytest.mark.parametrize("grouped", [False, True])
async def test_raising_while_cleaning_up_after_cancellation_says_nothing(
    grouped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("s")

    async def messy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError(SECRET)

    @server.tool
    async def fail() -> None:
        if not grouped:
            await messy()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(messy)
            nursery.start_soon(trio.sleep_forever)

    async with legacy_client(server) as peer:
        await peer.send(call(1, "fail"))
        await settled()
        await peer.send(cancelled(1))
        assert await arrived(peer, within=1000) == []
        assert server.tree().sessions[0].calls == ()
        assert "result" in await peer.request(2, "ping")


async def test_raising_while_the_server_is_cancelled_does_not_come_out_of_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError(SECRET)

    async with legacy_client(server) as peer:
        await peer.send(call(1, "fail"))
        await settled()
    assert server.tree().sessions == ()
