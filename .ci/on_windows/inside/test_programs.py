"""Clients and servers on each kind of loop in one process: Trio, asyncio with either of its loops, and none."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
import trio
from running import PATIENCE, PROGRAMS, connected

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, ConnectFailed, McpError, Server

REFUSED = (McpError, OSError, ValueError)
LOOPS: list[Any] = [asyncio.ProactorEventLoop, asyncio.SelectorEventLoop]  # type: ignore[attr-defined]
URLS = ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0"]
PATIENT: dict[str, Any] = {"timeout": PATIENCE, "probe_timeout": PATIENCE}
CHILD = f'stdio:"{sys.executable}" "{PROGRAMS / "served.py"}"'


@pytest.fixture
def server() -> Server:
    made = Server("in this process")

    @made.tool
    async def double(x: int) -> int:
        return 2 * x

    @made.tool
    def halve(x: int) -> float:
        return x / 2

    @made.tool(loop="asyncio")
    async def loop() -> str:
        await asyncio.sleep(0)
        return type(asyncio.get_running_loop()).__name__

    return made


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_trio_over_sockets(server: Server, nursery: trio.Nursery, url: str, era: str) -> None:
    with trio.fail_after(PATIENCE):
        (address,) = await nursery.start(server.serve, url)
        async with connected(address, era=era) as client:
            assert client.era == era
            for _ in range(20):
                assert await client.call_tool("double", {"x": 21}, returns=int) == 42
            assert await client.call_tool("halve", {"x": 21}, returns=float) == 10.5


async def test_a_port_is_served_once(server: Server, nursery: trio.Nursery) -> None:
    with trio.fail_after(PATIENCE):
        (address,) = await nursery.start(server.serve, URLS[0])
        with pytest.raises(ConnectFailed, match="end what listens there, or take another port"):
            await Server("second").serve(address)


async def test_unix_sockets_are_refused_in_one_sentence(server: Server) -> None:
    for url in ("unix:///tmp/x", r"unix://C:\x", "unix:C:/x", "http+unix://%2Ftmp%2Fx/mcp"):
        with pytest.raises(REFUSED, match="Python has no Unix sockets on Windows"):
            async with Client(url):
                pass
        with pytest.raises(REFUSED, match="Python has no Unix sockets on Windows"):
            await server.serve(url)


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("url", URLS)
def test_asyncio_over_sockets(server: Server, make_loop: Any, url: str) -> None:
    async def main() -> None:
        listening: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(mcp_actors.asyncio.serve(server, url, started=listening.set_result))
        async with asyncio.timeout(PATIENCE):
            (address,) = await listening
            async with mcp_actors.asyncio.Client(address, **PATIENT) as client:
                calls = [
                    asyncio.create_task(client.call_tool("double", {"x": x}, returns=int)) for x in range(10)
                ]
                assert [await call for call in calls] == [2 * x for x in range(10)]
                assert (await client.call_tool("loop")).text == make_loop.__name__
            server.stop()
            await serving

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_asyncio_with_a_child(make_loop: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), mcp_actors.asyncio.Client(CHILD, **PATIENT) as client:
            assert (await client.call_tool("in_a_thread", {"text": "a"})).text == "a ä"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.call_tool("wait_for_ever")
            while await client.call_tool("count_cancelled", returns=int) != 1:
                pass

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def test_a_program_without_a_loop() -> None:
    answers: list[Any] = []
    with mcp_actors.sync.Client(CHILD, **PATIENT) as client:
        threads = [
            threading.Thread(
                target=lambda: answers.append(client.call_tool("forecast", {"city": "a", "days": 2}).data)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert answers == [{"a": [20, 21]}] * 4
