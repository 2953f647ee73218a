"""A recorder: the frames of sessions as JSON Lines, one object a line, to be read by people and played back.

The first line is ``{"recording": 1}``. Every other one has ``t`` (seconds since the first connection was opened),
``connection`` (counted from 1) and ``event``:

================ ==================================================================================================
``opened``       with ``side``, ``client`` or ``server``: which end of the connection is recorded
``sent``         this end sent a frame; written when it is handed over
``received``     this end received a frame; written when the engine gets it
``no_answer``    (client) the binding knows that a request gets no answer; with ``reason``
``waiting``      (client) a person begins to be asked before requests can go on, or, with ``over``, no longer
``new_access``   (client) requests are made for another caller from now on, or with other scopes
``missed``       (client) notifications of the server may have been lost before this
``ended``        the peer ended cleanly
``broken``       the world broke the connection
``closed``       the block or the handler of this end was left
================ ==================================================================================================

A frame is ``text`` if it is valid UTF-8, else ``base64``, beside what the binding knew of it: ``request``, ``about``,
``method``, ``cancels``, ``last``, ``metadata``. The message itself is written as it was, unread.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import attrs
import msgspec
import trio

from mcp_actors.abc import (
    ClientTransport,
    Frame,
    FrameChannel,
    HttpRequest,
    NewAccess,
    NoAnswer,
    NotificationsMissed,
    RequestId,
    ServerHandler,
    ServerTransport,
    Waiting,
)
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.principal import Principal

__all__ = ["PassingChannel", "RecordedEvent", "Recording", "RecordingChannel", "RecordingTransport"]


class PassingChannel(FrameChannel):
    """A channel whose methods are those of the inner channel."""

    def __init__(self, inner: FrameChannel) -> None:
        self._inner = inner

    @property
    def max_message_bytes(self) -> int | None:
        return self._inner.max_message_bytes

    @property
    def mirrors(self) -> bool:
        return self._inner.mirrors

    @property
    def sessions_only(self) -> bool:
        return self._inner.sessions_only

    @property
    def keeps_session(self) -> bool:
        return self._inner.keeps_session

    @property
    def needs_pings(self) -> bool:
        return self._inner.needs_pings

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def http_request(self) -> HttpRequest | None:
        return self._inner.http_request

    def settled(self, request: RequestId) -> None:
        self._inner.settled(request)

    def loss_report(self) -> Mapping[str, Any]:
        return self._inner.loss_report()

    async def send(self, value: Frame) -> None:
        await self._inner.send(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        await self._inner.send_many(frames)

    def send_nowait(self, frame: Frame) -> None:
        self._inner.send_nowait(frame)

    def write_now(self, frame: Frame) -> bool:
        return self._inner.write_now(frame)

    async def receive(self) -> Frame:
        return await self._inner.receive()

    async def receive_many(self) -> list[Frame]:
        return await self._inner.receive_many()

    async def aclose(self) -> None:
        await self._inner.aclose()


# -- the recorder and its recordings -------------------------------------------------------------------

FORMAT = 1
_FIELDS = ("request", "about", "method", "cancels")
Side = Literal["client", "server"]


@attrs.frozen(kw_only=True)
class RecordedEvent:
    """One line of a recording."""

    time: float
    """Seconds since the first connection was opened."""
    connection: int
    """Which connection, counted from 1."""
    event: str
    """What happened: see the table of the module."""
    frame: Frame | None = None
    """What was sent or received."""
    side: Side | None = None
    """Of ``opened``: which end is recorded."""


@attrs.frozen
class Recording:
    """The events that a `RecordingTransport` wrote."""

    events: tuple[RecordedEvent, ...]

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Reads a file. A last line that was not written completely is left out.

        Raises:
            ValueError: the file is not a recording.
            OSError: the file cannot be read.
        """
        head, *lines = Path(path).read_text("utf-8").split("\n")
        try:
            if not head.startswith('{"recording"') or json.loads(head)["recording"] != FORMAT:
                raise ValueError(f"its first line is another one: {head[:80]!r}")
            # After the last newline there is nothing, or a line that was being written.
            return cls(tuple(map(_event, lines[:-1])))
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no recording of format {FORMAT}: {error}") from error

    @property
    def connections(self) -> tuple[int, ...]:
        """The connections in it, in the order in which they were opened."""
        return tuple(event.connection for event in self.events if event.event == "opened")

    def script(self, connection: int = 1) -> tuple[tuple[Side, Frame], ...]:
        """Returns the frames of a connection in order, each with the side that sent it.

        Raises:
            ValueError: the recording does not have it.
        """
        events = [event for event in self.events if event.connection == connection]
        side = next((event.side for event in events if event.event == "opened"), None)
        if side is None:
            raise ValueError(f"there is no connection {connection}; there are {self.connections}")
        other: Side = "server" if side == "client" else "client"
        return tuple(
            (side if event.event == "sent" else other, event.frame)
            for event in events
            if event.event in ("sent", "received") and event.frame is not None
        )


