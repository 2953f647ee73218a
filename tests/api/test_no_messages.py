"""A server that sends something else than messages: what came is said at once, and by the error that follows."""

from __future__ import annotations

import sys

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors.abc import Frame
from mcp_actors.errors import CallTimeout, ConnectionLost
from mcp_actors.testing import raw_server

from .peers import play_initialize

EVENT = "the server sent text that is not a message"
CAME = (
    "\nwhat came was no JSON-RPC message (a program on stdio prints to stderr, never to stdout):\n"
    "  Welcome!\n  Listening on port 9000"
)


@pytest.mark.parametrize("lines", [[b"Welcome!", b"Listening on port 9000"], []])
async def test_the_timeout_of_the_handshake_names_it(lines: list[bytes], autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def print_lines() -> None:
            peer = await server.accept()
            for line in lines:
                await peer.channel.send(Frame(line))

        nursery.start_soon(print_lines)
        with capture_logs() as logs, pytest.raises(CallTimeout) as caught:
            async with Client(server.transport):
                pass
    assert caught.value.received == tuple(line.decode() for line in lines)
    assert str(caught.value).endswith(CAME if lines else "(the idle clock)")
    assert [each["text"] for each in logs if each["event"] == EVENT] == list(caught.value.received)


@pytest.mark.parametrize("count", [10, 1000])
async def test_it_is_bounded_and_a_later_call_names_it_too(count: int, autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def babble() -> None:
            peer = await server.accept()
            await play_initialize(peer)
            for number in range(count):
                await peer.channel.send(Frame(b"%d " % number + b"\xff" * 100_000))

        nursery.start_soon(babble)
        with capture_logs() as logs:
            async with Client(server.transport, era="legacy", timeout=3) as client:
                with pytest.raises(CallTimeout) as caught:
                    await client.request("any/thing")
    assert [text[:2] for text in caught.value.received] == ["0 ", "1 ", "2 "]
    assert all(len(text) == 202 for text in caught.value.received)
    assert len([each for each in logs if each["event"] == EVENT]) == 3


async def test_a_program_that_serves_nothing_is_told_apart() -> None:
    with trio.fail_after(30), pytest.raises(ConnectionLost) as caught:
        async with Client([sys.executable, "-c", "print('hello')"]):
            pass
    assert (
        "it exited with code 0 before it sent a message: a program that serves has to call server.run()"
        in str(caught.value)
    )
    assert caught.value.received == ("hello",)
    assert str(caught.value).endswith("\n  hello")
