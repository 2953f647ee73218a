"""HTTP/2 over the standard streams of a child process: one exchange per stream.

A request is a POST whose body is the message and whose headers mirror it. The answer is ``application/json``, one
message, or, if something comes before it, ``application/jsonl``: a message a line, the answer last. Either side takes a
request back with RST_STREAM. A server that is stopping grants no more streams (SETTINGS_MAX_CONCURRENT_STREAMS becomes
0), ends those there are, and says GOAWAY. Without sessions, this is for the modern era.

The server, then a client that starts it (both need ``pip install 'h2>=4.4'``)::

    python -m mcp_actors.examples.transports.http2 weather.py
    Client("h2stdio:python -m mcp_actors.examples.transports.http2 weather.py")
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError as Http2Error
from h2.settings import SettingCodes

from mcp_actors import errors, register_transport
from mcp_actors.abc import Frame, FrameChannel, NoAnswer, ServerHandler
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.supervision.logging import log

if sys.platform == "win32":
    raise ImportError("this example reads and writes descriptors as POSIX has them, not those of Windows")

__all__ = [
    "MAX_MESSAGE",
    "MAX_STREAMS",
    "STALL",
    "Http2Channel",
    "Http2StdioClient",
    "Http2StdioServer",
    "Stream",
    "Wire",
    "client_channel",
    "from_url",
    "joined",
    "serve_streams",
]


# -- HTTP/2 without MCP: what ``h2`` leaves open, reading, writing, and bodies that wait for windows ---

MAX_MESSAGE = 4 * 1024 * 1024  # bytes of one message, either way
MAX_PARTIAL = 8 * MAX_MESSAGE  # bytes of all messages that have arrived in part
MAX_STREAMS = 100  # exchanges at once: what h2 offers of itself, and RFC 9113 §6.5.2 recommends
# What h2 keeps of a frame cannot be bounded here: up to 16 MiB of one that is too long, before it reports it.
HIGH_WATER = 256 * 1024  # bytes that wait for the pipe before bodies wait in their streams
CONTROL_WATER = 1024 * 1024  # more than that waits: the peer asks for acknowledgements and does not read them
PIECE = 64 * 1024  # bytes of a read or a write: what a pipe holds
STALL = 30.0  # seconds in which a peer that takes nothing counts as gone
LINGER = 1.0  # seconds to write what is queued when a connection is closed


@attrs.define(eq=False)
class Stream:
    """Both directions of one HTTP/2 stream."""

    id: int
    received: bytearray = attrs.Factory(bytearray)
    unsent: bytearray = attrs.Factory(bytearray)
    begun: bool = False  # our headers were sent
    complete: bool = False  # nothing is added to ``unsent`` any more
    gone: bool = False  # nothing can be sent: it has ended or was reset
    tag: Any = None  # whatever its owner likes
    room: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)


class Wire:
    """One HTTP/2 connection over two byte streams. `write` is its only task; the owner calls `read` for events."""

    def __init__(self, reading: trio.abc.ReceiveStream, writing: trio.abc.SendStream, client: bool) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding="latin-1"))
        self.streams: dict[int, Any] = {}
        self.over = False
        self.room = trio.lowlevel.ParkingLot()
        self._in, self._out = reading, writing
        self._unsent = bytearray()
        self._work = trio.lowlevel.ParkingLot()
        self._closing = False
        self.closed = trio.Event()
        self._writing = trio.CancelScope(shield=True)  # a cancelled owner still has what is queued written
        self.h2.initiate_connection()  # h2's own limits: 64 KiB ahead on a stream, 64 KiB of headers, 100 streams
        self.h2.increment_flow_control_window(PIECE * 3)  # and 256 KiB ahead on all of them
        self.pump()

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written."""
        return len(self._unsent) + sum(len(each.unsent) for each in self.streams.values() if not each.gone)

    async def read(self) -> list[Any]:
        """Waits for events. `trio.EndOfChannel` at the end, `trio.BrokenResourceError` for anything but HTTP/2."""
        while len(self._unsent) > CONTROL_WATER and not self.over:
            await self.room.park()
        try:
            data = b"" if self.over else await self._in.receive_some(PIECE)
        except trio.ClosedResourceError:
            data = b""  # the writer has closed both, because the peer reads no more
        if not data:
            self.end()
            raise trio.EndOfChannel
        try:
            found = self.h2.receive_data(data)
        except Http2Error as error:
            self.end()
            raise trio.BrokenResourceError from RemoteProtocolError(f"no HTTP/2: {error}")
        for event in found:
            match event:
                case events.StreamReset(stream_id=id) if id in self.streams:
                    self.streams[id].gone = True
                    self.streams[id].room.unpark_all()
                case events.ConnectionTerminated():
                    self.end()
        for event in found:
            if isinstance(event, events.DataReceived) and not self.over:
                # At once, since no more is read than is wanted: the pipe holds the peer up.
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.pump()
        return found

    def take(self, stream: Stream, data: bytes) -> bool:
        """Adds to what has arrived of a body. One that is too long is broken off."""
        stream.received += data
        together = sum(len(each.received) for each in self.streams.values())
        if len(stream.received) <= MAX_MESSAGE and together <= MAX_PARTIAL:
            return True
        self.reset(stream, ErrorCodes.ENHANCE_YOUR_CALM)
        return False

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """Resets a stream that has not ended."""
        if not self.over:
            try:
                self.h2.reset_stream(stream.id, code)
            except Http2Error:
                log.debug("the stream had ended already", stream=stream.id)
        stream.gone = True
        self.pump()

    def pump(self) -> None:
        """Moves bodies towards the pipe, in turns, as far as windows and the pipe allow. May be called at any time."""
        moving = [] if self.over else [each for each in self.streams.values() if not each.gone and each.begun]
        while moving and len(self._unsent) < HIGH_WATER:
            moving = [stream for stream in moving if self._move(stream)]
        self._unsent += self.h2.data_to_send()
        self._work.unpark_all()

    def _move(self, stream: Stream) -> bool:
        window = self.h2.local_flow_control_window(stream.id)
        size = max(0, min(len(stream.unsent), window, self.h2.max_outbound_frame_size))
        ends = stream.complete and size == len(stream.unsent)
        if size or ends:
            self.h2.send_data(stream.id, bytes(stream.unsent[:size]), end_stream=ends)
            self._unsent += self.h2.data_to_send()
            del stream.unsent[:size]
            stream.gone = ends
            stream.room.unpark_all()
        return bool(size) and not ends

    def end(self) -> None:
        """Stops reading, and sending on all streams."""
        self._unsent += self.h2.data_to_send()
        self.over = True
        for stream in self.streams.values():
            stream.gone = True
            stream.room.unpark_all()
        self.room.unpark_all()
        self._work.unpark_all()

    async def write(self) -> None:
        """Writes until the connection is closed, then what is queued and GOAWAY, and closes both streams."""
        try:
            with self._writing:
                while self._unsent or not self._closing:
                    await (self._write_piece() if self._unsent else self._work.park())
                if not self.over:
                    self.h2.close_connection()
                    self.end()
                    await self._write_piece()
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("nothing more can be written", error=repr(error))
        finally:
            self.end()
            with trio.CancelScope(shield=True):
                await self._out.aclose()
                await self._in.aclose()
            self.closed.set()

    async def _write_piece(self) -> None:
        piece = bytes(self._unsent[:PIECE])
        del self._unsent[:PIECE]
        with trio.fail_after(STALL):
            await self._out.send_all(piece)
        self.pump()
        self.room.unpark_all()

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Runs the writer for the length of a block. What the block raises stays as it is."""
        raised: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            try:
                yield
            except BaseException as error:
                raised = error
            # Shielded itself: `write` ends within the linger.
            self.close()
        if raised is not None:
            raise raised

    def close(self) -> None:
        """Closes once queued data is written, within a second. Idempotent."""
        self._writing.deadline = min(self._writing.deadline, trio.current_time() + LINGER)
        self._closing = True
        self._work.unpark_all()


def joined(headers: Any) -> dict[str, str]:
    """Returns headers by name. A repeated one has both values, so that it equals neither."""
    found: dict[str, str] = {}
    for name, text in headers:
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


MAX_QUEUED = 1024  # requests of a client that wait for a stream
MAX_UNSENT = 1024 * 1024  # bytes that they and the others may have waiting before `send` waits
STREAM_WATER = 64 * 1024  # bytes that wait in a stream before its handler waits
MEETING = 10.0  # seconds a child has to say that it speaks HTTP/2
GRACE = 2.0  # seconds a child has to exit, and again after SIGTERM
JSON = "application/json"


@attrs.define(eq=False, kw_only=True)
class Http2Exchange(Stream):
    """A stream of a client, and the `Outlet` of what it asked for."""

    wire: Wire
    metadata: dict[str, str]
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    longest: int = MAX_MESSAGE
    running: bool = False

    def post(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise errors.LocalProtocolError(f"a message of more than {self.longest} bytes")
        status = "200" if frame.refusal is None else "400"
        self._add(status, JSON if frame.last else f"{JSON}l", frame.data + b"\n", frame.last)

    def _add(self, status: str, content_type: str, data: bytes, last: bool) -> None:
        if self.complete or self.gone:
            raise trio.BrokenResourceError("the client has left")
        if not self.begun:
            self.wire.h2.send_headers(self.id, [(":status", status), ("content-type", content_type)])
            self.begun = True
        self.unsent += data
        self.complete = last
        self.wire.pump()

    def send_nowait(self, frame: Frame) -> bool:
        if len(self.unsent) >= STREAM_WATER:
            return False
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.send_nowait(frame):
            await self.taken()

    async def taken(self) -> None:
        with trio.move_on_after(STALL):
            await self.room.park()
            return
        self.wire.reset(self, ErrorCodes.CANCEL)
        raise trio.BrokenResourceError(f"the client took nothing for {STALL:g} s")

    def settle(self) -> None:
        if not self.complete and not self.gone:
            self._add("202", JSON, b"", last=True)

    def close_stream(self) -> None:
        """A client could not come back for the rest: the stream stays."""


async def serve_streams(
    handler: ServerHandler, reading: trio.abc.ReceiveStream, writing: trio.abc.SendStream
) -> None:
    """Serves the one connection over two byte streams until its client leaves, and closes both."""
    wire = Wire(reading, writing, client=False)
    async with wire.written(), trio.open_nursery() as tasks:
        tasks.start_soon(_drain, handler, wire, tasks.cancel_scope)
        try:
            while True:
                for event in await wire.read():
                    _serve(event, handler, wire, tasks)
                await trio.lowlevel.checkpoint()  # what was taken back ends before more is read
        except (trio.EndOfChannel, trio.BrokenResourceError) as ending:
            log.debug("the client is gone", error=repr(ending.__cause__ or ending))
        tasks.cancel_scope.cancel(reason="the client is gone")


def _serve(event: Any, handler: ServerHandler, wire: Wire, tasks: trio.Nursery) -> None:
    exchange: Http2Exchange | None = wire.streams.get(getattr(event, "stream_id", 0))
    match event:
        case events.RequestReceived():
            exchange = Http2Exchange(id=event.stream_id, wire=wire, metadata=joined(event.headers))
            # Beside h2's own count: handlers that were cancelled may take a moment to end.
            if len(wire.streams) < 2 * MAX_STREAMS and not handler.stopping.is_set():
                wire.streams[exchange.id] = exchange
            else:
                wire.reset(exchange, ErrorCodes.REFUSED_STREAM)
        case events.DataReceived() if exchange is not None:
            if not wire.take(exchange, event.data):
                _forget(exchange)
        case events.StreamEnded() if exchange is not None:
            exchange.running = True
            tasks.start_soon(_run, exchange, handler)
        case events.StreamReset() if exchange is not None:
            exchange.gone = True
            exchange.scope.cancel(reason="the client took the request back")
            if not exchange.running:
                _forget(exchange)


async def _run(exchange: Http2Exchange, handler: ServerHandler) -> None:
    try:
        with exchange.scope:
            arrival = handler.sort(Frame(bytes(exchange.received), metadata=exchange.metadata))
            exchange.received.clear()
            if arrival.refusal is not None:
                exchange.post(arrival.refusal)
            else:
                await handler.exchange(arrival, exchange)
                exchange.settle()
            while not exchange.gone:  # the rest of the answer may wait for the client's window
                await exchange.taken()
    except trio.BrokenResourceError:
        log.debug("the client left its exchange")
    except Exception:
        log.exception("an exchange failed")
    finally:
        if not exchange.complete:
            exchange.wire.reset(exchange, ErrorCodes.INTERNAL_ERROR)
        if (
            exchange.gone
        ):  # else all is being cancelled, and the writer has a moment for the rest of the answer
            _forget(exchange)


def _forget(exchange: Http2Exchange) -> None:
    del exchange.wire.streams[exchange.id]
    exchange.wire.room.unpark_all()


async def _drain(handler: ServerHandler, wire: Wire, everything: trio.CancelScope) -> None:
    await handler.stopping.wait()
    if not wire.over:
        wire.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 0})
        wire.pump()
    while wire.streams:
        await wire.room.park()
    everything.cancel(reason="all exchanges have ended")


class Http2StdioServer:
    """Serves the peer at descriptors 0 and 1; what is printed meanwhile goes to stderr. A `ServerTransport`."""

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        reading, writing = trio.lowlevel.FdStream(os.dup(0)), trio.lowlevel.FdStream(os.dup(1))
        os.dup2(2, 1)
        task_status.started("h2stdio:")
        await serve_streams(handler, reading, writing)


class Http2Channel(FrameChannel):
    """Frames as HTTP/2 exchanges; made by `client_channel`."""

    max_message_bytes = MAX_MESSAGE
    mirrors = True

    def __init__(self, wire: Wire, process: trio.Process | None) -> None:
        self._wire, self._process = wire, process
        self._queue: deque[Frame] = deque()
        self._waiting: dict[int | str, Stream] = {}
        self._inbox: list[Frame] = []
        self._reading = trio.CancelScope()
        self.closed = False

    @property
    def peer(self) -> str:
        return "HTTP/2" if self._process is None else f"HTTP/2 to pid {self._process.pid}"

    def loss_report(self) -> Mapping[str, Any]:
        return {} if self._process is None else {"exit_code": self._process.returncode}

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        if value.cancels is not None:
            self._queue = deque(frame for frame in self._queue if frame.request != value.cancels)
            if (ask := self._waiting.pop(value.cancels, None)) is not None:
                self._wire.streams.pop(ask.id, None)
                self._wire.reset(ask, ErrorCodes.CANCEL)
        elif len(value.data) > MAX_MESSAGE:
            raise errors.LocalProtocolError(f"a message of more than {MAX_MESSAGE} bytes")
        elif len(self._queue) < MAX_QUEUED:
            self._queue.append(value)
        elif value.request is not None:
            self._fail(value.request, errors.Overloaded("connection", MAX_STREAMS, MAX_QUEUED))
        self._open_streams()
        while self._wire.backlog > MAX_UNSENT and not self._wire.over:
            await self._wire.room.park()
        self._check()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self._wire.over:
            raise trio.BrokenResourceError("the connection is over")

    def _open_streams(self) -> None:
        h2 = self._wire.h2
        most, longest = (
            h2.remote_settings.max_concurrent_streams,
            h2.remote_settings.max_header_list_size or sys.maxsize,
        )
        while self._queue and not self._wire.over and h2.open_outbound_streams < most:
            frame = self._queue.popleft()
            headers = [(":method", "POST"), (":scheme", "http"), (":authority", "stdio"), (":path", "/mcp")]
            headers += [("content-type", JSON), *(frame.metadata or {}).items()]
            if sum(len(name) + len(text) + 32 for name, text in headers) > longest:  # RFC 9113 §6.5.2
                self._fail(
                    frame.request, errors.LocalProtocolError("it needs longer headers than the server takes")
                )
                continue
            ask = Stream(h2.get_next_available_stream_id(), tag=frame.request)
            h2.send_headers(ask.id, headers)
            ask.unsent += frame.data
            ask.begun = ask.complete = True
            self._wire.streams[ask.id] = ask
            if frame.request is not None:
                self._waiting[frame.request] = ask
        self._wire.pump()

    async def receive(self) -> Frame:
        frame, *self._inbox = await self.receive_many()
        return frame

    async def receive_many(self) -> list[Frame]:
        """Waits for frames. What was read is processed without a checkpoint, so cancelling loses nothing."""
        await trio.lowlevel.checkpoint()
        while not self._inbox or self.closed:
            if self.closed:
                raise trio.ClosedResourceError
            with trio.CancelScope() as self._reading:
                await self._read()
        frames, self._inbox = self._inbox, []
        return frames

    async def _read(self) -> list[Any]:
        try:
            found = await self._wire.read()
        except trio.EndOfChannel:
            if self.closed:
                raise trio.ClosedResourceError from None
            if self._process is not None:
                with trio.move_on_after(0.5):
                    await self._process.wait()  # its exit code is part of the report
            raise trio.BrokenResourceError("the server has left") from None
        for event in found:
            ask = self._wire.streams.get(getattr(event, "stream_id", 0))
            if ask is not None:
                self._digest(event, ask)
        self._open_streams()
        return found

    def _digest(self, event: Any, ask: Stream) -> None:
        match event:
            case events.DataReceived():
                fits = self._wire.take(ask, event.data)
                *lines, ask.received = ask.received.split(b"\n")
                self._inbox += [Frame(bytes(line), about=ask.tag) for line in lines if line]
                if not fits:
                    self._lose(ask, errors.RemoteProtocolError("the server sent a message that is too long"))
            case events.StreamEnded():
                self._inbox += [Frame(bytes(line), about=ask.tag) for line in [ask.received] if line]
                self._lose(ask, errors.RemoteProtocolError("the server ended the exchange without an answer"))
            case events.StreamReset(error_code=ErrorCodes.REFUSED_STREAM):
                self._lose(ask, errors.Overloaded("connection", MAX_STREAMS, len(self._queue)))
            case events.StreamReset():
                text = (
                    f"the server broke off the exchange ({event.error_code!s}); it may have been carried out"
                )
                self._lose(ask, errors.ConnectionLost(text))

    def _lose(self, ask: Stream, reason: errors.McpError) -> None:
        """Nothing more comes on a stream: this is harmless if the answer has come."""
        del self._wire.streams[ask.id]
        self._waiting.pop(ask.tag, None)
        self._fail(ask.tag, reason)

    def _fail(self, request: int | str | None, reason: errors.McpError) -> None:
        if request is not None:
            self._inbox.append(NoAnswer(b"", about=request, reason=reason))
            self._reading.cancel(reason="there is something to receive")

    async def meet(self) -> None:
        """Waits for the server's SETTINGS: a program that sends anything else does not speak HTTP/2."""
        try:
            with trio.fail_after(MEETING):
                while not any(
                    isinstance(event, events.RemoteSettingsChanged) for event in await self._read()
                ):
                    pass
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            raise errors.ConnectFailed(f"no HTTP/2 from {self.peer}: {error.__cause__ or error!r}") from error

    async def aclose(self) -> None:
        self.closed = True
        self._wire.close()
        await self._wire.closed.wait()


