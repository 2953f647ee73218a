"""A task that looks after a child process crashes: the connection is lost, and the child is stopped all the same."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import pytest
import trio

from mcp_actors import Client
from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectionLost
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.child import ChildProcess, StderrTail

from .crashes import CRASHES, captured_logs
from .lines import PATIENCE
from .test_stdio_client import CAT, LEAVES_ONE_BEHIND, is_running

EACH_CRASH = pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
SERVER = """
import trio
from mcp_actors import Server
server = Server("child")

@server.tool
async def hold() -> None:
    await trio.sleep_forever()

trio.run(server.serve, "stdio:")
"""
Crash = Callable[[], Awaitable[None]]


@pytest.fixture
def crash_the_watcher(monkeypatch: pytest.MonkeyPatch) -> Callable[[Crash], trio.Event]:
    """Has the first wait for the exit, which is the watcher's, crash once the returned event is set."""
    wait = ChildProcess._wait_for_exit

    def plan(crash: Crash) -> trio.Event:
        now, crashes = trio.Event(), [crash]

        async def wait_for_exit(child: ChildProcess) -> None:
            if crashes:
                planned = crashes.pop()
                await now.wait()
                await planned()
            await wait(child)

        monkeypatch.setattr(ChildProcess, "_wait_for_exit", wait_for_exit)
        return now

    return plan


@EACH_CRASH
async def test_a_watcher_that_crashes_is_a_lost_connection_for_the_caller(
    crash: Crash, crash_the_watcher: Callable[[Crash], trio.Event]
) -> None:
    now = crash_the_watcher(crash)
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with Client(StdioClientTransport([sys.executable, "-c", SERVER])) as client:
            async with trio.open_nursery() as calls:

                async def hold() -> None:
                    with pytest.raises(ConnectionLost):
                        await client.call_tool("hold")

                calls.start_soon(hold)
                now.set()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["child process failed"]


async def test_after_its_watcher_crashed_nothing_of_the_group_is_left(
    crash_the_watcher: Callable[[Crash], trio.Event],
) -> None:
    now = crash_the_watcher(CRASHES["SystemExit"])
    command = [sys.executable, "-c", LEAVES_ONE_BEHIND]
    with captured_logs(), trio.fail_after(PATIENCE):
        async with StdioClientTransport(command, kill_after=0.1).connect() as channel:
            pids = [int(each) for each in (await channel.receive()).data.split()]
            now.set()
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


@EACH_CRASH
async def test_stderr_is_still_drained_after_a_crash(crash: Crash, monkeypatch: pytest.MonkeyPatch) -> None:
    drain, crashes = ChildProcess._drain_stderr, [crash]

    async def crashing(child: ChildProcess) -> None:
        if crashes:
            await crashes.pop()()
        await drain(child)

    monkeypatch.setattr(ChildProcess, "_drain_stderr", crashing)
    # More than a pipe holds: nobody would get an answer if it were not read.
    writes_first = f"import sys\nsys.stderr.write('x' * 200_000)\nsys.stderr.flush()\n{CAT}"
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with StdioClientTransport([sys.executable, "-c", writes_first]).connect() as channel:
            await channel.send(Frame(b"1"))
            assert (await channel.receive()).data == b"1"
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["child output failed"]


def test_a_callback_that_raises_anything_is_dropped() -> None:
    said: list[str] = []

    def callback(line: str) -> None:
        said.append(line)
        raise SystemExit(3)

    tail = StderrTail(10, callback)
    tail.feed(b"one\ntwo\n")
    assert said == ["one"]
    assert tail.lines[0] == "one"
    assert "SystemExit(3)" in tail.lines[1]
    assert tail.lines[2] == "two"
