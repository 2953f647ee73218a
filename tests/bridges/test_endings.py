"""Loops that are closed, threads that are interrupted, and an engine that fails: nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import LocalProtocolError
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import EngineStopped, LoopClosed
from tests.bridges.watched import called_back

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
        # The calls are told before the thread says why it ends.
        engine.stop()
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


# -- Ends of processes: exit at the worst moment, forks, interrupts. Each case is a program of its own ---

ROOT = Path(__file__).parent.parent.parent
PATIENCE_PROCESS_ENDINGS = (
    120  # seconds for one program, of which nothing takes a tenth on a machine that is not busy
)

HEAD = """
import asyncio, atexit, os, signal, sys, threading, time
import trio
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import EngineStopped

begun = threading.Event()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def answer(value=1):
    await trio.lowlevel.checkpoint()
    return value

async def hold():
    begun.set()
    try:
        await trio.sleep_forever()
    finally:
        say("cancelled in the engine")

async def call_back(function, *args):
    return await calling_bridge.get().run(function, *args)

"""


def program(text: str) -> tuple[int, list[str], str]:
    """Runs a program; returns its exit code, the lines of its output, and the end of its stderr."""
    result = subprocess.run(
        # From CPython 3.12 on a fork beside threads is warned of, which is what some of the programs are about.
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", HEAD + text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_PROCESS_ENDINGS,
        check=False,
    )
    assert "trio" not in result.stderr.lower(), result.stderr
    assert "fatal" not in result.stderr.lower(), result.stderr
    last = result.stderr.strip().splitlines()[-1:]
    return result.returncode, result.stdout.splitlines(), "".join(last)


# Each of these ends while a call is in flight: in an asyncio loop that is not closed, or in a daemon thread.
IN_A_LOOP = """
loop = asyncio.new_event_loop()
async def main():
    global task
    task = asyncio.ensure_future(AsyncioBridge.of_running_loop().call(hold))
    task._log_destroy_pending = False
    while not begun.is_set():
        await asyncio.sleep(0.001)
loop.run_until_complete(main())
"""
IN_A_DAEMON_THREAD = """
threading.Thread(target=lambda: ThreadBridge().call(hold), daemon=True).start()
begun.wait()
"""
IN_A_LOOP_OF_A_DAEMON_THREAD = """
async def main():
    await AsyncioBridge.of_running_loop().call(hold)
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
begun.wait()
"""
ENDINGS = {
    "": (0, ""),
    "sys.exit(3)": (3, ""),
    "raise ValueError('unhandled')": (1, "ValueError: unhandled"),
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)": (-2, "KeyboardInterrupt"),
}


PLACES = [(IN_A_LOOP, ending) for ending in ENDINGS]
PLACES += [
    (IN_A_DAEMON_THREAD, "sys.exit(3)"),
    (IN_A_LOOP_OF_A_DAEMON_THREAD, "raise ValueError('unhandled')"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "ending"), PLACES)
def test_the_program_ends_with_a_call_in_flight(place: str, ending: str) -> None:
    code, said, error = program(place + ending)
    assert (code, error) == ENDINGS[ending]
    assert said == ["cancelled in the engine"]


def test_a_function_that_blocks_its_loop_does_not_hold_up_the_exit() -> None:
    text = """
def block():
    begun.set()
    threading.Event().wait()
async def main():
    await AsyncioBridge.of_running_loop().call(call_back, block)
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
begun.wait()
for name in ("engine_thread", "asyncio_bridge"):
    module = sys.modules[f"mcp_actors.bridges.{name}"]
    module.STOP_TIME = module.CANCEL_TIME = 1000
atexit.unregister(engine_thread().stop)
engine_thread().stop()
say("stopped")
"""
    assert program(text) == (0, ["stopped"], "")


def test_a_callback_that_exits_ends_the_program() -> None:
    assert program("ThreadBridge().call(call_back, sys.exit, 7)") == (7, [], "")
    in_a_loop = """
async def main():
    await AsyncioBridge.of_running_loop().call(call_back, sys.exit, 7)
asyncio.run(main())
"""
    assert program(in_a_loop) == (7, [], "")


def test_functions_of_the_user_at_the_exit_before_and_behind_the_engine() -> None:
    text = """
def use(where):
    try:
        say(where, ThreadBridge().call(answer))
    except EngineStopped as error:
        say(where, error)
async def use_in_loop():
    return await AsyncioBridge.of_running_loop().call(answer, 2)
def in_loop(where):
    try:
        say(where, asyncio.run(use_in_loop()))
    except EngineStopped as error:
        say(where, error)
atexit.register(use, "behind")
atexit.register(in_loop, "loop behind")
ThreadBridge().call(answer)
atexit.register(use, "before")
atexit.register(in_loop, "loop before")
"""
    code, said, error = program(text)
    stopped = "the program ends, and the engine has stopped"
    assert said == ["loop before 2", "before 1", f"loop behind {stopped}", f"behind {stopped}"]
    assert (code, error) == (0, "")


def test_an_engine_that_would_begin_at_the_exit_does_not() -> None:
    text = """
def use():
    try:
        ThreadBridge()
    except EngineStopped as error:
        say(error)
