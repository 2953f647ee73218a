"""A client's channel on real sockets, against a server of a few lines."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing
import trustme
from structlog.testing import capture_logs

from benchmarks.suite.server import free_port
from mcp_actors.abc import Frame, NoAnswer, NotificationsMissed
from mcp_actors.errors import ConnectFailed, ConnectionLost
from mcp_transports.http.client import HttpChannel, HttpClientTransport, from_url

from .scripted import request

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PATIENCE = 60


class RawServer:
    """Speaks just enough HTTP/1.1; ``answer`` writes whatever it likes to each request and says whether to go on."""

    def __init__(self, answer: Callable[[trio.SocketStream, bytes, bytes], Awaitable[bool]]) -> None:
        self.answer = answer
        self.connections = 0
        self.open = 0
        self.closed = trio.Event()

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        self.open += 1
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    if not (piece := await stream.receive_some()):
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                found = re.search(rb"content-length: (\d+)", head.lower())
                length = int(found[1]) if found else 0
                while len(data) < length:
                    data += await stream.receive_some()
                body, data = data[:length], data[length:]
                if not await self.answer(stream, head, body):
                    return
        except trio.BrokenResourceError:
            pass  # the client left
        finally:
            self.open -= 1
            self.closed.set()
            await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def channel(self, **options: object) -> AsyncIterator[HttpChannel]:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
                nursery.start_soon(trio.serve_listeners, self.serve, [listener])
                port = listener.socket.getsockname()[1]
                async with from_url(f"http://127.0.0.1:{port}/mcp", **options).connect() as channel:
                    assert isinstance(channel, HttpChannel)
                    yield channel
                nursery.cancel_scope.cancel()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def echo(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
    await stream.send_all(json_reply(body))
    return True


async def ask(channel: HttpChannel, id: int) -> Frame:
    await channel.send(request(id, modern=True))
    frame = await channel.receive()
    channel.settled(id)
    return frame


async def no_request_in_flight(channel: HttpChannel) -> None:
    """Waits until every stream was read to its end, so that its connection can be used again."""
    while ": 0 requests" not in repr(channel):  # noqa: ASYNC110 - the channel has no event for it
        await trio.sleep(0.001)


async def test_calls_one_after_the_other_use_one_connection(connections_are_kept: None) -> None:
    server = RawServer(echo)
    async with server.channel() as channel:
        for id in range(5):
            assert (await ask(channel, id)).data == request(id).data
    assert server.connections == 1


async def test_a_stream_that_was_answered_gives_its_connection_back(connections_are_kept: None) -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        text = SSE + chunk(b"data: " + body + b"\n\n")
        # In pieces that end anywhere.
        for i in range(0, len(text), 11):
            await stream.send_all(text[i : i + 11])
        await stream.send_all(b"0\r\n\r\n")
        return True

    server = RawServer(answer)
    async with server.channel() as channel:
        for id in range(3):
            assert (await ask(channel, id)).data == request(id).data
            await no_request_in_flight(channel)
    assert server.connections == 1


async def test_the_older_binding_uses_two_connections(connections_are_kept: None) -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        if head.startswith(b"GET"):
            await stream.send_all(SSE + chunk(b"event: endpoint\ndata: /post\n\n"))
        elif head.startswith(b"POST /post"):
            await stream.send_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok")
        else:
            await stream.send_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
        return True

    server = RawServer(answer)
    async with server.channel() as channel:
        await channel.send(request(1, "initialize"))
        for id in (2, 3, 4):
            await no_request_in_flight(channel)
            await channel.send(request(id))
        await no_request_in_flight(channel)
    assert server.connections == 2


async def test_what_was_written_before_an_answer_on_the_stream_of_the_session_comes_before_it() -> None:
    listening: list[int] = []
    opened = trio.Event()

    async def answer(stream: trio.SocketStream, head: bytes, body: bytes) -> bool:
        if head.startswith(b"GET"):
            await stream.send_all(SSE)
            listening.append(stream.socket.fileno())
            opened.set()
        elif b"initialized" in body:
            await stream.send_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        else:
            # In one turn of the loop, so that both can be read in the same turn too.
            for descriptor in listening:
                os.write(descriptor, chunk(b"data: report\n\n"))
            os.write(stream.socket.fileno(), json_reply(body))
        return True

    async with RawServer(answer).channel() as channel:
        assert (await ask(channel, 1)).data != b"report"
        await channel.send(Frame(b"initialized", method="notifications/initialized"))
        await opened.wait()
        assert isinstance(await channel.receive(), NotificationsMissed)
        for id in range(2, 32):
            await channel.send(request(id))
            assert (await channel.receive()).data == b"report"
            assert (await channel.receive()).data == request(id).data
            channel.settled(id)


async def test_frames_are_delivered_to_whoever_takes_them_and_kept_otherwise() -> None:
    taken: list[Frame] = []
    delivered = trio.Event()

    def take(frame: Frame) -> bool:
        if frame.about != 1:
            return False
        taken.append(frame)
        delivered.set()
        return True

    async with RawServer(echo).channel() as channel:
        channel.deliver_to(take)
        async with trio.open_nursery() as nursery:
            received: list[Frame] = []

            async def read() -> None:
                received.append(await channel.receive())

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            channel.send_nowait(request(1, modern=True))
            await delivered.wait()
            channel.settled(1)
            await no_request_in_flight(channel)
            channel.send_nowait(request(2, modern=True))
        channel.settled(2)
        channel.send_nowait(request(3, modern=True))
        received += await channel.receive_many()
        assert [frame.about for frame in taken] == [1]
        assert [frame.about for frame in received] == [2, 3]
        with pytest.raises(trio.WouldBlock):
            channel.send_nowait(Frame(b"", method="notifications/initialized"))


async def test_calls_at_once_share_the_pool() -> None:
    server = RawServer(echo)
    answered: set[int | str | None] = set()
    async with server.channel(max_posts=8) as channel:
        for id in range(200):
            await channel.send(request(id, modern=True))
        while len(answered) < 200:
            for frame in await channel.receive_many():
                answered.add(frame.about)
                channel.settled(frame.about or 0)
    assert answered == set(range(200))
    assert server.connections <= 8


async def test_a_modern_cancellation_is_seen_by_the_server() -> None:
    asked = trio.Event()

    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        asked.set()
        await stream.send_all(SSE)
        assert await stream.receive_some() == b""
        return False

    server = RawServer(answer)
    async with server.channel() as channel:
        await channel.send(request(1, modern=True))
        await asked.wait()
        await channel.send(Frame(b"", method="notifications/cancelled", cancels=1))
        await server.closed.wait()
    assert server.open == 0


@pytest.mark.parametrize("head", [b"", SSE, SSE + b"10\r\ndata: ha"])
async def test_a_server_that_drops_the_connection_lost_the_answer(head: bytes) -> None:
    async def answer(stream: trio.abc.Stream, got: bytes, body: bytes) -> bool:
        await stream.send_all(head)
        return False

    async with RawServer(answer).channel() as channel:
        frame = await ask(channel, 1)
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, ConnectionLost)


async def test_rubbish_is_no_answer() -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        await stream.send_all(b"\x00\x01 what is this?\r\n\r\n")
        return False

    async with RawServer(answer).channel() as channel:
        frame = await ask(channel, 1)
    assert isinstance(frame, NoAnswer)
    assert frame.reason is not None


async def test_nobody_there() -> None:
    port = free_port()
    async with HttpClientTransport(f"http://127.0.0.1:{port}/mcp").connect() as channel:
        await channel.send(request(1))
        frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, ConnectFailed)
    assert f"http://127.0.0.1:{port}/mcp" in str(frame.reason)


@pytest.mark.parametrize(
    ("method", "level"),
    [("notifications/cancelled", "debug"), ("notifications/roots/list_changed", "warning")],
)
async def test_a_cancellation_that_nobody_is_there_for_is_no_warning(method: str, level: str) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    with capture_logs() as logs:
        async with HttpClientTransport(url).connect() as channel:
            await channel.send(Frame(b'{"jsonrpc":"2.0","method":"%s"}' % method.encode(), method=method))
            while not logs:
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert [(line["log_level"], line["message"]) for line in logs] == [(level, method)]


async def test_https_where_http_is_spoken(nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    nursery.start_soon(trio.serve_listeners, answer, [listener])
    async with HttpClientTransport(
        f"https://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
    ).connect() as channel:
        await channel.send(request(1))
        frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert "it speaks no TLS: is its URL one with http:" in str(frame.reason)
    nursery.cancel_scope.cancel()


async def test_leaving_closes_every_socket() -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        await stream.send_all(SSE + chunk(b"data: x\n\n"))
        return True

    server = RawServer(answer)
    async with server.channel() as channel:
        for id in range(4):
            await channel.send(request(id, modern=True))
        for _ in range(4):
            await channel.receive()
        await channel.aclose()
        while server.open:
            await server.closed.wait()
            server.closed = trio.Event()
    assert server.connections == 4


async def test_a_proxy_of_the_environment_is_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = []

    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        proxied.append(head.splitlines()[0])
        return await echo(stream, head, body)

    async with RawServer(answer).channel() as channel:
        monkeypatch.setenv("HTTP_PROXY", channel.peer)
        async with RawServer(echo).channel() as local:
            assert (await ask(local, 1)).data == request(1).data
        assert proxied == []
        async with from_url("http://mcp.invalid/mcp").connect() as remote:
            assert isinstance(remote, HttpChannel)
            assert (await ask(remote, 2)).data == request(2).data
    assert proxied == [b"POST http://mcp.invalid/mcp HTTP/1.1"]


async def test_certificates(nursery: trio.Nursery) -> None:
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert("localhost").configure_cert(theirs)
    tcp = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    listener = trio.SSLListener(tcp, theirs, https_compatible=True)
    url = f"https://localhost:{tcp.socket.getsockname()[1]}/mcp"
    nursery.start_soon(trio.serve_listeners, RawServer(echo).serve, [listener])
    async with httpx2.AsyncClient(verify=ours) as client:
        async with HttpClientTransport(url, client=client).connect() as channel:
            await channel.send(request(1))
            assert (await channel.receive()).data == request(1).data
    async with HttpClientTransport(url).connect() as channel:
        await channel.send(request(1))
        frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, ConnectFailed)
    assert "certificate" in str(frame.reason)
    nursery.cancel_scope.cancel()


async def test_unix_sockets(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "mcp.sock"
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(str(path))
        listening.listen()
        server = RawServer(echo)
        nursery.start_soon(trio.serve_listeners, server.serve, [trio.SocketListener(listening)])
        url = f"http+unix://{str(path).replace('/', '%2F')}/mcp"
        async with from_url(url).connect() as channel:
            assert isinstance(channel, HttpChannel)
            assert (await ask(channel, 1)).data == request(1).data
            assert channel.peer == url
        nursery.cancel_scope.cancel()
