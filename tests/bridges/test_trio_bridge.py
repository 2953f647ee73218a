"""Calls between the engine and a Trio loop of the program's own."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import NoReturn

import pytest
import trio

from mcp_actors import LocalProtocolError
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.bridges.trio_bridge import TrioBridge
from mcp_actors.errors import LoopClosed
from mcp_transports.http.asgi.loops import current_bridge

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def test_the_bridge_of_whatever_runs_here() -> None:
    assert isinstance(current_bridge(), TrioBridge)
    assert current_bridge() is TrioBridge.of_running_loop()

    async def in_asyncio() -> object:
        return current_bridge()

    assert isinstance(await trio.to_thread.run_sync(lambda: asyncio.run(in_asyncio())), AsyncioBridge)
    assert isinstance(await trio.to_thread.run_sync(current_bridge), ThreadBridge)


async def test_the_engine_itself_needs_no_bridge() -> None:
    async def ask() -> None:
        current_bridge()

    with pytest.raises(LocalProtocolError, match="use 'await'"):
        await TrioBridge.of_running_loop().call(ask)


async def test_a_call_runs_in_the_engine_and_a_function_of_it_in_the_loop() -> None:
    here = threading.current_thread()
    seen = []

    async def of_the_program(number: int) -> int:
        seen.append(threading.current_thread() is here)
        await trio.lowlevel.checkpoint()
        return number + 1

    async def in_the_engine(number: int) -> int:
        seen.append(threading.current_thread() is not here)
        seen.append(variable.get() == "set")
        bridge = calling_bridge.get()
        assert bridge is not None
        return await bridge.run(of_the_program, number) + await bridge.run(lambda: 10)

    variable.set("set")
    assert await TrioBridge.of_running_loop().call(in_the_engine, 1) == 12
    assert seen == [True, True, True]


async def test_errors_cross_both_ways() -> None:
    async def fails() -> NoReturn:
        raise ValueError("of the program")

    async def in_the_engine() -> None:
        bridge = calling_bridge.get()
        assert bridge is not None
        await bridge.run(fails)

    with pytest.raises(ValueError, match="of the program"):
        await TrioBridge.of_running_loop().call(in_the_engine)


async def test_cancelling_the_task_cancels_the_call_and_its_function() -> None:
    seen = []
    begun = trio.Event()

    async def of_the_program() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.append("function")

    async def in_the_engine() -> None:
        bridge = calling_bridge.get()
        assert bridge is not None
        try:
            await bridge.run(of_the_program)
        finally:
            seen.append("call")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TrioBridge.of_running_loop().call, in_the_engine)
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert seen == ["function", "call"]


def test_a_loop_that_has_ended() -> None:
    async def main() -> TrioBridge:
        return TrioBridge.of_running_loop()

    bridge = trio.run(main)
    with pytest.raises(LoopClosed, match="has ended"):
        bridge.post(lambda: None)
    with pytest.raises(LoopClosed, match="has ended"):
        ThreadBridge().call(bridge.run, lambda: None)
