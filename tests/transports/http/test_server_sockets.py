"""Listening: addresses, Unix sockets, TLS, and more connections than allowed."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import structlog
import trio
import trustme

from mcp_actors import Client
from mcp_actors.supervision import descriptors
from mcp_actors.types import ElicitFormParams, ElicitResult
from mcp_transports._sockets import InvalidSocketPath, ListenError
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.h1 import connection, http_server
from mcp_transports.http.h1.http_server import HttpListener, open_tcp, open_unix
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import HEADERS_OF_EVERY_RESPONSE, Response
from tests.cli.conftest import announced

from .asgi.test_requests import INITIALIZE, Site, ask
from .raw import GET, RawPeer, Slow, echo, eventually, post, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("host", [None, "localhost"])
async def test_loopback_means_both_families_on_one_port(host: str | None) -> None:
    listeners = await open_tcp(host, 0)
    assert listeners[0].host == "127.0.0.1"
    assert len({each.port for each in listeners}) == 1
    async with serving(echo, listeners=listeners) as served:
        for listener in listeners:
            assert listener.host is not None
            peer = served.add(await trio.open_tcp_stream(listener.host, served.port))
            await peer.send(GET)
            assert (await peer.answer()).status == 200


async def test_ipv6_by_name() -> None:
    def app(request: Request, response: Response) -> None:
        response.answer(200, request.peer.encode())

    [listener] = await open_tcp("::1", 0)
    assert listener.url == f"http://[::1]:{listener.port}"
    async with serving(app, listeners=[listener]) as served:
        peer = served.add(await trio.open_tcp_stream("::1", served.port))
        await peer.send(GET)
        assert (await peer.answer()).body.startswith(b"[::1]:")


async def test_an_address_that_cannot_be_had() -> None:
    [listener] = await open_tcp("127.0.0.1", 0)
    assert listener.port is not None
    with pytest.raises(ListenError, match="in use; end what listens there, or take another port"):
        await open_tcp("127.0.0.1", listener.port)
    with pytest.raises(ListenError, match=r"nobody\.invalid"):
        await open_tcp("nobody.invalid", 0)
    listener.close()
    listener.close()
    assert repr(listener).endswith("closed>")


async def over(path: Path | str) -> RawPeer:
    return RawPeer(await trio.open_unix_socket(str(path)))


async def test_a_unix_socket(tmp_path: Path) -> None:
    def app(request: Request, response: Response) -> None:
        response.answer(200, request.peer.encode())

    path = tmp_path / "s"
    listener = await open_unix(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listener.url == f"unix:{path}"
    async with serving(app, listeners=[listener]) as served:
        peer = served.add((await over(path)).stream)
        await peer.send(GET)
        assert (await peer.answer()).body == b"unix"
    assert not path.exists()


async def test_the_mode_of_a_unix_socket(tmp_path: Path) -> None:
    listener = await open_unix(str(tmp_path / "s"), mode=0o660)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
    listener.close()


async def test_a_stale_unix_socket_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
        crashed.listen()
    listener = await open_unix(str(path))
    with pytest.raises(ListenError, match="a server is there already"):
        await open_unix(str(path))
    file = tmp_path / "file"
    file.write_text("dear")
    with pytest.raises(ListenError, match="no socket"):
        await open_unix(str(file))
    assert file.read_text() == "dear"
    with pytest.raises(ListenError, match="No such file"):
        await open_unix(str(tmp_path / "nowhere" / "s"))
    for wrong in ("x" * 108, "", "a\0b"):
        with pytest.raises(InvalidSocketPath, match="path"):
            await open_unix(wrong)
    # Somebody else's by now: not ours to remove.
    path.unlink()
    path.write_text("other")
    listener.close()
    assert path.read_text() == "other"


async def test_many_servers_for_one_stale_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
        crashed.listen()
    opened: list[HttpListener] = []
    refused: list[ListenError] = []

    async def attempt() -> None:
        try:
            opened.append(await open_unix(str(path)))
        except ListenError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(attempt)
    assert (len(opened), len(refused)) == (1, 4)
    opened[0].close()


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def test_tls() -> None:
    seen: list[bool] = []
    slow = Slow()

    def app(request: Request, response: Response) -> None:
        seen.append(request.secure)
        if request.path == "/slow":
            slow(request, response)
        else:
            echo(request, response)

    server, client = contexts()
    listeners = await open_tcp("127.0.0.1", 0, ssl_context=server)
    assert listeners[0].url.startswith("https://")
    async with serving(app, listeners=listeners) as served:

        async def connect() -> RawPeer:
            stream = await trio.open_ssl_over_tcp_stream(
                "127.0.0.1", served.port, ssl_context=client, https_compatible=True
            )
            return served.add(stream)

        peer = await connect()
        await peer.send(post(b"x" * 1_000_000) + GET)
        assert len((await peer.answer()).body) == 1_000_007
        assert (await peer.answer()).body == b"GET / "
        await peer.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert (await peer.answer()).status == 200
        assert await peer.ended()
        peer = await connect()
        await peer.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow.until_begun()
        await peer.aclose()
        await slow.until_cancelled()
        plain = await served.connect()
        await plain.send(GET)
        await plain.rest()
        await served.settled()
    assert all(seen)


@pytest.fixture
def none_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection makes room by its silence, however long a busy machine needs for the others."""
    monkeypatch.setattr(http_server, "_SILENT_TIME", math.inf)


