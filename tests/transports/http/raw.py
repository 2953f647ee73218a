"""Raw peers for the HTTP server: they send bytes as they are and read what comes back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from mcp_transports.http.h1.http_server import HttpListener, HttpServer, open_tcp
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

HOST = b"Host: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

# Longer than any limit of the server, so that tests in virtual time see those and a broken one still ends.
_PATIENCE = 100

App = Callable[[Request, Response], None]


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what the other side of a real socket brings about; nothing tells us when that is."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - see above
            await trio.sleep(0.001)


def post(body: bytes, *headers: bytes, path: bytes = b"/") -> bytes:
    """A POST with a length."""
    lines = b"".join(each + b"\r\n" for each in headers)
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (path, len(body), lines, body)


class Answer:
    """One answer, cut out of the bytes of a connection."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:60]!r}>"


class RawPeer:
    """A client that knows as little HTTP as it takes to cut answers apart."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.received = b""
        self.at_end = False

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> None:
        with trio.fail_after(_PATIENCE):
            data = await self.stream.receive_some(65536)
        self.at_end = not data
        self.received += data

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with ``mark``."""
        while mark not in self.received:
            assert not self.at_end, f"the end came before {mark!r}: {self.received!r}"
            await self._more()
        found, _, self.received = self.received.partition(mark)
        return found + mark

    async def exactly(self, size: int) -> bytes:
        while len(self.received) < size:
            assert not self.at_end, f"the end came before {size} bytes: {self.received!r}"
            await self._more()
        found, self.received = self.received[:size], self.received[size:]
        return found

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer; chunks are put together."""
        head = await self.until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}) [\w -]+", lines[0])
        assert found is not None, lines[0]
        headers = {}
        for line in lines[1:-2]:
            name, value = line.split(": ", 1)
            assert name not in headers
            headers[name] = value
        status = int(found[1])
        body = b""
        if head_only or status < 200 or status in (204, 304):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                body += piece
        elif "content-length" in headers:
            body = await self.exactly(int(headers["content-length"]))
        else:
            body = await self.rest()
        return Answer(status, headers, body)

    async def chunk(self) -> bytes:
        """The next piece of a stream; nothing at its proper end."""
        size = int((await self.until(b"\r\n"))[:-2], 16)
        piece = await self.exactly(size)
        assert await self.exactly(2) == b"\r\n"
        return piece

    async def rest(self) -> bytes:
        """Everything until the connection ends."""
        while not self.at_end:
            await self._more()
        found, self.received = self.received, b""
        return found

    async def ended(self) -> bool:
        """Whether the connection ends now, cleanly and with nothing else before."""
        return await self.rest() == b""

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)


class Served:
    """A server at work, and ways to connect to it."""

    def __init__(
        self, server: HttpServer, nursery: trio.Nursery, stopping: trio.Event, peers: list[RawPeer]
    ) -> None:
        self.server = server
        self.nursery = nursery
        self.stopping = stopping
        self.leaving = trio.Event()
        self.done = trio.Event()
        self.peers = peers

    @property
    def port(self) -> int:
        port = self.server.listeners[0].port
        assert port is not None
        return port

    async def connect(self) -> RawPeer:
        """Over a real socket."""
        return self.add(await trio.open_tcp_stream("127.0.0.1", self.port))

    def add(self, stream: trio.abc.Stream) -> RawPeer:
        """A peer on this stream, closed with the server."""
        peer = RawPeer(stream)
        self.peers.append(peer)
        return peer

    def attach(self) -> RawPeer:
        """Over streams in memory, for tests in virtual time."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.server.serve_stream, theirs)
        return self.add(ours)

    def connection(self) -> str:
        """What the only connection says of itself."""
        [connection] = self.server._state.ticker.members
        return repr(connection)

    async def settled(self) -> None:
        """Waits until no connection is left."""
        await eventually(lambda: not self.server.statistics().connections)


@asynccontextmanager
async def serving(
    app: App, *, listeners: list[HttpListener] | None = None, memory: bool = False, **limits: float
) -> AsyncIterator[Served]:
    """A server for the length of the block; over TCP unless ``memory``."""
    if listeners is None:
        listeners = [] if memory else await open_tcp("127.0.0.1", 0)
    stopping = trio.Event()
    server = HttpServer(app, listeners, HttpLimits(**limits))  # type: ignore[arg-type]
    peers: list[RawPeer] = []
    try:
        async with trio.open_nursery() as nursery:
            served = Served(server, nursery, stopping, peers)

            async def run(task_status: trio.TaskStatus[HttpServer]) -> None:
                await server.serve(leaving=served.leaving, stopping=stopping, task_status=task_status)
                served.done.set()

            await nursery.start(run)
            yield served
            nursery.cancel_scope.cancel()
    finally:
        for peer in peers:
            await peer.aclose()


def echo(request: Request, response: Response) -> None:
    """Answers with what was asked."""
    text = f"{request.method} {request.target} ".encode() + request.body
    response.answer(200, text, content_type="text/plain")


class Slow:
    """An application whose answers wait until they are let go; notes who was gone or cancelled meanwhile."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.begun: list[str] = []
        self.gone: list[str] = []
        self.cancelled: list[str] = []

    def __call__(self, request: Request, response: Response) -> None:
        path = request.path

        async def work() -> None:
            self.begun.append(path)
            try:
                await self.go.wait()
            except trio.Cancelled:
                self.cancelled.append(path)
                raise
            response.answer(200, path.encode())

        response.on_gone = lambda: self.gone.append(path)
        response.run(work)

    async def until_begun(self, number: int = 1) -> None:
        await eventually(lambda: len(self.begun) >= number)

    async def until_cancelled(self, number: int = 1) -> None:
        await eventually(lambda: len(self.cancelled) >= number)
