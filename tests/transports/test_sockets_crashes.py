"""A handler that crashes costs its own connection and no other; so does the loop that accepts."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from mcp_actors.abc import Frame
from mcp_transports._sockets import ListeningSocket
from mcp_transports.sockets import TcpTransport, UnixTransport

from .crashes import CRASHES, CrashingOnce, captured_logs
from .lines import PATIENCE, until


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_handler_that_crashes_costs_its_own_connection(
    kind: str, crash: Callable[[], Awaitable[None]], tmp_path: Path
) -> None:
    transport = TcpTransport("tcp://127.0.0.1:0") if kind == "tcp" else UnixTransport(f"unix://{tmp_path}/s")
    other = TcpTransport if kind == "tcp" else UnixTransport
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(crash))
            async with other(url).connect() as sibling, other(url).connect() as victim:
                await victim.send(Frame(b'"crash"'))
                with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                    await victim.receive()
                await sibling.send(Frame(b"{}"))
                assert (await sibling.receive()).data == b"{}"
            async with other(url).connect() as late:
                await late.send(Frame(b"1"))
                assert (await late.receive()).data == b"1"
            await until(lambda: transport.statistics().connections == 0)  # type: ignore[union-attr]
            service.cancel_scope.cancel()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["connection failed"]


async def test_a_loop_that_accepts_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = TcpTransport("tcp://127.0.0.1:0")
    accept_many, crashes = ListeningSocket.accept_many, [SystemExit(3), OSError(errno.EIO, "an odd system")]

    async def accept(self: ListeningSocket, connections: Callable[[], int]) -> object:
        found = await accept_many(self, connections)
        if crashes:
            for accepted, _ in found:
                accepted.close()
            raise crashes.pop()
        return found

    monkeypatch.setattr(ListeningSocket, "accept_many", accept)
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(CRASHES["an exception"]))
            for _ in range(2):
                async with TcpTransport(url).connect() as victim:
                    with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                        await victim.receive()
            async with TcpTransport(url).connect() as late:
                await late.send(Frame(b"1"))
                assert (await late.receive()).data == b"1"
            service.cancel_scope.cancel()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["accept failed"] * 2
