"""The opening handshake of either side (RFC 6455 section 4), made by trio-websocket.

trio-websocket sees a stream that holds the handshake alone: the head that really arrived, and nothing behind it. Once
the handshake is made its part is done: its reader ends, and the bytes that follow are those of a channel. A head that
cannot be a handshake is never shown to it: a server's request was checked by `mcp_transports.websocket.server`, and a
client's answer is shown only if it switches protocols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio
from trio_websocket import ConnectionClosed, wrap_client_stream, wrap_server_stream
from wsproto.utilities import ProtocolError

from mcp_actors.errors import ConnectFailed

__all__ = ["HandshakeFailed", "OpeningRefused", "WebSocketRefused", "accept", "ask"]

# Bytes of an answer's head, and of the body of a refusal that are kept for the error.
_LONGEST_HEAD = 32 * 1024
_LONGEST_BODY = 4 * 1024
_RECEIVE_BYTES = 16 * 1024
# Seconds that the body of a refusal may take: its head says enough.
_BODY_TIME = 1.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r)")


class HandshakeFailed(Exception):
    """The peer's answer is not that of a WebSocket server."""


class OpeningRefused(Exception):
    """The server answered with another status than 101."""

    def __init__(
        self, status: int, headers: Mapping[str, str], body: bytes, challenges: Sequence[str] = ()
    ) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body
        self.challenges = challenges
        """The ``WWW-Authenticate`` lines, of which there may be several."""


class _HandshakeStream(trio.abc.Stream):
    """A stream with the head of a request or an answer put back, for trio-websocket to read; behind it nothing comes.

    What trio-websocket writes goes out. It closes nothing: ``on_close`` is called instead.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        head: bytes | None,
        on_close: Callable[[], object],
    ) -> None:
        self._stream = stream
        # ``None`` means the head of an answer, which is still to be read from the stream.
        self._head = head
        self._on_close = on_close
        self.behind = b""
        """What came behind the head of an answer."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._head is None:
            head, self.behind = await _read_head(self._stream)
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
        self._on_close()
        await trio.lowlevel.checkpoint()


async def accept(stream: trio.abc.Stream, head: bytes, subprotocol: str | None) -> None:
    """Makes the server's side of the opening handshake (RFC 6455 section 4.2.2). No extension is agreed to.

    Cancelled, the answer may have been sent in part.

    Args:
        stream: where the request came from and the answer goes to.
        head: the request's head, byte for byte.
        subprotocol: one that the request offers, or None to choose none.

    Raises:
        trio.BrokenResourceError: the peer left, or trio-websocket finds fault with the head and has refused it.
    """
    made = False
    try:
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            # trio-websocket closes the stream when it breaks, and when it has refused the request.
            shown = _HandshakeStream(stream, head, partial(scope.cancel, reason="the handshake failed"))
            request = await wrap_server_stream(nursery, shown)
            await request.accept(subprotocol=subprotocol)
            made = True
            scope.cancel(reason="the handshake is made")
    except* ConnectionClosed:
        made = False
    if not made:
        raise trio.BrokenResourceError("the opening handshake was not completed")


async def ask(
    stream: trio.abc.Stream,
    *,
    host: str,
    target: str,
    subprotocols: Sequence[str],
    headers: Sequence[tuple[bytes, bytes]],
) -> tuple[str | None, bytes]:
    """Makes the client's side of the opening handshake (RFC 6455 section 4.1).

    Args:
        stream: a fresh connection.
        host: the value of the header ``Host``.
        target: path and query.
        subprotocols: those to offer, the preferred one first.
        headers: more headers of the request.

    Returns:
        The subprotocol that the server chose, and the bytes that it sent behind its answer.

    Raises:
        OpeningRefused: the server answered with another status than 101.
        HandshakeFailed: its answer is not that of a WebSocket server.
        trio.BrokenResourceError: the connection broke.
    """
    failure: BaseException
    try:
        async with trio.open_nursery() as nursery:
            shown = _HandshakeStream(stream, None, _ignored)
            connection = await wrap_client_stream(
                nursery,
                shown,  # type: ignore[arg-type]  # it asks for a socket only to name its address
                host,
                target,
                subprotocols=subprotocols,
                extra_headers=list(headers),
            )
            nursery.cancel_scope.cancel(reason="the handshake is made")
        return connection.subprotocol, shown.behind
    except* (OpeningRefused, HandshakeFailed, trio.BrokenResourceError) as group:
        failure = _first(group)
    except* Exception as group:
        # trio-websocket means to refuse a server's bad answer as a server would, and stumbles over that itself.
        failure = HandshakeFailed(_complaint(_first(group)))
        failure.__cause__ = _first(group)
    raise failure


def _ignored() -> None:
    """Nothing is done when trio-websocket wants the stream closed: it raises what went wrong as well."""


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _complaint(error: BaseException | None) -> str:
    """Finds what wsproto had to say about the answer, below the errors that came of it."""
    while error is not None and not isinstance(error, ProtocolError):
        error = error.__context__
    return (
        f"its answer breaks the protocol: {error}" if error is not None else "its answer breaks the protocol"
    )


async def _read_head(stream: trio.abc.Stream) -> tuple[bytes, bytes]:
    """Returns the head of an answer that switches protocols, and what came behind it.

    Raises `OpeningRefused` for any other answer, and `HandshakeFailed` for bytes that are not an answer.
    """
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
    fields = _fields(head)
    headers = dict(fields)
    challenges = [value for name, value in fields if name == "www-authenticate"]
    raise OpeningRefused(status, headers, await _read_body(stream, rest, headers), challenges)


def _fields(head: bytes) -> list[tuple[str, str]]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


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


class WebSocketRefused(ConnectFailed):
    """The server answered the upgrade request with an HTTP status of its own.

    ``status`` is that status, ``headers`` came with it (lower-case names), ``text`` is the beginning of its body, and
    ``challenges`` are its ``WWW-Authenticate`` lines.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        headers: Mapping[str, str],
        text: str,
        challenges: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.text = text
        self.challenges = challenges
