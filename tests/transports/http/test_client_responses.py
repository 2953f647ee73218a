"""One connection of a client: how requests are written on it, and how responses are read."""

from __future__ import annotations

import socket
from itertools import pairwise

import httpcore2
import pytest
import trio

from mcp_transports.http.client.pool import AnySocket, ClientConnection, SocketStream, encode_header_lines

REQUEST = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json \r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\n{} \r\n1\r\n \r\n0\r\nTrailer: x\r\n\r\n"
KINDS = {
    "length": (OK + b"content-length: 4\r\n\r\n{}  ", b"{}  ", True),
    "chunked": (CHUNKED, b"{}  ", True),
    "empty": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + CHUNKED,
        b"{}  ",
        True,
    ),
    "no CR": (OK.replace(b"\r", b"") + b"content-length: 4\n\n{}  ", b"{}  ", True),
    "to the end": (OK + b"\r\n{}  ", b"{}  ", False),
    "close": (OK + b"Connection: close\r\ncontent-length: 4\r\n\r\n{}  ", b"{}  ", False),
    "1.0": (OK.replace(b"1.1", b"1.0") + b"content-length: 4\r\n\r\n{}  ", b"{}  ", False),
    "surplus": (
        OK + b"content-length: 4\r\n\r\n{}  HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
        b"{}  ",
        False,
    ),
    "rubbish behind": (OK + b"content-length: 4\r\n\r\n{}  \x00", b"{}  ", False),
    "other protocol": (
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n\x00",
        b"",
        False,
    ),
}


class Replies:
    """A stream whose peer answers in these pieces, and then hangs up; or never does, if the last is repeated."""

    def __init__(self, *pieces: bytes, endless: bool = False) -> None:
        self.pieces = list(pieces)
        self.endless = endless
        self.written: list[bytes] = []
        self.read = 0
        self.is_closed = False

    @property
    def socket(self) -> AnySocket:
        raise NotImplementedError

    async def send_all(self, data: bytes) -> None:
        self.written.append(data)

    async def receive(self) -> bytes:
        if not self.pieces:
            return b""
        piece = self.pieces[0] if self.endless and len(self.pieces) == 1 else self.pieces.pop(0)
        self.read += len(piece)
        return piece

    def is_readable(self) -> bool:
        return bool(self.pieces)

    async def aclose(self) -> None:
        self.is_closed = True


async def whole(connection: ClientConnection) -> bytes:
    body = b""
    while part := await connection.read():
        body += part
    return body


# -- responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_response_is_the_same_wherever_it_was_split(kind: str) -> None:
    response, body, is_kept = KINDS[kind]
    cuts = [(), *((i,) for i in range(1, len(response))), tuple(range(1, len(response)))]
    for cut in cuts:
        ends = (0, *cut, len(response))
        stream = Replies(*(response[start:end] for start, end in pairwise(ends)))
        connection = ClientConnection(stream)
        await connection.exchange(REQUEST)
        assert connection.status == {"empty": 204, "other protocol": 101}.get(kind, 200)
        if body:
            assert connection.headers[0] == (b"content-type", b"application/json")
        assert await whole(connection) == body
        assert await connection.read() == b""
        connection.finish()
        # What comes in a later read is noticed before the connection is used again.
        assert (connection.is_idle and not connection.has_ended()) is is_kept
        assert stream.written == [REQUEST]


async def test_one_connection_carries_many_requests() -> None:
    stream = Replies(KINDS["chunked"][0], KINDS["length"][0])
    connection = ClientConnection(stream)
    for _ in range(2):
        await connection.exchange(REQUEST)
        assert await whole(connection) == b"{}  "
        connection.finish()
    await connection.aclose()
    await connection.aclose()
    assert (connection.is_closed, stream.is_closed) == (True, True)
    assert "closed" in repr(connection)


async def test_a_body_that_was_not_read_to_its_end_leaves_no_connection() -> None:
    connection = ClientConnection(Replies(OK + b"content-length: 4\r\n\r\n{}"))
    await connection.exchange(REQUEST)
    assert await connection.read() == b"{}"
    connection.finish()
    assert not connection.is_idle


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 2",
        b"\x00\x01 what is this?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_what_is_no_response(reply: bytes) -> None:
    connection = ClientConnection(Replies(reply))
    with pytest.raises(httpcore2.RemoteProtocolError):
        await connection.exchange(REQUEST)
    connection.finish()
    assert not connection.is_idle


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"content-length: 9\r\n\r\n{}",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\nno size\r\n",
    ],
)
async def test_a_body_that_breaks_off_is_read_up_to_there(reply: bytes) -> None:
    connection = ClientConnection(Replies(reply))
    await connection.exchange(REQUEST)
    assert await connection.read() == b"{}"
    for _ in range(2):
        with pytest.raises(httpcore2.RemoteProtocolError):
            await connection.read()
    connection.finish()
    assert not connection.is_idle


