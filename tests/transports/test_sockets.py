"""Newline frames over TCP, TLS and Unix sockets: the kit, and what an address or a path can do wrong."""

from __future__ import annotations

import errno
import json
import select
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from mcp_actors import Client, ConnectFailed, ConnectionLost, Server
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision import descriptors
from mcp_actors.testing import check_transport
from mcp_transports._sockets import ListeningSocket, bind_tcp
from mcp_transports.sockets import SocketChannel, TcpTransport, UnixTransport, from_url

from .crashes import CRASHES, CrashingOnce, captured_logs
from .lines import PATIENCE, LinePeer, Served, call, reset, until

pytestmark = pytest.mark.slow
# Seconds that the kit gives a step and a check: a busy machine needs more than its defaults.
PATIENT: dict[str, Any] = {"patience": PATIENCE, "timeout": 4 * PATIENCE}


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


async def break_off(channel: Any) -> None:
    assert isinstance(channel, SocketChannel)
    reset(channel._plain.socket)


async def test_the_kit_over_tcp() -> None:
    report = await check_transport(tcp, half_close=send_eof, break_off=break_off, quiet=0.02, **PATIENT)
    assert "breakage_is_no_clean_end" in report.passed


async def test_the_kit_over_unix_sockets() -> None:
    report = await check_transport(unix, half_close=send_eof, quiet=0.02, **PATIENT)
    assert "a_half_closed_peer_still_reads" in report.passed


async def test_the_kit_over_tls() -> None:
    report = await check_transport(tls, break_off=break_off, quiet=0.02, **PATIENT)
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
            with trio.fail_after(PATIENCE):
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


# -- ``mcp-actors serve`` on sockets, as a person starts it: processes, their standard error, their deaths ---

