"""Single answers of macOS that Linux never gives, one at a time."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectFailed, LocalProtocolError, Server
from mcp_actors.cli.workers import serving
from mcp_actors.shared import sqlite
from mcp_actors.supervision.platform import wait_for_input
from mcp_transports import _sockets
from mcp_transports._sockets import ListenError, ListeningSocket, bind_tcp, bind_unix
from mcp_transports.sockets import UnixTransport
from mcp_transports.stdio import streams


@pytest.fixture
def on_macos(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has modules take this system for macOS."""

    def pretend(*modules: ModuleType) -> None:
        for each in modules:
            monkeypatch.setattr(each, "sys", SimpleNamespace(platform="darwin"))

    return pretend


class Accepts:
    """A listening socket whose ``accept`` first raises or returns what it is told."""

    def __init__(self, listening: socket.socket, *answers: OSError | None) -> None:
        self.listening = listening
        self.answers = list(answers)
        self.given: list[socket.socket] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listening, name)

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.answers:
            return self.listening.accept()
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        accepted, _ = self.listening.accept()
        self.given.append(accepted)
        return accepted, None


@pytest.fixture
async def listener() -> ListeningSocket:
    [opened] = await bind_tcp("127.0.0.1", 0)
    return opened


@pytest.fixture
def callers(listener: ListeningSocket) -> Iterator[list[socket.socket]]:
    made = [socket.create_connection((listener.host, listener.port)) for _ in range(2)]  # type: ignore[arg-type]
    yield made
    for each in made:
        each.close()
    listener.close()


async def test_a_connection_without_an_address_is_closed_and_the_next_one_served(
    listener: ListeningSocket, callers: list[socket.socket]
) -> None:
    accepts = Accepts(listener.socket, None)
    listener.socket = accepts  # type: ignore[assignment]
    with trio.fail_after(60):
        [(accepted, address)] = await listener.accept_many()
    assert address == callers[1].getsockname()
    accepted.close()
    assert [each.fileno() for each in accepts.given] == [-1]
    assert callers[0].recv(1) == b""


async def test_an_error_about_one_connection_is_none_of_the_listener(
    listener: ListeningSocket, callers: list[socket.socket], on_macos: Callable[..., None]
) -> None:
    """EINVAL of ``accept`` means both there: the socket itself says whether it listens."""
    on_macos(_sockets)
    wrong = OSError(errno.EINVAL, "Invalid argument")
    accepts = Accepts(listener.socket, wrong, OSError(errno.ECONNABORTED, "Software caused connection abort"))
    listener.socket = accepts  # type: ignore[assignment]
    with trio.fail_after(60):
        found = await listener.accept_many()
    assert len(found) == 2
    for accepted, _ in found:
        accepted.close()
    accepts.answers = [wrong]
    accepts.listening.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ListenError, match="any more: Invalid argument"):
        await listener.accept_many()


async def test_errors_without_end_let_other_tasks_run(
    listener: ListeningSocket, callers: list[socket.socket], nursery: trio.Nursery
) -> None:
    class Broken(Accepts):
        def accept(self) -> tuple[socket.socket, Any]:
            raise OSError(errno.ECONNABORTED, "Software caused connection abort")

    listener.socket = Broken(listener.socket)  # type: ignore[assignment]
    with trio.move_on_after(0.05) as scope:
        await listener.accept_many()
    assert scope.cancelled_caught