@asynccontextmanager
async def client_channel(
    reading: trio.abc.ReceiveStream, writing: trio.abc.SendStream, process: trio.Process | None = None
) -> AsyncIterator[Http2Channel]:
    """A channel over two byte streams to a server; raises `ConnectFailed` if it does not speak HTTP/2."""
    wire = Wire(reading, writing, client=True)
    channel = Http2Channel(wire, process)
    async with wire.written():
        try:
            await channel.meet()
            yield channel
        finally:
            channel.closed = True


class Http2StdioClient:
    """Starts ``command`` once for each connection. A `ClientTransport`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Leaving the block closes the child's stdin, waits for its exit, and helps it along with signals."""
        try:
            process = await trio.lowlevel.open_process(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise errors.ConnectFailed(f"cannot start {shlex.join(self._command)!r}: {error}") from error
        pipes: Any = process.stdio  # as both of them are pipes
        try:
            async with client_channel(pipes.receive_stream, pipes.send_stream, process) as channel:
                yield channel
        finally:
            with trio.CancelScope(shield=True):
                for hasten in (process.terminate, process.kill):
                    with trio.move_on_after(GRACE):
                        await process.wait()
                    hasten()
                await process.wait()


def from_url(url: str) -> Http2StdioServer | Http2StdioClient:
    command = shlex.split(url.partition(":")[2])
    return Http2StdioClient(command) if command else Http2StdioServer()


register_transport("h2stdio", from_url)

if __name__ == "__main__":
    # The program of the server, whose object is called `server`.
    if len(sys.argv) != 2:
        sys.exit("name the program of a server: python -m mcp_actors.examples.transports.http2 weather.py")
    runpy.run_path(sys.argv[1])["server"].run("h2stdio:")