atexit.register(use)
"""
    assert program(text) == (0, ["the program ends, and the engine has stopped"], "")


def test_a_daemon_thread_that_calls_during_the_exit_says_nothing() -> None:
    text = """
def calls():
    while True:
        ThreadBridge().call(answer)
        begun.set()
async def calls_in_loop():
    while True:
        await AsyncioBridge.of_running_loop().call(answer)
for _ in range(2):
    threading.Thread(target=calls, daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(calls_in_loop()), daemon=True).start()
begun.wait()
"""
    assert program(text) == (0, [], "")


def test_an_interrupt_cancels_the_call_of_a_waiting_thread() -> None:
    text = """
def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    ThreadBridge().call(hold)
except KeyboardInterrupt:
    say("interrupted")
say(ThreadBridge().call(answer, 5))
"""
    assert program(text) == (0, ["cancelled in the engine", "interrupted", "5"], "")


def test_an_interrupt_at_any_instruction_leaves_nothing_behind() -> None:
    text = """
import random
chance = random.Random(1)
running = [0]
async def short():
    running[0] += 1
    try:
        await trio.sleep(0.0005)
    finally:
        running[0] -= 1
interrupts = 0
ThreadBridge().call(answer)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.0012))
        ThreadBridge().call(short)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
ThreadBridge().call(answer)
say(interrupts > 20, running)
"""
    assert program(text) == (0, ["True [0]"], "")


FORK = """
# From 3.12 on CPython says of every fork beside threads that it may hang.
import warnings; warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
def child_uses_the_engine():
    engine = engine_thread()
    say("child has", ThreadBridge().call(answer, 3))
    say("threads", threading.active_count())
def fork():
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return "child"
old = engine_thread()
try:
    result = ThreadBridge().call(call_back, fork)
except EngineStopped as error:
    say(error.is_forked)
    try:
        old.must_run()
    except EngineStopped:
        say("old engine is gone")
    child_uses_the_engine()
    sys.exit(4)
say("parent", result, ThreadBridge().call(answer, 8), old is engine_thread())
"""


def test_a_fork_in_mid_call() -> None:
    code, said, error = program(FORK)
    assert said == ["True", "old engine is gone", "child has 3", "threads 2", "parent 4 8 True"]
    assert (code, error) == (0, "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_engines_of_their_own(method: str, tmp_path: Path) -> None:
    text = f"""
import multiprocessing
def work(number):
    return ThreadBridge().call(answer, number) + asyncio.run(use(number))
async def use(number):
    return await AsyncioBridge.of_running_loop().call(answer, number)
if __name__ == "__main__":
    say(work(1))
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        say(sorted(pool.map(work, [1, 2])))
    say(work(4))
"""
    path = tmp_path / "program.py"
    path.write_text(HEAD + text)
    result = subprocess.run(
        [sys.executable, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_PROCESS_ENDINGS,
        check=False,
    )
    assert (result.stdout.split("\n"), result.stderr) == (["2", "[2, 4]", "8", ""], "")


FORK_IN_A_LOOP = """
async def main():
    bridge = AsyncioBridge.of_running_loop()
    waits = asyncio.ensure_future(bridge.call(hold))
    is_cancelled = asyncio.ensure_future(bridge.call(hold))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    await bridge.call(answer)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    pid = os.fork()
    if not pid:
        # From CPython 3.14 on asyncio forgets in the child that the loop and the task run, and runs no other task.
        asyncio._set_running_loop(loop)
        if asyncio.current_task() is None:
            asyncio.tasks._enter_task(loop, task)
        is_cancelled.cancel()
        ends = await asyncio.gather(waits, is_cancelled, return_exceptions=True)
        say([type(each).__name__ for each in ends], ends[0].is_forked)
        os._exit(4)
    say("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), await bridge.call(answer))
    for each in (waits, is_cancelled):
        each.cancel()
asyncio.run(main())
"""


def test_a_fork_in_the_middle_of_a_loop_ends_its_calls() -> None:
    code, said, error = program(FORK_IN_A_LOOP)
    assert said[:2] == ["['EngineStopped', 'CancelledError'] True", "parent 4 1"]
    assert (code, error) == (0, "")


def test_a_handler_of_signals_calls_in_the_middle_of_the_engines_start() -> None:
    text = """
def handler(*args):
    say("in the handler", ThreadBridge().call(answer, 2))
signal.signal(signal.SIGUSR1, handler)
start = threading.Thread.start
def interrupted(thread):
    threading.Thread.start = start
    signal.raise_signal(signal.SIGUSR1)
    start(thread)
threading.Thread.start = interrupted
say(ThreadBridge().call(answer, 3), threading.active_count())
"""
    assert program(text) == (0, ["in the handler 2", "3 2"], "")


def test_an_interrupt_in_the_middle_of_the_engines_start_leaves_no_engine() -> None:
    text = """
start = threading.Thread.start
def interrupted(thread):
    threading.Thread.start = start
    start(thread)
    raise KeyboardInterrupt
threading.Thread.start = interrupted
try:
    ThreadBridge()
except KeyboardInterrupt:
    say("interrupted")
orphan = [each for each in threading.enumerate() if each.name == "mcp-actors"]
say(ThreadBridge().call(answer, 3))
for each in orphan:
    each.join(9)
say(threading.active_count())
"""
    assert program(text) == (0, ["interrupted", "3", "2"], "")