class RecordingTransport:
    """Wraps a transport of either side and writes every frame of its connections to the file at ``path``.

    The file is created when the first connection is opened, and closed with the last one. Each line is flushed at once,
    so that the file has everything that happened before a crash. Writing blocks the event loop for as long as the file
    system takes. Only the owner of the file may read it: it has arguments and results as they are. The headers of
    requests are not in it, and no access tokens, which are no part of a message. What the server's side of an exchange
    binding receives is not recorded: record its client.

    Args:
        inner: the transport.
        path: the file; one that exists is overwritten.
    """

    def __init__(self, inner: ClientTransport | ServerTransport, path: str | Path) -> None:
        self._inner = inner
        self._record = _RecordingFile(Path(path))

    def __repr__(self) -> str:
        return f"<RecordingTransport of {self._inner!r}: {self._record.connections} connections>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves as the inner transport does and reports what it reports.

        Raises:
            LocalProtocolError: the inner transport is one of a client.
            OSError: the file cannot be written.
        """
        if not isinstance(self._inner, ServerTransport):
            raise LocalProtocolError(f"{self._inner!r} can be connected to, not served")
        recorded = cast(ServerHandler, _RecordingHandler(handler, self))
        await self._inner.serve(recorded, task_status=task_status)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a connection as the inner transport does, and raises what it raises.

        Raises:
            LocalProtocolError: the inner transport is one of a server.
            OSError: the file cannot be written.
        """
        if not isinstance(self._inner, ClientTransport):
            raise LocalProtocolError(f"{self._inner!r} can be served, not connected to")
        async with self._inner.connect() as inner, self.recorded(inner, "client") as channel:
            yield channel

    @asynccontextmanager
    async def recorded(self, inner: FrameChannel, side: Side) -> AsyncIterator[RecordingChannel]:
        """Records one channel for the length of the block; ``side`` is the end that it is."""
        number = self._record.open(side)
        channel = RecordingChannel(inner, self._record, number)
        try:
            yield channel
        finally:
            self._record.close(number)


class _RecordingHandler:
    """The handler for the inner transport: it records channels, and is the wrapped handler in all else."""

    def __init__(self, handler: ServerHandler, transport: RecordingTransport) -> None:
        self._handler = handler
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def __call__(self, inner: FrameChannel, principal: Principal | None = None) -> None:
        async with self._transport.recorded(inner, "server") as channel:
            # A handler that asks for no principal need not take one.
            await (self._handler(channel) if principal is None else self._handler(channel, principal))


