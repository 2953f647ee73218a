"""Middleware of clients that do not run on Trio: functions of the program, in its loop and in its threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import attrs
import pytest

from mcp_actors import Context, Server
from mcp_actors import asyncio as in_asyncio
from mcp_actors import sync as in_threads
from mcp_actors.client import ClientCall
from mcp_actors.errors import RpcError

SECONDS = 20


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def echo(text: str, ctx: Context) -> str:
        """Says it again."""
        await ctx.log("info", text)
        if text == "bad":
            raise RpcError(77, "bad")
        return text

    return server


def doubled(call: ClientCall) -> ClientCall:
    return attrs.evolve(
        call, params={"name": "echo", "arguments": {"text": call.params["arguments"]["text"] * 2}}
    )


def test_an_asyncio_program_has_it_in_its_own_loop() -> None:
    async def main() -> None:
        here = asyncio.get_running_loop()
        heard = asyncio.Event()

        class Mine:
            async def __call__(self, call: ClientCall, call_next: Any) -> Any:
                assert asyncio.get_running_loop() is here
                await asyncio.sleep(0)
                return await call_next(doubled(call))

            async def notification(self, note: Any, call_next: Any) -> None:
                assert asyncio.get_running_loop() is here
                await call_next()

        async def plain(call: ClientCall, call_next: Any) -> Any:
            try:
                return await call_next()
            except RpcError as error:
                raise RpcError(78, "seen") from error

        def on_log(level: str, data: Any, logger: str | None) -> None:
            heard.set()

        async with in_asyncio.Client(make_server(), on_log=on_log, middleware=[Mine(), plain]) as client:
            assert (await client.call_tool("echo", {"text": "ab"})).text == "abab"
            await asyncio.wait_for(heard.wait(), SECONDS)

        async with in_asyncio.Client(make_server(), middleware=[plain]) as client:
            with pytest.raises(RpcError, match="seen"):
                await client.call_tool("echo", {"text": "bad"})

    asyncio.run(main())


def test_cancelling_an_asyncio_call_cancels_its_middleware() -> None:
    async def main() -> None:
        inside, unwound = asyncio.Event(), asyncio.Event()

        async def waits(call: ClientCall, call_next: Any) -> Any:
            try:
                inside.set()
                await asyncio.sleep(3600)
            finally:
                unwound.set()

        async with in_asyncio.Client(make_server(), middleware=[waits]) as client:
            task = asyncio.create_task(client.call_tool("echo", {"text": "x"}))
            await asyncio.wait_for(inside.wait(), SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert unwound.is_set()

    asyncio.run(main())


def test_a_program_without_a_loop_has_plain_functions_in_threads() -> None:
    threads: list[str] = []
    heard = threading.Event()

    class Mine:
        def __call__(self, call: ClientCall, call_next: Any) -> Any:
            threads.append(threading.current_thread().name)
            result = call_next(doubled(call))
            assert result.text == "abab"
            return result

        def notification(self, note: Any, call_next: Any) -> None:
            call_next()

    def on_log(level: str, data: Any, logger: str | None) -> None:
        heard.set()

    with in_threads.Client(make_server(), on_log=on_log, middleware=[Mine()]) as client:
        assert client.call_tool("echo", {"text": "ab"}).text == "abab"
        assert heard.wait(SECONDS)
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name


def test_async_functions_of_a_program_without_a_loop_run_in_the_engine() -> None:
    class Mine:
        async def __call__(self, call: ClientCall, call_next: Any) -> Any:
            return await call_next(doubled(call))

    with in_threads.Client(make_server(), middleware=[Mine()]) as client:
        assert client.call_tool("echo", {"text": "ab"}).text == "abab"
