"""A frame that is alone on its way is written by whoever has it; it is never torn and never overtakes another."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import LocalProtocolError
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[LineChannel, int]]:
    """A channel that writes into a small pipe, and where to read what it wrote."""
    unused, closed = os.pipe()
    os.close(closed)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    sender, receiver = DescriptorSendStream(writing), DescriptorReceiveStream(unused)
    yield LineChannel(receiver, sender), reading
    sender.close()
    receiver.close()
    os.close(reading)


async def test_one_frame_is_written_at_once(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    assert channel.write_now(Frame(b"1"))
    assert os.read(reading, 100) == b"1\n"


async def test_a_full_pipe_takes_nothing_rather_than_a_part(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    assert channel.write_now(Frame(b"a" * 4000))
    assert not channel.write_now(Frame(b"b" * 200))
    assert os.read(reading, 9999) == b"a" * 4000 + b"\n"
    assert channel.write_now(Frame(b"b" * 200))


async def test_what_a_pipe_may_tear_is_left_to_the_writer(pipe: tuple[LineChannel, int]) -> None:
    channel, _ = pipe
    assert not channel.write_now(Frame(b"a" * select.PIPE_BUF))


async def test_nothing_is_written_at_once_into_what_is_closed_or_broken(
    pipe: tuple[LineChannel, int],
) -> None:
    channel, reading = pipe
    with pytest.raises(LocalProtocolError):
        channel.write_now(Frame(b"two\nlines"))
    await channel.aclose()
    assert not channel.write_now(Frame(b"1"))
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""


async def test_nothing_overtakes_a_send_that_waits(pipe: tuple[LineChannel, int]) -> None:
    channel, reading = pipe
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, Frame(b"a" * 9000))
        await trio.testing.wait_all_tasks_blocked()
        os.read(reading, 9999)
        assert not channel.write_now(Frame(b"1"))
        os.set_blocking(reading, False)
        received = b""
        while not received.endswith(b"\n"):
            try:
                received += os.read(reading, 9999)
            except BlockingIOError:
                await trio.testing.wait_all_tasks_blocked()
    assert channel.write_now(Frame(b"1"))
    assert os.read(reading, 9999) == b"1\n"
