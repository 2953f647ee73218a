"""Servers beside the loop of an asyncio program."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, Context, Server
from mcp_actors._server.invoke import on_loop
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_transports.memory import MemoryTransport
from tests.actors.witness import still_running


async def in_engine(function: Any, *args: Any) -> Any:
    """Awaits a Trio function: what the clients of these tests are, whatever the server's program is."""
    return await AsyncioBridge.of_running_loop().call(function, *args)


async def call(url: str, name: str, **arguments: Any) -> str:
    async with Client(url) as client:
        return (await client.call_tool(name, arguments)).text


class Serving:
    """A server in a task of the loop."""

    def __init__(self, server: Server, *targets: str) -> None:
        self._places: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        coroutine: Coroutine[Any, Any, None] = mcp_actors.asyncio.serve(
            server, *targets, started=self._places.set_result
        )
        self.task = asyncio.create_task(coroutine)

    async def __aenter__(self) -> Serving:
        await asyncio.wait([self._places, self.task], return_when=asyncio.FIRST_COMPLETED)
        self.places = self._places.result()
        return self

    async def __aexit__(self, *info: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def server_of_the_loop(**options: Any) -> Server:
    server = Server("x", **options)

    @server.tool(loop="asyncio")
    async def thread() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    @server.tool(loop="asyncio")
    async def hang(ctx: Context) -> None:
        server.tasks.append(asyncio.current_task())  # type: ignore[attr-defined]
        server.begun.set()  # type: ignore[attr-defined]
        await asyncio.sleep(1000)

    server.tasks = []  # type: ignore[attr-defined]
    server.begun = asyncio.Event()  # type: ignore[attr-defined]
    return server


def test_functions_run_in_the_loop_of_the_program() -> None:
    async def main() -> None:
        server = server_of_the_loop()
        async with Serving(server, "http://127.0.0.1:0/mcp") as serving:
            assert await in_engine(call, serving.places[0], "thread") == "MainThread"
            server.stop()
            assert server.stopping
            await asyncio.wait_for(serving.task, 10)

    asyncio.run(main())


def test_a_signal_stops_the_server() -> None:
    async def main() -> None:
        server = server_of_the_loop()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        async with Serving(server, "memory:signal") as serving:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(serving.task, 10)

    asyncio.run(main())


def test_cancelled_it_ends_calls_in_flight() -> None:
    async def main() -> None:
        server = server_of_the_loop()
        async with Serving(server, "memory:cancelled") as serving:
            calling = asyncio.create_task(in_engine(call, "memory:cancelled", "hang"))
            await server.begun.wait()  # type: ignore[attr-defined]
            serving.task.cancel()
            await asyncio.wait([serving.task, calling], timeout=10)
            assert serving.task.cancelled()
            assert server.tasks[0].done()  # type: ignore[attr-defined]
            assert calling.exception() is not None
        assert server.tree().sessions == ()

    asyncio.run(main())


def test_a_task_that_the_program_cancels_answers_its_call() -> None:
    async def main() -> None:
        server = server_of_the_loop()
        async with Serving(server, "memory:program"):
            calling = asyncio.create_task(in_engine(call, "memory:program", "hang"))
            await server.begun.wait()  # type: ignore[attr-defined]
            server.tasks[0].cancel()  # type: ignore[attr-defined]
            assert "the program has cancelled the function's asyncio task" in await calling

    asyncio.run(main())


def test_a_loop_that_is_closed_with_a_call_in_flight_ends_it() -> None:
    loop = asyncio.new_event_loop()
    ended = threading.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended.set()

    async def main() -> list[Any]:
        server = server_of_the_loop(lifespan=lifespan)
        serving = await Serving(server, "memory:closed").__aenter__()
        calling = asyncio.create_task(in_engine(call, "memory:closed", "hang"))
        await server.begun.wait()  # type: ignore[attr-defined]
        return [serving, calling]

    kept = loop.run_until_complete(main())
    loop.close()
    assert ended.wait(20), kept


def test_the_program_may_run_again() -> None:
    async def main() -> None:
        server = server_of_the_loop()
        async with Serving(server, "memory:again"):
            assert await in_engine(call, "memory:again", "thread") == "MainThread"

    asyncio.run(main())
    asyncio.run(main())


@pytest.mark.parametrize("target", ["nothing://x", 7])
def test_what_cannot_be_served_is_told(target: Any) -> None:
    with pytest.raises((mcp_actors.TransportNotFound, TypeError)):
        asyncio.run(mcp_actors.asyncio.serve(Server("x"), target))


def test_a_lifespan_opens_and_closes_what_the_functions_use() -> None:
    steps: list[str] = []

    @mcp_actors.asyncio.lifespan
    async def lifespan(server: Server) -> AsyncIterator[asyncio.AbstractEventLoop]:
        steps.append("opened")
        yield asyncio.get_running_loop()
        await asyncio.sleep(0)
        steps.append("closed")

    async def main() -> None:
        server = Server("x", lifespan=lifespan)
        begun = asyncio.Event()

        @server.tool(loop="asyncio")
        async def works(ctx: Context) -> None:
            assert ctx.state is asyncio.get_running_loop()
            begun.set()
            try:
                await asyncio.sleep(1000)
            finally:
                steps.append("call ended")

        async with Serving(server, "memory:lifespan"):
            calling = asyncio.create_task(in_engine(call, "memory:lifespan", "works"))
            await begun.wait()
        await asyncio.wait([calling])

    asyncio.run(main())
    assert steps == ["opened", "call ended", "closed"]


@pytest.mark.parametrize("crash", [OSError, SystemExit])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_lifespan_raises_leaves_serve(when: str, crash: type[BaseException]) -> None:
    @mcp_actors.asyncio.lifespan
    async def lifespan(server: Server) -> AsyncIterator[None]:
        if when == "before":
            raise crash("no database")
        yield
        raise crash("no database")

    async def main() -> None:
        await mcp_actors.asyncio.serve(Server("x", lifespan=lifespan))

    with pytest.raises(crash, match="no database"):
        asyncio.run(main())


async def test_a_lifespan_that_is_cancelled_as_it_begins_ends_and_fails_at_nothing() -> None:
    begun, ended = 0, 0

    @mcp_actors.asyncio.lifespan
    async def lifespan(server: Server) -> AsyncIterator[None]:
        nonlocal begun, ended
        begun += 1
        try:
            yield
        finally:
            ended += 1

    with capture_logs() as logs:
        for steps in range(200):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Server("x", lifespan=lifespan).serve, MemoryTransport())
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
                assert await still_running(nursery) == []
    assert begun == ended
    assert logs == []