SECONDS = 60
SERVER = """
from mcp_actors import Server
server = Server("small")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
DESCRIPTORS = 128


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SERVER)
    return path


def command(program: Path, url: str) -> list[str]:
    return [sys.executable, "-m", "mcp_actors", "serve", str(program), "--listen", url]


@contextmanager
def serving(words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the URL that it says it serves."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(2 * SECONDS, process.kill)  # whoever waits for a line waits no longer
        watchdog.start()
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("serving "), line
            yield process, line.split()[-1]
        finally:
            watchdog.cancel()
            process.kill()


def connected(place: str) -> socket.socket:
    if place.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(SECONDS)
        stream.connect(place.removeprefix("unix://"))
        return stream
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def everything_from(stream: socket.socket) -> bytes:
    data = b""
    while piece := stream.recv(65536):
        data += piece
    return data


def total(stream: socket.socket) -> int:
    """One call on a connection."""
    stream.sendall(call(1, "add", a=1, b=2))
    with stream.makefile("rb") as lines:
        answer = json.loads(lines.readline())
    found: int = answer["result"]["structuredContent"]
    return found


def answered_at_last(place: str) -> socket.socket:
    """A connection that was answered, after others were closed before that."""
    latest = time.monotonic() + SECONDS
    while time.monotonic() < latest:
        stream = connected(place)
        try:
            assert total(stream) == 3
        except (OSError, json.JSONDecodeError):
            stream.close()
        else:
            return stream
    raise AssertionError("every connection was closed")


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix://{folder}/s"])
def test_bytes_from_a_shell_get_their_answers(program: Path, tmp_path: Path, url: str) -> None:
    with serving(command(program, url.format(folder=tmp_path))) as (process, place):
        with closing(connected(place)) as stream:
            stream.sendall(call(1, "add", a=1, b=2) + call(2, "add", a=2, b=2).rstrip(b"\n"))
            stream.shutdown(socket.SHUT_WR)
            answers = [json.loads(line) for line in everything_from(stream).splitlines()]
        assert {each["id"]: each["result"]["structuredContent"] for each in answers} == {1: 3, 2: 4}
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert not (tmp_path / "s").exists()


def test_a_killed_server_leaves_a_socket_that_the_next_one_replaces(program: Path, tmp_path: Path) -> None:
    words = command(program, f"unix://{tmp_path}/s")
    with serving(words) as (process, _):
        process.kill()
        process.wait(SECONDS)
    assert (tmp_path / "s").is_socket()
    with serving(words) as (_, place), closing(connected(place)) as stream:
        assert total(stream) == 3


def test_a_second_server_is_refused_and_the_first_goes_on(program: Path, tmp_path: Path) -> None:
    unix = f"unix://{tmp_path}/s"
    with serving(command(program, unix)) as (_, place):
        second = subprocess.run(
            command(program, unix), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert second.returncode == 1
        assert f"cannot listen on {tmp_path}/s: a server is there already" in second.stderr
        assert "Traceback" not in second.stderr
        with closing(connected(place)) as stream:
            assert total(stream) == 3


@pytest.mark.parametrize(
    ("url", "complaint", "code"),
    [
        ("pigeon://loft", "no transport is installed for 'pigeon'", 2),
        ("tcp://127.0.0.1", "says no port", 2),
        ("unix://{folder}/small.py", "there is something that is no socket", 1),
        ("unix://{folder}/nowhere/s", "No such file or directory", 1),
        ("unix://{folder}/" + "x" * 108, "a Unix socket's path has 1 to 107 bytes", 2),
    ],
)
def test_what_cannot_be_served_is_told(
    program: Path, tmp_path: Path, url: str, complaint: str, code: int
) -> None:
    ran = subprocess.run(
        command(program, url.format(folder=tmp_path)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == code
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr
    assert program.read_text() == SERVER


def test_silent_connections_make_room_where_descriptors_are_few(program: Path, tmp_path: Path) -> None:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh"]
    with serving([*limited, *command(program, f"unix://{tmp_path}/s")]) as (process, place):
        first = connected(place)
        assert total(first) == 3
        many = [connected(place) for _ in range(2 * DESCRIPTORS)]
        # Those who came too late were closed, and once the others have been silent for a second they make room: who is
        # closed first depends on how long it takes to connect so many.
        closed = select.poll()
        for stream in many:
            closed.register(stream, select.POLLIN)
        assert closed.poll(SECONDS * 1000)
        late = answered_at_last(place)
        assert total(first) == 3
        for stream in (first, late, *many):
            stream.close()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in said


# -- A handler that crashes costs its own connection and no other; so does the loop that accepts ---------


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


async def test_connections_come_one_by_one_when_descriptors_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are cut to make room for them close only afterwards, and others need descriptors too."""
    [listener] = await bind_tcp("127.0.0.1", 0)
    callers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3)]
    monkeypatch.setattr(descriptors, "room_for_peers", lambda: 1)
    accepted = []
    for _ in range(2):
        with trio.fail_after(PATIENCE):
            found = await listener.accept_many()
        assert len(found) == 1
        accepted += [each for each, _ in found]
    monkeypatch.undo()
    with trio.fail_after(PATIENCE):
        accepted += [each for each, _ in await listener.accept_many()]
    assert {each.getpeername() for each in accepted} == {each.getsockname() for each in callers}
    for each in [*accepted, *callers, listener]:
        each.close()


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


# -- TLS handshakes that come to nothing: each ends by itself, in bounded time, and nobody else notices ---


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's who trust each other."""
    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    return ours, theirs


async def distrusts(place: str) -> None:
    stranger = TcpTransport(place, ssl_context=ssl.create_default_context())
    with pytest.raises(ConnectFailed, match=r"no TLS: .*certificate verify failed"):
        async with stranger.connect():
            pass


async def speaks_plainly(place: str) -> None:
    peer = await LinePeer.to(place)
    await peer.stream.send_all(call(1, "add", a=1, b=2))
    try:
        while await peer.stream.receive_some():
            pass  # an alert of TLS, perhaps
    except trio.BrokenResourceError:
        pass  # it did not read all that was sent
    await peer.stream.aclose()


async def leaves_at_once(place: str) -> None:
    await (await LinePeer.to(place)).stream.aclose()


async def stops_half_way(place: str) -> None:
    peer = await LinePeer.to(place)
    await peer.stream.send_all(b"\x16\x03\x01\x02\x00\x01")
    await peer.stream.send_eof()
    while await peer.stream.receive_some():
        pass
    await peer.stream.aclose()