async def test_more_connections_than_allowed(none_is_silent: None) -> None:
    async with serving(echo, connections=3, connections_per_address=4) as served:
        peers = [await served.connect() for _ in range(3)]
        for peer in peers:
            await peer.send(GET)
            assert (await peer.answer()).status == 200
        late = await served.connect()
        answer = await late.answer()
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert json.loads(answer.body)["error"]["message"] == "too many connections are open"
        assert await late.ended()
        assert served.server.statistics().rejected == 1
        await peers[0].aclose()
        await eventually(lambda: served.server.statistics().connections < 3)
        again = await served.connect()
        await again.send(GET)
        assert (await again.answer()).status == 200


@pytest.mark.parametrize(("connections", "of_one"), [(3, 4), (4, 3)])
async def test_how_a_full_server_is_can_be_asked(
    connections: int, of_one: int, none_is_silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_TIME_OVER_LIMIT", 60)
    async with serving(echo, connections=connections, connections_per_address=of_one) as served:
        served.server.answered_when_full = {"/health"}
        for peer in [await served.connect() for _ in range(3)]:
            await peer.send(GET)
            assert (await peer.answer()).status == 200
        for _ in range(20):
            asking = await served.connect()
            await asking.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
            answer = await asking.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await asking.ended()
        other = await served.connect()
        await other.send(GET)
        answer = await other.answer()
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "too many connections" in json.loads(answer.body)["error"]["message"]
        assert await other.ended()
        assert served.server.statistics().rejected == 1


async def test_connections_over_the_limits_are_few_and_give_way_to_younger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Slow()
    async with serving(app, connections=1, connections_per_address=1) as served:
        served.server.answered_when_full = {"/", "/health"}
        held = await served.connect()
        await held.send(GET)
        await app.until_begun()
        # What is being answered is not given up.
        with monkeypatch.context() as patient:
            patient.setattr(connection, "_TIME_OVER_LIMIT", 60)
            asked = await served.connect()
            await asked.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await app.until_begun(2)
        silent = [await served.connect() for _ in range(30)]
        await eventually(lambda: served.server.statistics().rejected >= 23)
        await eventually(lambda: served.server.statistics().connections <= 9)
        # Those that gave way, and those that bring no request in their second.
        for peer in silent:
            assert (await peer.answer()).status == 503
            assert await peer.ended()
        app.go.set()
        assert (await asked.answer()).status == 200
        assert served.server.statistics().rejected == 30


@pytest.fixture
def common_header() -> Iterator[tuple[str, str]]:
    HEADERS_OF_EVERY_RESPONSE.append((b"x-common", b"yes"))
    yield "x-common", "yes"
    HEADERS_OF_EVERY_RESPONSE.pop()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot hold back new connections")
async def test_a_port_that_is_about_to_close_makes_no_connection_that_it_would_reset() -> None:
    [listener] = await open_tcp("127.0.0.1", 0)
    assert listener.port is not None
    before = [await trio.open_tcp_stream("127.0.0.1", listener.port) for _ in range(3)]
    waiting = listener.accept_last()
    assert len(waiting) == 3
    with socket.socket() as late:
        late.setblocking(False)
        assert late.connect_ex(("127.0.0.1", listener.port)) == errno.EINPROGRESS
        listener.close()
        await trio.lowlevel.wait_writable(late)
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    for (accepted, _), stream in zip(waiting, before, strict=True):
        accepted.close()
        await stream.aclose()


async def test_a_header_of_every_response_is_sent_by_the_listener_full_or_not(
    common_header: tuple[str, str], none_is_silent: None
) -> None:
    async with serving(echo, connections=1, connections_per_address=1) as served:
        peer = await served.connect()
        for request, status in ((GET, 200), (b"rubbish\r\n", 400)):
            await peer.send(request)
            answer = await peer.answer()
            assert answer.status == status
            assert common_header in answer.headers.items()
            if status == 200:
                turned_away = await (await served.connect()).answer()
                assert turned_away.status == 503
                assert common_header in turned_away.headers.items()


@pytest.mark.parametrize(("path", "status"), [("/mcp", 200), ("/elsewhere", 404), ("/" + "x" * 9000, 414)])
def test_a_header_of_every_response_is_sent_by_an_asgi_application(
    path: str, status: int, common_header: tuple[str, str]
) -> None:
    async def run() -> None:
        answer = await ask(Site().app, INITIALIZE, path=path)
        assert answer.status == status
        assert answer.headers[b"x-common"] == b"yes"

    asyncio.run(run())


@pytest.mark.parametrize("times", [1, 10])
async def test_one_address_leaves_connections_to_others(times: int, none_is_silent: None) -> None:
    most = 10 * times
    async with serving(echo, connections=most) as served:
        peers = [await served.connect() for _ in range(most // 2)]
        for peer in peers:
            await peer.send(GET)
            assert (await peer.answer()).status == 200
        for _ in range(times):
            late = await served.connect()
            answer = await late.answer()
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert "of this address" in json.loads(answer.body)["error"]["message"]
        statistics = served.server.statistics()
        assert (statistics.connections, statistics.rejected) == (most // 2, times)
        assert (statistics.by_address.held, statistics.by_address.holder_limit) == (most // 2, most // 2)
        # The whole of 127.0.0.0/8 is this host.
        other = await trio.open_tcp_stream("127.0.0.1", served.port, local_address="127.0.0.2")
        honest = served.add(other)
        await honest.send(GET)
        assert (await honest.answer()).status == 200
        assert served.server.statistics().by_address.holders == 2
        for peer in peers:
            await peer.aclose()
        await eventually(lambda: served.server.statistics().by_address.held == 1)


async def test_the_connection_that_was_silent_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_SILENT_TIME", 0.0)
    async with serving(echo, connections=3, connections_per_address=3) as served:
        silent = await served.connect()
        await eventually(lambda: served.server.statistics().connections == 1)
        begun = await served.connect()
        await begun.send(GET[:10])
        idle = await served.connect()
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        for leaves in (silent, idle):
            late = await served.connect()
            await late.send(GET)
            assert (await late.answer()).status == 200
            assert await leaves.ended()
        # Half a request is not silence.
        await begun.send(GET[10:])
        assert (await begun.answer()).status == 200
        assert served.server.statistics().by_address.held == 3


async def test_connections_leave_descriptors_for_the_rest(
    none_is_silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(echo) as served:
        first = await served.connect()
        await first.send(GET)
        assert (await first.answer()).status == 200
        monkeypatch.setattr(descriptors, "room_for_peers", lambda: 1)
        answer = await (await served.connect()).answer()
        assert answer.status == 503
        assert await first.stream.send_all(GET) is None
        assert (await first.answer()).status == 200
        assert served.server.statistics().by_address.held == 1


COMMANDS_BESIDE_SILENCE = {
    "HTTP": "serve small.py --listen http://127.0.0.1:0/mcp",
    "TCP": "serve small.py --listen tcp://127.0.0.1:0",
    "workers": "serve small.py --listen ws://127.0.0.1:0/ws --workers 2",
    "gateway": "gateway mcp.json --listen http://127.0.0.1:0/mcp",
}


@pytest.mark.parametrize("what", COMMANDS_BESIDE_SILENCE)
def test_others_are_answered_beside_more_silent_connections_than_the_process_may_open(
    what: str, tmp_path: Path
) -> None:
    (tmp_path / "small.py").write_text("from mcp_actors import Server\nserver = Server('small')\n")
    upstream = {"command": sys.executable, "args": ["-m", "mcp_actors", "serve", str(tmp_path / "small.py")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"small": upstream}}))
    command = f"ulimit -n 256 && exec {sys.executable} -m mcp_actors {COMMANDS_BESIDE_SILENCE[what]}"
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        url = announced(process.stderr).split()[-1]
        host, port = urlsplit(url).hostname, urlsplit(url).port
        assert port is not None
        try:
            silent = [socket.create_connection((host, port), 60, ("127.0.0.2", 0)) for _ in range(400)]

            async def call() -> None:
                for _ in range(20):
                    with trio.fail_after(60):
                        async with Client(url) as client:
                            await client.ping()

            trio.run(call)
            for each in silent:
                each.close()
        finally:
            process.terminate()
        said = process.communicate(timeout=60)[1]
        assert "Traceback" not in said
        assert "Too many open files" not in said


async def test_no_descriptors_left_is_no_reason_to_stop() -> None:
    class Exhausted(HttpListener):
        """Stands for a system without descriptors."""

        failures = 3

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    [opened] = await open_tcp("127.0.0.1", 0)
    listener = Exhausted(opened.socket)
    with structlog.testing.capture_logs() as logs:
        async with serving(echo, listeners=[listener]) as served:
            peer = await served.connect()
            await peer.send(GET)
            assert (await peer.answer()).status == 200
    assert [each["event"] for each in logs] == ["cannot accept connections for now: Too many open files"]
    assert listener.failures == 0


# -- Two processes behind a proxy that deals out connections in turn are one server to a modern client ---

SERVER = Path(__file__).with_name("shared_load.py")
START_LIMIT = 60.0


@asynccontextmanager
async def process() -> AsyncIterator[int]:
    """The port that a process of the server listens on."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVER), "--listen", "http://127.0.0.1:0/mcp"]
    child = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        said = b""
        with trio.fail_after(START_LIMIT):
            while (found := re.search(rb"at http://127\.0\.0\.1:(\d+)/mcp\n", said)) is None:
                piece = await child.stderr.receive_some()
                assert piece, f"it ended: {said.decode()}"
                said += piece
        yield int(found[1])
    finally:
        child.terminate()
        with trio.CancelScope(shield=True), trio.fail_after(START_LIMIT):
            await child.wait()


@asynccontextmanager
async def round_robin(*ports: int) -> AsyncIterator[int]:
    """A proxy that gives each new connection to the next of ``ports``."""
    dealt = 0

    async def carry(client: trio.SocketStream) -> None:
        nonlocal dealt
        port = ports[dealt % len(ports)]
        dealt += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, client, server, nursery.cancel_scope)
                nursery.start_soon(pump, server, client, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, carry, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        async for piece in source:
            await sink.send_all(piece)
    except trio.BrokenResourceError:
        pass
    both.cancel()


async def answer(question: object) -> ElicitResult:
    assert isinstance(question, ElicitFormParams)
    return ElicitResult(action="accept", content={"name": question.message.partition(" ")[0]})


async def test_any_process_answers_any_request() -> None:
    # Without kept connections each request may be dealt to another process.
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        process() as one,
        process() as other,
        round_robin(one, other) as port,
        httpx2.AsyncClient(limits=limits) as http,
    ):
        transport = HttpClientTransport(f"http://127.0.0.1:{port}/mcp", client=http)
        async with Client(transport, era="modern", elicitation=answer) as client:
            told = {(await client.call_tool("whoami")).structured_content for _ in range(4)}
            assert len(told) == 2
            for _ in range(3):
                result = await client.call_tool("introduce")
                assert not result.is_error
                assert result.content[0].text.startswith("First Last at ")