@pytest.mark.parametrize(
    ("beginning", "repeated"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"a" * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"x: a\r\n" * 100),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 10),
        (b"HTTP/1.1 200 ", b"O" * 1000),
        (OK + b"transfer-encoding: chunked\r\n\r\n1;", b"a" * 1000),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: a\r\n" * 100),
    ],
)
async def test_framing_without_an_end_is_not_read_for_ever(beginning: bytes, repeated: bytes) -> None:
    stream = Replies(beginning, repeated, endless=True)
    connection = ClientConnection(stream)

    async def read() -> None:
        await connection.exchange(REQUEST)
        await connection.read()

    with pytest.raises(httpcore2.RemoteProtocolError, match="too long"):
        await read()
    assert stream.read < 110_000


async def test_a_stream_may_be_as_long_as_it_likes() -> None:
    chunk = [b"3;" + b"a" * 1000 + b"\r\n", b":\n\n", b"\r\n"]
    stream = Replies(OK + b"transfer-encoding: chunked\r\n\r\n", *chunk * 200, b"0\r\n\r\n")
    connection = ClientConnection(stream)
    await connection.exchange(REQUEST)
    assert len(await whole(connection)) == 600


# -- requests ---------------------------------------------------------------------------------------------------------


def test_headers_are_lines() -> None:
    lines = encode_header_lines([(b"Accept", b"a, b"), (b"x", b""), (b"y", "ü\x01".encode())])
    assert lines == b"Accept: a, b\r\nx: \r\ny: \xc3\xbc\x01\r\n"
    assert encode_header_lines([]) == b""


@pytest.mark.parametrize(
    "value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\x00b", b" a", b"a ", b"\n", b"a\r\n", b"a\x0bb"]
)
def test_no_value_ends_its_line(value: bytes) -> None:
    with pytest.raises(httpcore2.LocalProtocolError, match="authorization") as refused:
        encode_header_lines([(b"authorization", value)])
    assert repr(value) not in str(refused.value)


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", "ü".encode(), b"a\n"])
def test_no_name_ends_its_line(name: bytes) -> None:
    for _ in range(2):
        with pytest.raises(httpcore2.LocalProtocolError):
            encode_header_lines([(name, b"x")])


# -- sockets ----------------------------------------------------------------------------------------------------------


def line() -> tuple[SocketStream, trio.SocketStream]:
    near, far = socket.socketpair()
    near.setblocking(False)
    return SocketStream(near), trio.SocketStream(trio.socket.from_stdlib_socket(far))


async def test_a_long_request_is_sent_as_fast_as_it_is_read() -> None:
    ours, theirs = line()
    data, sent, got = b"x" * 3_000_000, trio.Event(), 0
    connection = ClientConnection(ours)
    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(connection.exchange, data, sent)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent.is_set()
        while got < len(data):
            got += len(await theirs.receive_some())
        await trio.testing.wait_all_tasks_blocked()
        assert sent.is_set()
        await theirs.send_all(KINDS["length"][0])
    assert await whole(connection) == b"{}  "
    await connection.aclose()


async def test_an_answer_that_came_before_the_hang_up_is_read() -> None:
    ours, theirs = line()
    sent = trio.Event()
    connection = ClientConnection(ours)
    await theirs.send_all(KINDS["length"][0])
    await theirs.aclose()
    await connection.exchange(REQUEST, sent)
    assert await whole(connection) == b"{}  "
    assert not sent.is_set()
    connection.finish()
    assert not connection.is_idle
    with pytest.raises(httpcore2.WriteError):
        await ours.send_all(b"more")
    await connection.aclose()


async def test_a_connection_that_broke() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        near = socket.create_connection(listener.socket.getsockname())
        near.setblocking(False)
        far = await listener.accept()
    ours = SocketStream(near)
    assert not ours.is_readable()
    # Closed in this way the kernel sends a reset.
    far.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    await far.aclose()
    with trio.fail_after(5), pytest.raises(httpcore2.ReadError):
        await ours.receive()
    await ours.aclose()
    assert near.fileno() == -1


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 O", KINDS["length"][0][:-1]])
async def test_cancelled_it_leaves_no_socket(reply: bytes) -> None:
    ours, theirs = line()
    connection = ClientConnection(ours)
    async with theirs:
        await theirs.send_all(reply)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    try:
                        await connection.exchange(REQUEST)
                        await whole(connection)
                    finally:
                        connection.finish()
                        await connection.aclose()

                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert connection.is_closed
        assert await theirs.receive_some() == REQUEST
        assert await theirs.receive_some() == b""
