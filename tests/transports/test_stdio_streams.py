"""Streams on descriptors: fair, cancellable, and told when nothing more will come."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_actors import Client
from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectionLost
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.child import ChildProcess, StderrTail
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream

from .crashes import CRASHES, captured_logs
from .lines import PATIENCE
from .test_stdio_client import CAT, LEAVES_ONE_BEHIND, is_running

Pipe = tuple[DescriptorReceiveStream, DescriptorSendStream]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    ends = DescriptorReceiveStream(reading), DescriptorSendStream(writing)
    yield ends
    for end in ends:
        if end.fileno() >= 0:
            os.close(end.fileno())


@pytest.mark.parametrize("path", [os.devnull, "/dev/zero", __file__])
async def test_what_cannot_be_polled_is_read_fairly(path: str) -> None:
    stream = DescriptorReceiveStream(os.open(path, os.O_RDONLY))

    with trio.testing.assert_checkpoints():
        data = await stream.receive_some(10)

    assert len(data) == (0 if path == os.devnull else 10)
    await stream.aclose()


async def test_a_directory_is_broken() -> None:
    stream = DescriptorReceiveStream(os.open("/", os.O_RDONLY))
    with pytest.raises(trio.BrokenResourceError, match="Is a directory"):
        await stream.receive_some()
    await stream.aclose()


async def test_a_full_device_breaks_sending() -> None:
    stream = DescriptorSendStream(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(trio.BrokenResourceError, match="No space left"):
        await stream.send_all(b"x")
    await stream.aclose()


async def test_a_sending_loop_gives_way(tmp_path: Path) -> None:
    stream = DescriptorSendStream(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(160):
            await stream.send_all(b"x")
        nursery.cancel_scope.cancel()

    assert turns >= 8
    assert (tmp_path / "file").read_bytes() == b"x" * 160
    await stream.aclose()


async def test_a_cancelled_scope_sends_nothing_and_receives_nothing(pipe: Pipe) -> None:
    reading, writing = pipe
    for attempt in (writing.send_all(b"never"), reading.receive_some()):
        with trio.CancelScope() as scope:
            scope.cancel()
            await attempt
        assert scope.cancelled_caught

    await writing.send_all(b"first")
    assert await reading.receive_some() == b"first"


async def test_a_full_pipe_is_waited_for(pipe: Pipe) -> None:
    reading, writing = pipe
    received = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writing.send_all, b"x" * 1_000_000)
        while received < 1_000_000:
            received += len(await reading.receive_some())
    await writing.wait_send_all_might_not_block()

    assert received == 1_000_000


async def test_finish_delivers_what_is_there_and_ends(pipe: Pipe) -> None:
    reading, writing = pipe
    await writing.send_all(b"12345")
    reading.finish()
    await writing.send_all(b"too late")

    assert await reading.receive_some(3) == b"123"
    assert await reading.receive_some(3) == b"45"
    assert await reading.receive_some(3) == b""
    assert await reading.receive_some(3) == b""


async def test_finish_wakes_who_waits(pipe: Pipe) -> None:
    reading, writing = pipe
    endings: list[str] = []

    async def receive() -> None:
        endings.append(f"received {await reading.receive_some()!r}")

    async def send() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await writing.send_all(b"x" * 1_000_000)
        endings.append("sending broke")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        reading.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        writing.finish()

    assert endings == ["received b''", "sending broke"]


@pytest.mark.parametrize("end", [0, 1], ids=["receiving", "sending"])
async def test_close_wakes_who_waits_and_is_final(pipe: Pipe, end: int) -> None:
    async def closed() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await (pipe[1].send_all(b"x" * 1_000_000) if end else pipe[0].receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(closed)
        await trio.testing.wait_all_tasks_blocked()
        await pipe[end].aclose()
    await closed()
    await pipe[end].aclose()

    assert pipe[end].fileno() == -1


async def test_a_pipe_says_what_is_not_read(pipe: Pipe) -> None:
    reading, writing = pipe
    assert writing.unread() == 0
    await writing.send_all(b"x" * 1000)
    assert writing.send_at_once(b"y" * 10)
    assert (writing.sent, writing.unread()) == (1010, 1010)
    await reading.receive_some(1004)
    assert writing.unread() == 6
    await writing.aclose()
    assert writing.unread() is None
    await reading.aclose()


async def test_a_unix_socket_says_when_all_is_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        writing = DescriptorSendStream(ours.detach())
        assert writing.unread() == 0
        await writing.send_all(b"xy")
        assert (writing.unread() or 0) >= 2
        theirs.recv(2)
        assert writing.unread() == 0
        await writing.aclose()


async def test_what_is_no_pipe_cannot_say_what_is_read(tmp_path: Path) -> None:
    stream = DescriptorSendStream(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    assert stream.unread() is None
    await stream.aclose()


# -- A task that looks after a child process crashes: the connection is lost, and the child is stopped all the same ---

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


@pytest.mark.slow
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
