"""Loops that are closed, threads that are interrupted, and an engine that fails: nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import LocalProtocolError
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import EngineStopped, LoopClosed

PATIENCE = 10  # seconds


class Held:
    """A function of the engine that goes on until it is cancelled."""

    def __init__(self) -> None:
        self.begun: Future[None] = Future()
        self.ended: Future[str] = Future()

    async def __call__(self) -> None:
        self.begun.set_result(None)
        try:
            await trio.sleep_forever()
        except BaseException as error:
            self.ended.set_result(type(error).__name__)
            raise


async def called_back(function: Callable[..., Any], *args: Any) -> Any:
    """A function of the engine that calls one of the program."""
    bridge = calling_bridge.get()
    assert bridge is not None
    return await bridge.run(function, *args)


def loudest(logs: list[Any]) -> list[Any]:
    return [each for each in logs if each["log_level"] != "debug"]


# -- loops ----------------------------------------------------------------------------------------------------------


def test_a_loop_that_is_closed_with_calls_in_flight_cancels_them() -> None:
    held = Held()
    with capture_logs() as logs:
        loop = asyncio.new_event_loop()

        async def main() -> None:
            task = asyncio.ensure_future(AsyncioBridge.of_running_loop().call(held))
            await asyncio.wrap_future(held.begun)
            abandoned.append(task)

        abandoned: list[Any] = []
        loop.run_until_complete(main())
        loop.close()
        assert held.ended.result(PATIENCE) == "Cancelled"
        abandoned[0]._log_destroy_pending = False
    assert loudest(logs) == []


def test_what_a_loop_owns_is_closed_when_asyncio_run_ends_the_last_first() -> None:
    closed = []

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()

        def closer(name: str) -> Callable[[], Awaitable[None]]:
            async def close() -> None:
                assert engine_thread().is_current
                await trio.lowlevel.checkpoint()
                closed.append(name)

            return close

        bridge.own(closer("first"))
        bridge.own(closer("second"))
        bridge.own(third := closer("third"))
        bridge.disown(third)
        bridge.disown(third)

    asyncio.run(main())
    assert closed == ["second", "first"]


def test_what_a_loop_owns_that_is_only_closed_is_closed_soon() -> None:
    closed: Future[bool] = Future()

    async def close() -> None:
        closed.set_result(engine_thread().is_current)

    async def fails() -> NoReturn:
        raise ValueError("cannot be closed")

    async def main() -> None:
        AsyncioBridge.of_running_loop().own(close)
        AsyncioBridge.of_running_loop().own(fails)

    loop = asyncio.new_event_loop()
    with capture_logs() as logs:
        loop.run_until_complete(main())
        loop.close()
        assert closed.result(PATIENCE)
    assert loudest(logs) == []


def test_a_trio_loop_that_ends_closes_what_it_owns() -> None:
    from mcp_actors.bridges.trio_bridge import TrioBridge

    closed: Future[bool] = Future()

    async def close() -> None:
        closed.set_result(engine_thread().is_current)

    async def main() -> None:
        TrioBridge.of_running_loop().own(close)

    trio.run(main)
    assert closed.result(PATIENCE)


def test_one_loop_after_the_other_and_two_at_once() -> None:
    async def answer(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return number

    async def main(number: int) -> int:
        return sum(
            await asyncio.gather(*(AsyncioBridge.of_running_loop().call(answer, number) for _ in range(10)))
        )

    assert [asyncio.run(main(1)), asyncio.run(main(2))] == [10, 20]
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(asyncio.run(main(n)))) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert sorted(results) == [0, 10, 20, 30]


def test_a_function_in_a_loop_that_is_closed_or_was_never_run() -> None:
    loop = asyncio.new_event_loop()
    bridge = AsyncioBridge(loop, engine_thread())

    async def give_up() -> str:
        with trio.move_on_after(0):
            await bridge.run(lambda: None)
        return "gave up"

    assert ThreadBridge().call(give_up) == "gave up"
    results: Future[BaseException] = Future()

    def waits() -> None:
        try:
            ThreadBridge().call(bridge.run, lambda: None)
        except BaseException as error:
            results.set_result(error)

    thread = threading.Thread(target=waits)
    thread.start()
    loop.close()
    assert isinstance(results.result(PATIENCE), LoopClosed)
    thread.join(PATIENCE)
    with pytest.raises(LoopClosed, match="is closed"):
        ThreadBridge().call(bridge.run, lambda: None)
    assert repr(bridge) == "<AsyncioBridge closed>"


def test_asyncio_run_that_ends_cancels_a_function_of_the_program() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.ensure_future(AsyncioBridge.of_running_loop().call(called_back, never))
        await asyncio.sleep(0.01)
        assert not task.done()

    with capture_logs() as logs:
        asyncio.run(main())
    assert loudest(logs) == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_leaves_its_loop(interrupt: type[BaseException]) -> None:
    def ends() -> NoReturn:
        raise interrupt

    async def main() -> None:
        await AsyncioBridge.of_running_loop().call(called_back, ends)

    with pytest.raises(interrupt):
        asyncio.run(main())


# -- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_leaves_the_waiting_thread_and_cancels_the_call(
    interrupt: type[BaseException],
) -> None:
    held = Held()

    def ends() -> NoReturn:
        raise interrupt

    async def calls_back() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held)
            await called_back(lambda: None)
            try:
                await called_back(ends)
            except LoopClosed:
                await trio.sleep_forever()

    with pytest.raises(interrupt):
        ThreadBridge().call(calls_back)
    assert held.ended.result(PATIENCE) == "Cancelled"


def test_a_call_of_the_engine_to_itself_is_refused() -> None:
    async def waits_for_itself() -> None:
        ThreadBridge().call(trio.lowlevel.checkpoint)

    with pytest.raises(LocalProtocolError, match="use 'await'"):
        ThreadBridge().call(waits_for_itself)


def test_a_thread_that_waits_no_longer_runs_no_function() -> None:
    bridge = ThreadBridge()
    bridge.call(trio.lowlevel.checkpoint)
    with pytest.raises(LoopClosed):
        ThreadBridge().call(bridge.run, lambda: None)


# -- the engine -----------------------------------------------------------------------------------------------------


def crash() -> None:
    raise KeyboardInterrupt


def test_an_engine_that_fails_costs_its_calls_and_the_next_use_starts_another() -> None:
    engine = engine_thread()
    in_thread: Future[BaseException] = Future()
    held = Held()

    def waits() -> None:
        try:
            ThreadBridge().call(held)
        except BaseException as error:
            in_thread.set_result(error)

    async def main() -> None:
        thread = threading.Thread(target=waits)
        thread.start()
        await asyncio.wrap_future(held.begun)
        bridge = AsyncioBridge.of_running_loop()
        calls = [asyncio.ensure_future(bridge.call(trio.sleep_forever)) for _ in range(3)]
        await bridge.call(trio.lowlevel.checkpoint)
        engine.post(crash)
        for each in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE):
            assert isinstance(each, EngineStopped)
            assert "make a new client" in str(each)
        assert isinstance(in_thread.result(PATIENCE), EngineStopped)
        with pytest.raises(EngineStopped):
            engine.must_run()
        with pytest.raises(EngineStopped):
            engine.post(crash)
        # The next use.
        await AsyncioBridge.of_running_loop().call(trio.lowlevel.checkpoint)
        thread.join(PATIENCE)

    with capture_logs() as logs:
        asyncio.run(main())
        ThreadBridge().call(trio.lowlevel.checkpoint)
    assert [each["event"] for each in loudest(logs)] == ["the engine thread failed: what it ran is lost"]
    assert engine_thread() is not engine
    assert repr(engine) == "<EngineThread ended>"
    gc.collect()


# -- errors ---------------------------------------------------------------------------------------------------------


class Kept:
    """Something that an error's frames have as a local."""


def test_an_error_that_crossed_a_bridge_leaves_no_cycle() -> None:
    async def fails() -> NoReturn:
        raise ValueError("of the engine")

    def fails_here() -> NoReturn:
        raise ValueError("of the program")

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()
        for _ in range(20):
            with pytest.raises(ValueError, match="of the engine"):
                await bridge.call(fails)
            with pytest.raises(ValueError, match="of the program"):
                await bridge.call(called_back, fails_here)
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                try:
                    await bridge.call(fails)
                except ValueError:
                    pass
                try:
                    await bridge.call(called_back, fails_here)
                except ValueError:
                    pass
            cyclic.append(gc.collect())
        finally:
            gc.enable()

    cyclic: list[int] = []
    asyncio.run(main())
    assert cyclic[0] < 100
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            for function, args in ((fails, ()), (called_back, (fails_here,))):
                try:
                    ThreadBridge().call(function, *args)  # type: ignore[arg-type]
                except ValueError:
                    pass
        assert gc.collect() < 100
    finally:
        gc.enable()