class _RecordingFile:
    """The file, open while a connection is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._open: set[int] = set()
        self._begin = 0.0
        self.connections = 0

    def open(self, side: Side) -> int:
        if self._file is None:
            self._file = open(  # noqa: SIM115 - it is open while a connection is
                self._path,
                "a" if self.connections else "w",
                encoding="utf-8",
                newline="\n",
                opener=_for_its_owner,
            )
            if not self.connections:
                self._begin = trio.current_time()
                self._put({"recording": FORMAT})
        self.connections += 1
        self._open.add(self.connections)
        self.write(self.connections, "opened", side=side)
        return self.connections

    def write(self, connection: int, event: str, **more: Any) -> None:
        if connection in self._open:
            offset = round(trio.current_time() - self._begin, 6)
            self._put({"t": offset, "connection": connection, "event": event, **more})

    def close(self, connection: int) -> None:
        self.write(connection, "closed")
        self._open.discard(connection)
        if not self._open and self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()


def _for_its_owner(path: str, flags: int) -> int:
    """Opens a file that nobody else may read, because arguments and results may hold secrets."""
    handle = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        os.fchmod(handle, 0o600)
    return handle


class RecordingChannel(PassingChannel):
    """A channel that passes everything on and writes it down; made by `RecordingTransport`."""

    def __init__(self, inner: FrameChannel, file: _RecordingFile, number: int) -> None:
        super().__init__(inner)
        self._record = file
        self._number = number
        self._over = False

    def __repr__(self) -> str:
        return f"<RecordingChannel {self._number} of {self._inner!r}>"

    async def send(self, value: Frame) -> None:
        """Sends one frame. It is written down first, or the answer could be there before it."""
        self._write("sent", (value,))
        await self._inner.send(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames; see `send`."""
        self._write("sent", frames)
        await self._inner.send_many(frames)

    def send_nowait(self, frame: Frame) -> None:
        """Hands over one frame if the inner channel takes it, else raises `trio.WouldBlock`."""
        self._inner.send_nowait(frame)
        self._write("sent", (frame,))

    def write_now(self, frame: Frame) -> bool:
        """Writes one frame if the inner channel does."""
        written = self._inner.write_now(frame)
        if written:
            self._write("sent", (frame,))
        return written

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing if it does not in the inner channel."""
        try:
            frame = await self._inner.receive()
        except (trio.EndOfChannel, trio.BrokenResourceError) as ending:
            self._end(ending)
            raise
        self._write("received", (frame,))
        return frame

    async def receive_many(self) -> list[Frame]:
        """Waits for frames; see `receive`."""
        try:
            frames = await self._inner.receive_many()
        except (trio.EndOfChannel, trio.BrokenResourceError) as ending:
            self._end(ending)
            raise
        self._write("received", frames)
        return frames

    def _write(self, event: str, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if isinstance(frame, NoAnswer):
                self._record.write(self._number, "no_answer", about=frame.about, reason=str(frame.reason))
            elif isinstance(frame, Waiting):
                self._record.write(self._number, "waiting", over=frame.over)
            elif isinstance(frame, NewAccess):
                self._record.write(self._number, "new_access")
            elif isinstance(frame, NotificationsMissed):
                self._record.write(self._number, "missed")
            else:
                self._record.write(self._number, event, **_line(frame))

    def _end(self, ending: Exception) -> None:
        if not self._over:
            self._over = True
            self._record.write(self._number, "ended" if isinstance(ending, trio.EndOfChannel) else "broken")


def _line(frame: Frame) -> dict[str, Any]:
    line: dict[str, Any] = {name: value for name in _FIELDS if (value := getattr(frame, name)) is not None}
    if frame.last:
        line["last"] = True
    if frame.metadata:
        line["metadata"] = dict(frame.metadata)
    try:
        line["text"] = frame.data.decode("utf-8")
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(frame.data).decode("ascii")
    return line


class _Line(msgspec.Struct):
    """A line of a recording, as far as it is played back."""

    t: float
    connection: int
    event: Literal[
        "opened",
        "sent",
        "received",
        "no_answer",
        "waiting",
        "new_access",
        "missed",
        "ended",
        "broken",
        "closed",
    ]
    side: Side | None = None
    text: str | None = None
    base64: bytes | None = None
    request: RequestId | None = None
    about: RequestId | None = None
    method: str | None = None
    cancels: RequestId | None = None
    last: bool = False
    metadata: dict[str, str] | None = None


def _event(data: str) -> RecordedEvent:
    line = msgspec.json.decode(data, type=_Line)
    content = line.base64 if line.text is None else line.text.encode()
    frame = None
    if line.event in ("sent", "received"):
        if content is None:
            raise ValueError(f"what was {line.event} is missing")
        known = {name: getattr(line, name) for name in (*_FIELDS, "last", "metadata")}
        frame = Frame(content, **known)
    if line.event == "opened" and line.side is None:
        raise ValueError("it is not said which end of a connection is recorded")
    return RecordedEvent(
        time=line.t, connection=line.connection, event=line.event, frame=frame, side=line.side
    )
