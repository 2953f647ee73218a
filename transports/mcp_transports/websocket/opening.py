"""The opening handshake of either side, made by trio-websocket over a stream that shows it the handshake alone.

When it is made, trio-websocket's part is done: its reader ends, and the bytes that follow are those of a channel. What
could be no handshake never gets to it: a server's request was read and checked by the HTTP parser of
`mcp_transports.http`, and a client's answer is handed on only if it switches protocols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import trio
from trio_websocket import wrap_client_stream, wrap_server_stream
from wsproto.utilities import ProtocolError

__all__ = ["HandshakeFailed", "OpeningRefused", "accept", "ask"]

# Of an answer's head, and of the body of a refusal that is worth telling about.
_LONGEST_HEAD = 32 * 1024
_LONGEST_BODY = 4 * 1024
_RECEIVE_BYTES = 16 * 1024
# How long the body of a refusal may take: its head says enough.
_BODY_TIME = 1.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r)")


class HandshakeFailed(Exception):
    """The peer's answer is none of a WebSocket server."""


class OpeningRefused(Exception):
    """The server answered with another status than 101."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class _Shown(trio.abc.Stream):
    """What trio-websocket gets to see: one head to read, then nothing; what it writes goes out. It closes nothing."""

    def __init__(self, stream: trio.abc.Stream, head: bytes | None) -> None:
        self._stream = stream
        self._head = head
        self.rest = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._head is None:
            head, self.rest = await _read_head(self._stream)
            self._head = b""
            return head
        if self._head:
            head, self._head = self._head, b""
            await trio.lowlevel.checkpoint()
            return head
        await trio.sleep_forever()
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def accept(stream: trio.abc.Stream, key: str, subprotocol: str | None) -> None:
    """A server's answer to a request that was found good, with its ``Sec-WebSocket-Key``. No extension is agreed to.

    Raises `trio.BrokenResourceError` when the peer is gone.
    """
    offered = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
    head = (
        "GET / HTTP/1.1\r\nHost: checked\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{offered}\r\n"
    )
    sent = False
    async with trio.open_nursery() as nursery:
        request = await wrap_server_stream(nursery, _Shown(stream, head.encode("ascii")))
        try:
            await request.accept(subprotocol=subprotocol)
            sent = True
        finally:
            nursery.cancel_scope.cancel(reason="the handshake is made")
    if not sent:
        raise trio.BrokenResourceError("the peer left during the opening handshake")


async def ask(
    stream: trio.abc.Stream,
    *,
    host: str,
    target: str,
    subprotocols: Sequence[str],
    headers: Sequence[tuple[bytes, bytes]],
) -> tuple[str | None, bytes]:
    """A client's request. Returns the subprotocol that the server chose, and what it sent behind its answer.

    Raises `OpeningRefused`, `HandshakeFailed`, and `trio.BrokenResourceError` when the connection breaks.
    """
    shown = _Shown(stream, None)
    failure: BaseException
    try:
        async with trio.open_nursery() as nursery:
            connection = await wrap_client_stream(
                nursery,
                shown,  # type: ignore[arg-type]  # it asks for a socket only to name its address
                host,
                target,
                subprotocols=subprotocols,
                extra_headers=list(headers),
            )
            nursery.cancel_scope.cancel(reason="the handshake is made")
        return connection.subprotocol, shown.rest
    except* (OpeningRefused, HandshakeFailed, trio.BrokenResourceError) as group:
        failure = _first(group)
    except* Exception as group:
        # trio-websocket means to refuse a server's bad answer as a server would, and stumbles over that itself.
        failure = HandshakeFailed(_complaint(_first(group)))
        failure.__cause__ = _first(group)
    raise failure


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _complaint(error: BaseException | None) -> str:
    """What the answer's reader had to say, under whatever came of it."""
    while error is not None and not isinstance(error, ProtocolError):
        error = error.__context__
    return (
        f"its answer breaks the protocol: {error}" if error is not None else "its answer breaks the protocol"
    )


async def _read_head(stream: trio.abc.Stream) -> tuple[bytes, bytes]:
    """(head, what came behind it) of an answer that switches protocols; raises `OpeningRefused` for any other."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > _LONGEST_HEAD:
            raise HandshakeFailed(f"the head of its answer is longer than {_LONGEST_HEAD} bytes")
        more = await stream.receive_some(_RECEIVE_BYTES)
        if not more:
            raise HandshakeFailed(
                "it hung up in the middle of its answer" if data else "it hung up without an answer"
            )
        data += more
    head, rest = bytes(data[: end + 4]), bytes(data[end + 4 :])
    line = _STATUS_LINE.match(head)
    if line is None:
        raise HandshakeFailed(f"its answer is not HTTP: {head[:40]!r}")
    status = int(line[1])
    if status == 101:
        return head, rest
    headers = _headers(head)
    raise OpeningRefused(status, headers, await _read_body(stream, rest, headers))


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(stream: trio.abc.Stream, body: bytes, headers: Mapping[str, str]) -> bytes:
    length = headers.get("content-length", "")
    wanted = min(int(length), _LONGEST_BODY) if length.isdecimal() else _LONGEST_BODY
    try:
        with trio.move_on_after(_BODY_TIME):
            while len(body) < wanted and (more := await stream.receive_some(_RECEIVE_BYTES)):
                body += more
    except trio.BrokenResourceError:
        return body[:wanted]  # what there is of it
    return body[:wanted]
