"""Newline frames over TCP, TLS and Unix sockets: the kit, and what an address or a path can do wrong."""

from __future__ import annotations

import socket
import ssl
import stat
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.testing import check_transport
from mcp_transports.sockets import SocketChannel, TcpTransport, UnixTransport, from_url


@asynccontextmanager
async def tcp() -> AsyncIterator[tuple[Any, Any]]:
    yield TcpTransport("tcp://127.0.0.1:0"), TcpTransport


@asynccontextmanager
async def unix() -> AsyncIterator[tuple[Any, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield UnixTransport(f"unix://{folder}/s"), UnixTransport


@asynccontextmanager
async def tls() -> AsyncIterator[tuple[Any, Any]]:
    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    server = TcpTransport("tcp://127.0.0.1:0", ssl_context=ours)
    yield server, lambda where: TcpTransport(where, ssl_context=theirs)


async def send_eof(channel: Any) -> None:
    assert isinstance(channel, SocketChannel)
    await channel.send_eof()


async def reset(channel: Any) -> None:
    assert isinstance(channel, SocketChannel)
    connected = channel._plain.socket
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    trio.lowlevel.notify_closing(connected)
    connected.close()


async def test_the_kit_over_tcp() -> None:
    report = await check_transport(tcp, half_close=send_eof, break_off=reset, quiet=0.02)
    assert "breakage_is_no_clean_end" in report.passed


async def test_the_kit_over_unix_sockets() -> None:
    report = await check_transport(unix, half_close=send_eof, quiet=0.02)
    assert "a_half_closed_peer_still_reads" in report.passed


async def test_the_kit_over_tls() -> None:
    report = await check_transport(tls, break_off=reset, quiet=0.02)
    assert "closing_wakes_who_waits" in report.passed


@pytest.mark.parametrize(
    "url",
    [
        "tcp://127.0.0.1",
        "tcp://h:1/path",
        "tcp://me@h:1",
        "tcp://h:x",
        "unix:",
        "unix://x.sock",
        "unix:a%00b",
        "unix:///" + "x" * 108,
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(LocalProtocolError):
        from_url(url)


async def test_a_path_that_cannot_be_served_or_connected_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("dear")
    for path in (file, tmp_path / "nowhere" / "s"):
        transport = UnixTransport(f"unix://{path}")
        with pytest.raises(ConnectFailed, match=r"no socket|No such file"):
            await Server("s").serve(transport)
        with pytest.raises(ConnectFailed, match=r"no socket|No such file"):
            async with transport.connect():
                pass
    assert file.read_text() == "dear"


async def test_a_stale_socket_is_replaced_a_live_one_is_not_and_ours_is_removed(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
        crashed.listen()
    url = f"unix://{path}"
    with pytest.raises(ConnectFailed, match="nobody listens there any more"):
        async with UnixTransport(url).connect():
            pass
    async with trio.open_nursery() as service:
        await service.start(Server("one").serve, url)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(ConnectFailed, match="a server is there already"):
            await Server("two").serve(url)
        async with Client(url) as client:
            assert client.server_info.name == "one"
        service.cancel_scope.cancel()
    assert not path.exists()


async def test_more_connections_than_allowed_are_closed_and_the_others_go_on() -> None:
    transport = TcpTransport("tcp://127.0.0.1:0", max_connections=100, max_connections_per_peer=100)
    server = Server("s")
    async with trio.open_nursery() as service:
        [url] = await service.start(server.serve, transport)
        async with trio.open_nursery() as clients:
            opened: list[Client] = []
            all_open, enough = trio.Event(), trio.Event()

            async def connect() -> None:
                async with Client(url, era="legacy") as client:
                    opened.append(client)
                    if len(opened) == 100:
                        all_open.set()
                    await enough.wait()

            for _ in range(100):
                clients.start_soon(connect)
            with trio.fail_after(20):
                await all_open.wait()
                late = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
                assert await late.receive_some() == b""
                await late.aclose()
                for client in opened:
                    await client.ping()
            state = transport.statistics()
            assert state is not None
            assert (state.connections, state.turned_away) == (100, 1)
            enough.set()
        service.cancel_scope.cancel()
    assert transport.statistics() is None
