"""How connections end: halves, over-long messages, peers that vanish, servers that stop. Nothing stays behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectFailed
from mcp_actors.supervision.principal import Principal
from mcp_transports.sockets import TcpTransport, UnixTransport

from .lines import PATIENCE, LinePeer, Served, call, open_descriptors, reset, until


@pytest.fixture(params=["tcp", "unix"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def transport_of(kind: str, tmp_path: Path, **options: Any) -> TcpTransport | UnixTransport:
    if kind == "tcp":
        return TcpTransport("tcp://127.0.0.1:0", **options)
    return UnixTransport(f"unix://{tmp_path}/s", **options)


@pytest.mark.parametrize("last_newline", [True, False])
async def test_a_peer_that_has_said_all_gets_all_answers(
    kind: str, tmp_path: Path, last_newline: bool
) -> None:
    served = Served()
    async with served.at(transport_of(kind, tmp_path)) as place:
        peer = await LinePeer.to(place)
        said = b"".join([call(0, "hold"), *[call(id, "add", a=id, b=1) for id in range(1, 20)]])
        await peer.stream.send_all(said if last_newline else said[:-1])
        await peer.stream.send_eof()
        await until(lambda: served.holding == 1)
        served.go.set()
        answers = await peer.answers()
        assert sorted(each["id"] for each in answers) == list(range(20))
        await peer.stream.aclose()


# Where a connection has a second to be heard out, time stands still: a busy machine may need more than that.


async def test_a_message_over_the_limit_ends_that_connection_with_an_error(
    kind: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    served = Served()
    async with (
        served.at(transport_of(kind, tmp_path, max_message_bytes=2000)) as place,
        Client(place) as sibling,
    ):
        peer = await LinePeer.to(place)
        async with trio.open_nursery() as nursery:

            async def send_too_much() -> None:
                await peer.stream.send_all(
                    call(1, "add", a=1, b=2) + b'{"jsonrpc":"' + b"x" * 300_000 + b'"}\n'
                )

            nursery.start_soon(send_too_much)
            # Its bytes were not all read, and still the last answer arrives.
            answers = await peer.answers()
        by_id = {each.get("id"): each for each in answers}
        assert by_id[1]["result"]["structuredContent"] == 3
        assert "longer than 2000 bytes" in by_id[None]["error"]["message"]
        await peer.stream.aclose()
        assert (await sibling.call_tool("add", {"a": 2, "b": 2})).structured_content == 4


async def test_who_goes_on_sending_too_much_is_heard_out(
    kind: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    transport = transport_of(kind, tmp_path, max_message_bytes=2000)
    async with Served().at(transport) as place:
        peer = await LinePeer.to(place)
        await peer.stream.send_all(b"x" * 3000)
        await trio.lowlevel.wait_readable(peer.stream.socket)  # type: ignore[attr-defined]
        # All of it was read, the error has arrived, and closing now would be the wrong time.
        for _ in range(20):
            await peer.stream.send_all(b"x" * 1000)
            await trio.testing.wait_all_tasks_blocked()
        assert [each["error"]["code"] for each in await peer.answers()] == [-32600]
        await peer.stream.aclose()


async def test_an_answer_over_the_limit_is_told_to_who_asked(kind: str, tmp_path: Path) -> None:
    async with Served().at(transport_of(kind, tmp_path, max_message_bytes=2000)) as place:
        peer = await LinePeer.to(place)
        await peer.stream.send_all(call(1, "repeat", text="x", times=3000))
        assert "error" in await peer.answer()
        assert await peer.add(1, 2) == 3
        await peer.stream.aclose()


async def test_what_was_sent_last_arrives_although_not_all_was_read(
    kind: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    transport = transport_of(kind, tmp_path)
    has_read, more_was_sent = trio.Event(), trio.Event()

    class Handler:
        """Answers the first thing it reads, and is gone."""

        stopping = trio.Event()

        async def __call__(self, channel: Any, principal: Principal | None = None) -> None:
            first = await channel.receive()
            has_read.set()
            await more_was_sent.wait()
            await channel.send(first)
            await channel.aclose()

    async with trio.open_nursery() as service:
        where = await service.start(transport.serve, Handler())
        peer = await LinePeer.to(where)
        await peer.stream.send_all(b'{"first":1}\n')
        await has_read.wait()
        await peer.stream.send_all(b'{"never":"read"}\n' * 1000)
        more_was_sent.set()
        assert await peer.answers() == [{"first": 1}]
        await peer.stream.aclose()
        service.cancel_scope.cancel()


async def test_stopping_lets_calls_in_flight_end_and_takes_nobody_new(kind: str, tmp_path: Path) -> None:
    served = Served(drain_grace=PATIENCE)
    async with served.at(transport_of(kind, tmp_path)) as place:
        busy, idle = await LinePeer.to(place), await LinePeer.to(place)
        assert await idle.add(1, 1) == 2
        await busy.stream.send_all(call(7, "hold"))
        await until(lambda: served.holding == 1)
        served.server.stop()
        assert await idle.answers() == []
        with pytest.raises(ConnectFailed):
            async with Client(place):
                pass
        served.go.set()
        assert [each["id"] for each in await busy.answers()] == [7]
        for peer in (busy, idle):
            await peer.stream.aclose()
    assert served.cancelled == 0


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_peer_that_vanishes_takes_its_calls_with_it(kind: str, tmp_path: Path, how: str) -> None:
    served = Served(drain_grace=600)
    async with served.at(transport_of(kind, tmp_path)) as place:
        peer = await LinePeer.to(place)
        # More than it will ever read: a peer that only has said all would still be owed the answers.
        await peer.stream.send_all(call(1, "hold") + call(2, "repeat", text="x" * 1000, times=5000))
        await until(lambda: served.holding == 1)
        if how == "reset":
            reset(peer.stream.socket)  # type: ignore[attr-defined]
        else:
            await peer.stream.aclose()
        await until(lambda: served.cancelled == 1)


@pytest.mark.slow
async def test_five_hundred_connections_leave_nothing_behind(
    kind: str, tmp_path: Path, collector_rests: None
) -> None:
    # Who closes with a call in flight may only have said all: its call goes on for the length of the grace.
    served = Served(drain_grace=0.1)
    transport = transport_of(kind, tmp_path, max_message_bytes=5000)

    async def good(place: str) -> None:
        async with Client(place) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3

    async def bad(place: str) -> None:
        peer = await LinePeer.to(place)
        await peer.stream.send_all(b"no JSON\n" + b"\xff\xfe\n" + b"[" * 6000)
        assert [each["error"]["code"] for each in await peer.answers()][:2] == [-32700, -32700]
        await peer.stream.aclose()

    async def half_a_frame(place: str) -> None:
        peer = await LinePeer.to(place)
        await peer.stream.send_all(call(1, "hold") + b'{"jsonrpc":')
        await peer.stream.aclose()

    async def aborted(place: str) -> None:
        peer = await LinePeer.to(place)
        await peer.stream.send_all(call(1, "hold"))
        reset(peer.stream.socket)  # type: ignore[attr-defined]

    async def cancelled(place: str) -> None:
        with trio.CancelScope() as scope:
            async with Client(place) as client, trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "hold", {})
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()

    async with served.at(transport) as place:
        await good(place)
        gc.collect()
        descriptors, tasks = open_descriptors(), trio.lowlevel.current_statistics().tasks_living
        kinds = (good, bad, half_a_frame, aborted, cancelled)
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for number in range(25):
                    nursery.start_soon(kinds[number % len(kinds)], place)
        await until(lambda: transport.statistics().connections == 0)  # type: ignore[union-attr]
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        assert open_descriptors() == descriptors
        state = transport.statistics()
        assert state is not None
        assert state.accepted >= 500
        assert served.holding == served.cancelled > 0


# -- Where one can listen and connect, and what happens where nobody answers -----------------------------

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
        async with UnixTransport(url).connect():
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


# -- A run does not depend on what it inherits from the shell that starts it -----------------------------

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def test_no_signal_is_ignored_and_no_proxy_is_asked() -> None:
    assert [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN] == []
    assert [name for name in PROXIES if name in os.environ] == []


@pytest.mark.slow
def test_a_run_in_bad_surroundings_is_like_any_other() -> None:
    """The test above, in the background of a shell with no input, no terminal and no home, behind a proxy."""
    inner = f"{__file__}::{test_no_signal_is_ignored_and_no_proxy_is_asked.__name__}"
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", inner]
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP INT TERM CHLD; exec \"$@\" <&-", "sh", *command],
        env={
            "PATH": os.environ["PATH"],
            "LC_ALL": "POSIX",
            "TZ": "Asia/Kathmandu",
            **dict.fromkeys(PROXIES, "socks5://127.0.0.1:9"),
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