@pytest.mark.parametrize("behave", [distrusts, speaks_plainly, leaves_at_once, stops_half_way])
async def test_a_handshake_that_fails_ends_that_connection_alone(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], behave: Callable[[str], Awaitable[None]]
) -> None:
    ours, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0", ssl_context=ours)
    async with Served().at(transport) as place, Client(TcpTransport(place, ssl_context=theirs)) as sibling:
        await behave(place)

        def counted() -> tuple[int, int, int]:
            state = transport.statistics()
            assert state is not None
            return state.connections, state.accepted, state.handshakes_failed

        await until(lambda: counted() == (1, 1, 1))
        assert (await sibling.call_tool("add", {"a": 1, "b": 2})).structured_content == 3


async def test_whoever_is_silent_in_the_handshake_is_cut_off(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], mock_clock: trio.testing.MockClock
) -> None:
    ours, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0", ssl_context=ours, connect_timeout=10)
    async with Served().at(transport) as place, Client(TcpTransport(place, ssl_context=theirs)) as sibling:
        silent = [await LinePeer.to(place) for _ in range(3)]
        await silent[1].stream.send_all(b"\x16\x03\x01")

        def failed() -> int:
            state = transport.statistics()
            assert state is not None
            assert state.connections + state.handshakes_failed <= 4
            return state.handshakes_failed

        await until(lambda: transport.statistics().connections == 4)  # type: ignore[union-attr]
        await trio.testing.wait_all_tasks_blocked()  # they are counted before their time begins
        mock_clock.jump(9.9)
        assert (await sibling.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        assert failed() == 0
        mock_clock.jump(0.2)
        await until(lambda: failed() == 3)
        for peer in silent:
            assert await peer.stream.receive_some() == b""
            await peer.stream.aclose()
        assert (await sibling.call_tool("add", {"a": 2, "b": 2})).structured_content == 4


async def test_a_second_close_does_not_wait_for_a_closing_alert_that_nobody_takes(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = contexts
    endings: list[BaseException] = []
    deaf = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def listen_no_more() -> None:
        stream = trio.SSLStream(await deaf[0].accept(), ours, server_side=True)
        try:
            await stream.do_handshake()
            await trio.sleep_forever()
        finally:
            await trio.aclose_forcefully(stream)

    async def send_much(channel: FrameChannel) -> None:
        try:
            await channel.send(Frame(b"x" * 15_000_000))
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            endings.append(error)

    async with deaf[0], trio.open_nursery() as nursery:
        nursery.start_soon(listen_no_more)
        place = f"tcp://127.0.0.1:{deaf[0].socket.getsockname()[1]}"
        with trio.fail_after(PATIENCE):
            async with TcpTransport(place, ssl_context=theirs).connect() as channel:
                async with trio.open_nursery() as users:
                    users.start_soon(send_much, channel)
                    await trio.testing.wait_all_tasks_blocked()
                    users.start_soon(channel.aclose)
                    await trio.testing.wait_all_tasks_blocked()
                    await channel.aclose()
                    assert isinstance(channel, SocketChannel)
                    assert channel._plain.socket.fileno() < 0
        assert len(endings) == 1
        nursery.cancel_scope.cancel()


async def test_a_client_with_tls_at_a_server_without_gives_up(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    _, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0")
    async with Served().at(transport) as place:
        with pytest.raises(ConnectFailed, match=r"no TLS|no answer within 0.3 s"):
            async with TcpTransport(place, ssl_context=theirs, connect_timeout=0.3).connect():
                pass
        await until(lambda: transport.statistics().connections == 0)  # type: ignore[union-attr]
        peer = await LinePeer.to(place)
        assert await peer.add(1, 2) == 3
        await peer.stream.aclose()


async def test_a_context_for_the_wrong_side_is_the_callers_mistake(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, _ = contexts
    async with Served().at(TcpTransport("tcp://127.0.0.1:0")) as place:
        with pytest.raises(LocalProtocolError, match="not for clients"), trio.fail_after(PATIENCE):
            async with TcpTransport(place, ssl_context=ours).connect():
                pass


# -- A listening socket that cannot be used any more ends its server, which could only pretend to serve ---

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
