"""Where one can listen and connect, and what happens where nobody answers."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import structlog
import trio

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectFailed
from mcp_transports.sockets import TcpTransport, UnixTransport

from .lines import PATIENCE, LinePeer, Served

SUM = {"a": 1, "b": 2}


async def test_ipv6() -> None:
    async with Served().at(TcpTransport("tcp://[::1]:0")) as place:
        assert place.startswith("tcp://[::1]:")
        assert not place.endswith(":0")
        async with Client(place) as client:
            assert (await client.call_tool("add", SUM)).structured_content == 3
        with pytest.raises(ConnectFailed, match="refused"):
            async with Client(place.replace("[::1]", "127.0.0.1")):
                pass


@pytest.mark.parametrize(
    ("every", "ours", "others"), [("[::]", "[::1]", "127.0.0.1"), ("0.0.0.0", "127.0.0.1", "[::1]")]
)
async def test_every_interface_is_that_of_one_family(every: str, ours: str, others: str) -> None:
    async with Served().at(TcpTransport(f"tcp://{every}:0")) as place:
        async with Client(place.replace(every, ours)) as client:
            assert (await client.call_tool("add", SUM)).structured_content == 3
        with pytest.raises(ConnectFailed, match="refused"):
            async with Client(place.replace(every, others)):
                pass


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_loopback_is_both_families(host: str) -> None:
    async with Served().at(TcpTransport(f"tcp://{host}:0")) as place:
        assert place.startswith("tcp://localhost:")
        async with Client(place) as client:
            assert (await client.call_tool("add", SUM)).structured_content == 3
        for address in ("127.0.0.1", "[::1]"):
            peer = await LinePeer.to(place.replace("localhost", address))
            assert await peer.add(1, 2) == 3
            await peer.stream.aclose()


async def test_an_abstract_name() -> None:
    url = f"unix:@mcp-actors test {os.getpid()}".replace(" ", "%20")
    for _ in range(2):  # it is free again as soon as serving ends
        async with Served().at(UnixTransport(url)) as place:
            assert place == url
            async with Client(url) as client:
                assert (await client.call_tool("add", SUM)).structured_content == 3
            with pytest.raises(ConnectFailed, match=r"@mcp-actors test \d+: Address already in use"):
                await Server("second").serve(UnixTransport(url))
    with pytest.raises(ConnectFailed, match="refused"):
        async with Client(url):
            pass


async def test_a_relative_path_and_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with Served().at(UnixTransport("unix:a%20socket", mode=0o660)) as place:
        assert place == "unix:a%20socket"
        assert stat.S_IMODE((tmp_path / "a socket").stat().st_mode) == 0o660
        async with Client(place) as client:
            assert (await client.call_tool("add", SUM)).structured_content == 3
    assert not (tmp_path / "a socket").exists()


async def test_a_socket_of_somebody_else_is_left_when_serving_ends(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with Served().at(UnixTransport(f"unix://{path}")):
        path.unlink()
        path.write_text("other")
    assert path.read_text() == "other"


async def test_a_path_that_cannot_be_removed_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    path = tmp_path / "s"
    with structlog.testing.capture_logs() as logs:
        async with Served().at(UnixTransport(f"unix://{path}")):
            monkeypatch.setattr(os, "unlink", refuse)
    monkeypatch.undo()
    assert [each.get("reason") for each in logs] == ["Operation not permitted"]
    async with Served().at(UnixTransport(f"unix://{path}")) as place, Client(place) as client:
        assert (await client.call_tool("add", SUM)).structured_content == 3


@pytest.mark.parametrize(
    ("url", "reason"), [("tcp://127.0.0.1:{port}", "refused"), ("tcp://nobody.invalid:{port}", "")]
)
async def test_where_nobody_listens(url: str, reason: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        place = url.format(port=bound.getsockname()[1])
        with pytest.raises(ConnectFailed, match=rf"cannot connect to {place}: .*{reason}"):
            async with Client(place):
                pass


async def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectFailed, match="in use"):
            await Server("late").serve(place)


async def test_a_tcp_server_that_takes_nobody_is_given_up() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        place = deaf.getsockname()
        queued = [socket.socket() for _ in range(4)]
        for each in queued:  # more than the queue takes: the system lets the rest wait
            each.setblocking(False)
            each.connect_ex(place)
        with trio.fail_after(PATIENCE), pytest.raises(ConnectFailed, match=r"no answer within 0.1 s"):
            async with TcpTransport(f"tcp://127.0.0.1:{place[1]}", connect_timeout=0.1).connect():
                pass
        for each in queued:
            each.close()


async def test_a_unix_server_that_takes_nobody_is_given_up_and_a_busy_one_waited_for(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{tmp_path}/s")
        deaf.listen(0)
        async with UnixTransport(url, connect_timeout=0.1).connect():
            with trio.fail_after(PATIENCE), pytest.raises(ConnectFailed, match=r"no answer within 0.1 s"):
                async with UnixTransport(url, connect_timeout=0.1).connect():
                    pass
            connected = trio.Event()

            async def wait_for_it() -> None:
                async with UnixTransport(url).connect():
                    connected.set()

            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_for_it)
                    await trio.testing.wait_all_tasks_blocked()
                    assert not connected.is_set()
                    deaf.accept()[0].close()
                    await connected.wait()
