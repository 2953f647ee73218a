"""Streams on descriptors: fair, cancellable, and told when nothing more will come."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream

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