async def test_a_lifespan_runs_in_a_loop_of_the_engine_where_there_is_no_other() -> None:
    @mcp_actors.asyncio.lifespan
    async def lifespan(server: Server) -> AsyncIterator[asyncio.AbstractEventLoop]:
        yield asyncio.get_running_loop()

    server = Server("x", lifespan=lifespan)

    @server.tool(loop="asyncio")
    async def same(ctx: Context) -> bool:
        return ctx.state is asyncio.get_running_loop()

    async with Client(server) as client:
        assert (await client.call_tool("same")).text == "true"


def test_only_a_generator_is_a_lifespan() -> None:
    async def none(server: Server) -> None:
        """Yields nothing."""

    with pytest.raises(TypeError, match="is not an 'async def' with one 'yield'"):
        mcp_actors.asyncio.lifespan(none)  # type: ignore[arg-type]


def test_a_client_of_the_loop_with_the_server_in_memory_runs_functions_there() -> None:
    async def main() -> None:
        async with mcp_actors.asyncio.Client(server_of_the_loop()) as client:
            assert (await client.call_tool("thread")).text == "MainThread"

    asyncio.run(main())


def test_a_client_without_a_loop_runs_functions_in_the_loop_of_the_engine() -> None:
    server = Server("x")

    @server.tool(loop="asyncio")
    async def thread() -> str:
        return await asyncio.sleep(0, threading.current_thread().name)

    with mcp_actors.sync.Client(server) as client:
        assert client.call_tool("thread").text == "mcp-actors-asyncio"


def test_another_trio_loop_uses_a_server_that_is_served_elsewhere() -> None:
    async def elsewhere(server: Server) -> None:
        server.add_tool(lambda: None, name="later")
        with pytest.raises(mcp_actors.LocalProtocolError, match="there is already a tool 'later'"):
            server.add_tool(lambda: None, name="later")
        server.stop()

    async def main() -> None:
        server = server_of_the_loop()
        async with Serving(server, "memory:elsewhere") as serving:
            await asyncio.to_thread(trio.run, elsewhere, server)
            assert "later" in server.tools
            await asyncio.wait_for(serving.task, 10)

    asyncio.run(main())


def test_a_server_is_served_in_one_loop_at_a_time() -> None:
    async def here(server: Server) -> str:
        async with mcp_actors.Client(server) as client:
            return (await client.call_tool("three")).text

    server = Server("x")
    server.add_tool(lambda: 3, name="three")
    with mcp_actors.sync.Client(server) as client:
        with pytest.raises(mcp_actors.LocalProtocolError, match="served in another event loop"):
            trio.run(here, server)
        assert client.call_tool("three").text == "3"
    assert trio.run(here, server) == "3"
    with mcp_actors.sync.Client(server) as client:
        assert client.call_tool("three").text == "3"


def test_an_event_loop_that_has_ended_is_told() -> None:
    async def token() -> trio.lowlevel.TrioToken:
        return trio.lowlevel.current_trio_token()

    ended = trio.run(token)
    with pytest.raises(mcp_actors.LocalProtocolError, match="has ended"):
        on_loop(ended, len, "abc")
