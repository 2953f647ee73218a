"""Streams on descriptors whose calls block: what is cancelled, closed, interrupted, and who closes the descriptor."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

from mcp_transports.stdio.windows.standard_streams import BlockingReceiveStream, BlockingSendStream

TIMEOUT = 30


class Pipe:
    """A pipe of the system; `interrupt` ends a read as CancelSynchronousIo does, by another way."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.interrupted: list[int] = []
        self.works = True
        self.reads = 0

    def interrupt(self, thread: int) -> bool:
        self.interrupted.append(thread)
        if self.works:
            os.write(self.writing, b"!")
        return self.works


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe()
    real = os.read

    def read(fd: int, size: int) -> bytes:
        made.reads += fd == made.reading
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)
    yield made
    for fd in (made.writing, made.reading):
        if is_open(fd):
            os.close(fd)


def is_open(fd: int) -> bool:
    """Whether a descriptor is still a pipe: its number is another file's soon after it was closed."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await trio.testing.wait_all_tasks_blocked(0.001)


async def test_what_comes_after_a_cancelled_receive_is_received_next(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.write(pipe.writing, b"12345")
        assert [await stream.receive_some(3), await stream.receive_some(3)] == [b"123", b"45"]
        os.close(pipe.writing)
        assert await stream.receive_some() == b""
    await stream.aclose()
    assert not is_open(pipe.reading)


async def test_two_receivers_are_one_too_many(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive_some()
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_closing_interrupts_the_thread_which_closes_the_descriptor(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    endings: list[str] = []

    async def receive() -> None:
        try:
            await stream.receive_some()
        except trio.ClosedResourceError:
            endings.append("closed")

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await until(lambda: pipe.reads == 1)
            await stream.aclose()

    assert endings == ["closed"]
    assert pipe.interrupted
    assert threading.main_thread().native_id not in pipe.interrupted
    assert not is_open(pipe.reading)
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_a_thread_that_cannot_be_interrupted_is_left_alone_and_closes_later(pipe: Pipe) -> None:
    pipe.works = False
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await until(lambda: pipe.reads == 1)
            nursery.cancel_scope.cancel()
        await stream.aclose()
        # A descriptor that is closed here would make Windows wait for the read.
        assert is_open(pipe.reading)
        os.write(pipe.writing, b"late")
        await until(lambda: not is_open(pipe.reading))


async def test_a_thread_that_ends_after_the_loop_harms_nobody(pipe: Pipe) -> None:
    pipe.works = False

    async def main() -> None:
        stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await until(lambda: pipe.reads == 1)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, main)
    os.write(pipe.writing, b"late")
    with trio.fail_after(TIMEOUT):
        await until(lambda: all(each.name != "mcp-actors stdio" for each in threading.enumerate()))
    assert is_open(pipe.reading)


async def test_a_cancelled_send_is_the_last_one(pipe: Pipe) -> None:
    stream = BlockingSendStream(pipe.writing, pipe.interrupt)
    pipe.works = False
    with trio.fail_after(TIMEOUT):
        await stream.send_all(b"whole")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"x" * 1_000_000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.BrokenResourceError, match="an earlier call did not end"):
            await stream.send_all(b"more")
        await stream.aclose()
        os.close(pipe.reading)  # the write of the thread fails, and it closes the descriptor
        await until(lambda: not is_open(pipe.writing))


async def test_a_reader_that_is_gone_breaks_sending(pipe: Pipe) -> None:
    os.close(pipe.reading)
    stream = BlockingSendStream(pipe.writing, pipe.interrupt)
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
            await stream.send_all(b"x")
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


async def test_a_descriptor_that_cannot_be_read_is_broken() -> None:
    stream = BlockingReceiveStream(os.open("/", os.O_RDONLY))
    with pytest.raises(trio.BrokenResourceError, match="Is a directory"):
        await stream.receive_some()
    stream.close()
    stream.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(stream.fileno())


@pytest.mark.parametrize("kind", [BlockingReceiveStream, BlockingSendStream])
async def test_a_system_without_threads_breaks_the_stream_which_is_closed_all_the_same(
    kind: type[BlockingReceiveStream] | type[BlockingSendStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    reading, writing = os.pipe()
    ours, theirs = (reading, writing) if kind is BlockingReceiveStream else (writing, reading)
    stream = kind(ours)
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)
    use = stream.receive_some if isinstance(stream, BlockingReceiveStream) else partial(stream.send_all, b"x")
    for _ in range(2):
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await use()
    stream.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
    os.close(theirs)
