"""A listening socket that cannot be used any more ends its server, which could only pretend to serve."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectFailed, ConnectionLost
from mcp_transports._sockets import ListeningSocket

from .lines import PATIENCE, Served

URLS = ["tcp://127.0.0.1:0", "unix:{folder}/s", "http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The listening sockets of the test, as they are opened."""
    found: list[socket.socket] = []
    make = ListeningSocket.__init__

    def remember(self: ListeningSocket, listening: socket.socket, **options: Any) -> None:
        make(self, listening, **options)
        if listening not in found:
            found.append(listening)

    monkeypatch.setattr(ListeningSocket, "__init__", remember)
    return found


class ServedUntilBroken(Served):
    """A server, and what its ``serve`` raised."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = trio.Event()
        self.error: BaseException | None = None

    async def serve(self, *urls: str, task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
        try:
            await self.server.serve(*urls, task_status=task_status)
        except BaseException as error:
            self.error = error
        self.ended.set()


async def hold(client: Client) -> None:
    with pytest.raises(ConnectionLost):
        await client.call_tool("hold")


@pytest.mark.parametrize("url", [URLS[0], *URLS[2:]], ids=lambda url: url.partition(":")[0])
async def test_a_listening_socket_that_was_shut_down_ends_the_server(
    url: str, tmp_path: Path, opened: list[socket.socket]
) -> None:
    """From then on the kernel answers ``accept`` with EINVAL; with a Unix socket not every kernel wakes who waits."""
    served = ServedUntilBroken()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            at, _ = await nursery.start(served.serve, url.format(folder=tmp_path), "memory:broken")
            async with Client(at) as client, Client("memory:broken") as other:
                nursery.start_soon(hold, client)
                nursery.start_soon(hold, other)
                while served.holding < 2:
                    await trio.testing.wait_all_tasks_blocked()
                opened[0].shutdown(socket.SHUT_RDWR)
                await served.ended.wait()
    assert isinstance(served.error, ConnectFailed)
    assert "any more: Invalid argument" in str(served.error)
    assert all(each.fileno() == -1 for each in opened)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOTSOCK])
@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition(":")[0])
async def test_a_listening_socket_that_is_none_ends_the_server(
    url: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[socket.socket]
) -> None:
    def accept(self: ListeningSocket) -> None:
        raise OSError(number, "no such thing")

    served = ServedUntilBroken()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(served.serve, url.format(folder=tmp_path))
            monkeypatch.setattr(ListeningSocket, "accept", accept)
            with socket.socket(opened[0].family) as knocking:
                knocking.connect(opened[0].getsockname())
                await served.ended.wait()
    assert isinstance(served.error, ConnectFailed)
    assert "any more: no such thing" in str(served.error)


async def test_a_shared_port_that_is_broken_ends_all_servers_behind_it(opened: list[socket.socket]) -> None:
    first, second = ServedUntilBroken(), ServedUntilBroken()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [at] = await nursery.start(first.serve, "http://127.0.0.1:0/mcp")
            await nursery.start(second.serve, f"ws{at.removeprefix('http')}")
            assert len(opened) == 1
            opened[0].shutdown(socket.SHUT_RDWR)
            await first.ended.wait()
            await second.ended.wait()
    assert isinstance(first.error, ConnectFailed)
    assert isinstance(second.error, ConnectFailed)