class Full(socket.socket):
    """A Unix socket whose server is too busy to accept: its connections are refused a few times."""

    times = 3

    def connect(self, address: Any) -> None:
        if Full.times:
            Full.times -= 1
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        super().connect(address)

    def connect_ex(self, address: Any) -> int:
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or 0
        return 0


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, on_macos: Callable[..., None]) -> type[Full]:
    def new() -> socket.socket:
        made = Full(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    on_macos(_sockets)
    monkeypatch.setattr(Full, "times", 3)
    monkeypatch.setattr(_sockets, "new_unix_socket", new)
    monkeypatch.setattr("mcp_transports.sockets.transport.new_unix_socket", new)
    return Full


async def test_the_path_of_a_busy_server_is_not_taken_for_a_dead_one(
    full: type[Full], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen()
        with pytest.raises(ListenError, match="a server is there already"):
            await bind_unix(path)
    assert os.listdir(tmp_path) == ["s"]
    assert full.times == 0


async def test_the_path_of_a_dead_server_is_taken_over_after_a_moment(
    full: type[Full], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    began = trio.current_time()
    opened = await bind_unix(path)
    assert trio.current_time() - began == pytest.approx(_sockets.REFUSED_TIME)
    opened.close()


async def test_a_client_asks_a_busy_server_again_and_a_dead_one_for_a_moment(
    full: type[Full], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server, path = Server("s"), tmp_path / "s"
    server.tool(name="t")(lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, UnixTransport(f"unix:{path}"))
        full.times = 5
        async with Client(UnixTransport(f"unix:{path}")) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["t"]
        assert full.times == 0
        nursery.cancel_scope.cancel()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    began = trio.current_time()
    with pytest.raises(ConnectFailed, match="nobody listens there any more"):
        await Client(UnixTransport(f"unix:{path}"), timeout=5).__aenter__()
    assert trio.current_time() - began >= _sockets.REFUSED_TIME


def test_there_are_no_abstract_names(on_macos: Callable[..., None]) -> None:
    on_macos(_sockets)
    with pytest.raises(LocalProtocolError, match="only Linux has abstract names of Unix sockets"):
        UnixTransport("unix:@name")


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as serving:
        one = socket.create_connection(serving.getsockname())
        other, _ = serving.accept()
    with one, other:
        yield one, other


def test_probes_of_a_silent_peer_have_another_name(
    connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", socket.TCP_KEEPIDLE, raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    _sockets.enable_keepalive(connected[0], idle=77, interval=7, probes=3)
    options = (socket.TCP_KEEPALIVE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)  # type: ignore[attr-defined]
    assert [connected[0].getsockopt(socket.IPPROTO_TCP, each) for each in options] == [77, 7, 3]


def test_options_of_a_connection_whose_peer_is_gone_are_refused_without_harm() -> None:
    class Gone:
        refused = 0

        def setsockopt(self, *args: object) -> None:
            Gone.refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")

    gone: Any = Gone()
    _sockets.send_without_delay(gone)
    _sockets.enable_keepalive(gone, idle=1, interval=1, probes=1)
    assert Gone.refused == 2


def test_what_is_under_way_is_asked_as_macos_wants_it(
    connected: tuple[socket.socket, socket.socket], on_macos: Callable[..., None]
) -> None:
    class Asked(socket.socket):
        unsent = 0

        def getsockopt(self, level: int, option: int, *length: int) -> Any:
            return Asked.unsent if (level, option) == (socket.SOL_SOCKET, 0x1024) else None

    on_macos(_sockets)
    with Asked(fileno=os.dup(connected[0].fileno())) as asked:
        assert _sockets.nothing_is_under_way(asked)
        Asked.unsent = 1
        assert not _sockets.nothing_is_under_way(asked)
    Asked.unsent = 0
    with Asked(socket.AF_UNIX) as unix:
        assert not _sockets.nothing_is_under_way(unix)


def test_a_system_that_says_nothing_is_not_believed(
    connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _sockets.nothing_is_under_way(connected[0])
    monkeypatch.setattr(_sockets, "sys", SimpleNamespace(platform="freebsd14"))
    assert not _sockets.nothing_is_under_way(connected[0])


async def test_a_pipe_does_not_say_what_its_reader_has_read(on_macos: Callable[..., None]) -> None:
    reading, writing = os.pipe()
    on_macos(streams)
    stream = streams.DescriptorSendStream(writing)
    await stream.send_all(b"x")
    assert stream.unread() is None
    stream.close()
    os.close(reading)


async def test_a_terminal_that_kqueue_refuses_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    async def refused(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(trio.lowlevel, "wait_readable", refused)
    reading, writing = os.pipe()

    async def type_something() -> None:
        await trio.sleep(2)
        os.write(writing, b"yes\n")

    nursery.start_soon(type_something)
    began = trio.current_time()
    await wait_for_input(reading)
    assert 2 <= trio.current_time() - began < 2.2
    for each in (reading, writing):
        os.close(each)


async def test_another_error_of_a_terminal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed(descriptor: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(trio.lowlevel, "wait_readable", closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await wait_for_input(0)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (subprocess.CompletedProcess([], 0, stdout="8F2C\n"), "8F2C"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), ""),
        (subprocess.CalledProcessError(1, "sysctl"), ""),
        (subprocess.TimeoutExpired("sysctl", 2), ""),
    ],
)
def test_the_start_of_the_machine_is_named_by_sysctl(
    answer: Any, name: str, on_macos: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    on_macos(sqlite)
    monkeypatch.setattr(subprocess, "run", run)
    assert sqlite._boot_id() == name
    assert asked == [["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]]


def test_workers_share_a_file_where_there_is_no_memory_with_a_descriptor(
    on_macos: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_macos(serving)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptor = serving._shared_memory(16)
    assert os.fstat(descriptor).st_size == 16
    assert os.listdir(tmp_path) == []
    os.close(descriptor)
