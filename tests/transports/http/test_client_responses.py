"""One connection of a client: how requests are written on it, and how responses are read."""

from __future__ import annotations

import json
import socket
from itertools import pairwise

import httpcore2
import httpx2
import pytest
import trio

from mcp_actors.abc import Frame, NoAnswer
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RemoteProtocolError
from mcp_transports.http.client import AccessRefused, HttpClientTransport, HttpRefused
from mcp_transports.http.client.pool import AnySocket, ClientConnection, SocketStream, encode_header_lines

from .scripted import MODERN, Asked, Stream, connected, json_answer, request, sse, stream_pair

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


async def test_a_long_request_is_sent_as_fast_as_it_is_read() -> None:
    ours, theirs = stream_pair()
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
    ours, theirs = stream_pair()
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
    with trio.fail_after(60), pytest.raises(httpcore2.ReadError):
        await ours.receive()
    await ours.aclose()
    assert near.fileno() == -1


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 O", KINDS["length"][0][:-1]])
async def test_cancelled_it_leaves_no_socket(reply: bytes) -> None:
    ours, theirs = stream_pair()
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


# -- What a client's channel makes of the answers to its POSTs -------------------------------------------


async def outcome(response: httpx2.Response, *, modern: bool = True, **options: object) -> Frame:
    """What is received after one request that is answered so."""

    async def handler(asked: Asked) -> httpx2.Response:
        return response

    async with connected(handler, **options) as (channel, _):
        await channel.send(request(7, modern=modern))
        return await channel.receive()


def reason(frame: Frame) -> McpError:
    assert isinstance(frame, NoAnswer)
    assert frame.about == 7
    assert frame.reason is not None
    return frame.reason


async def test_a_json_answer_is_one_frame() -> None:
    frame = await outcome(json_answer(7))
    assert frame == Frame(b'{"jsonrpc":"2.0","id":7,"result":{}}', about=7)


async def test_what_is_posted() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer()

    async with connected(handler, headers={"X-Team": "blue"}) as (channel, script):
        await channel.send(request(1, modern=True))
        await channel.receive()
    (asked,) = script.asked
    assert (asked.method, asked.url) == ("POST", "http://mcp.test/mcp")
    assert asked.body == b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
    assert asked.headers["accept"] == "application/json, text/event-stream"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["content-length"] == str(len(asked.body))
    assert "transfer-encoding" not in asked.headers
    assert asked.headers["x-team"] == "blue"
    assert {name: asked.headers[name] for name in MODERN} == MODERN


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_stream_is_a_frame_for_each_message_however_it_is_split(size: int) -> None:
    text = (
        b": hello\r\n\r\ndata: one\r\n\r\nevent: message\ndata: two\n\nevent: other\ndata: no\n\n"
        b"id: 4\ndata:\n\ndata: three\ndata: lines\n\ndata: four\r\r"
    )
    stream = Stream(*[text[i : i + size] for i in range(0, len(text), size)])

    async def handler(asked: Asked) -> httpx2.Response:
        return sse(stream)

    async with connected(handler) as (channel, _):
        await channel.send(request(7, modern=True))
        data = [(await channel.receive()).data for _ in range(4)]
    assert data == [b"one", b"two", b"three\nlines", b"four"]


async def test_frames_that_came_together_are_received_together(autojump_clock: object) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return sse(Stream(b"data: 1\n\ndata: 2\n\ndata: 3\n\n"))

    async with connected(handler) as (channel, _):
        await channel.send(request(7, modern=True))
        await trio.testing.wait_all_tasks_blocked()
        assert [frame.data for frame in await channel.receive_many()] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_json_rpc_error_is_one_at_any_status(status: int) -> None:
    body = b'{"jsonrpc":"2.0","error":{"code":-32022,"message":"no"}}'
    frame = await outcome(httpx2.Response(status, headers={"content-type": "application/json"}, content=body))
    # Without an id of its own it finds its way by ``about``.
    assert frame == Frame(body, about=7)


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b'{"detail":"Not Found"}', "application/json"), (b"<html>no such page", "text/html"), (b"", "")],
)
async def test_an_error_page_is_a_refusal(body: bytes, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    error = reason(await outcome(httpx2.Response(404, headers=headers, content=body)))
    assert isinstance(error, HttpRefused)
    assert error.status == 404
    assert "check the path" in str(error)
    assert "<html>" not in str(error)


async def test_who_is_not_let_in_learns_the_challenge() -> None:
    response = httpx2.Response(401, headers={"www-authenticate": 'Bearer realm="x"'}, content=b"no token")
    error = reason(await outcome(response))
    assert isinstance(error, AccessRefused)
    assert (error.status, error.www_authenticate, error.text) == (401, 'Bearer realm="x"', "no token")


async def test_a_redirection_is_not_followed_but_named() -> None:
    response = httpx2.Response(308, headers={"location": "https://u:p@mcp.test/mcp?token=1"})
    error = reason(await outcome(response))
    assert "to https://mcp.test/mcp;" in str(error)


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("http://mcp.test/mcp", "/mcp/"),
        ("http://mcp.test/mcp/", "/mcp"),
        ("http://u:p@mcp.test/a%2Fb?key=1", "http://mcp.test/a%2Fb/?key=1"),
    ],
)
async def test_a_redirection_to_the_path_with_or_without_a_slash_is_followed_once(
    url: str, location: str, status: int
) -> None:
    asked_for: list[str] = []

    async def handler(asked: Asked) -> httpx2.Response:
        asked_for.append(asked.url)
        if asked.url == asked_for[0]:
            return httpx2.Response(status, headers={"location": location})
        return json_answer(json.loads(asked.body)["id"])

    async with connected(handler, url=url) as (channel, _):
        await channel.send(request(7))
        assert json.loads((await channel.receive()).data)["id"] == 7
        await channel.send(request(8))
        answered = [await channel.receive() for _ in range(2)]
        assert [json.loads(each.data)["id"] for each in answered if each.data] == [8]
    assert len(asked_for) == 3
    assert asked_for[1] == asked_for[2] != asked_for[0]


@pytest.mark.parametrize(
    ("status", "location"),
    [
        (307, "https://mcp.test/mcp/"),
        (307, "http://mcp.test:81/mcp/"),
        (307, "http://evil.test/mcp/"),
        (307, "//evil.test/mcp/"),
        (307, "/mcp/?token=1"),
        (307, "/other/"),
        (307, "/mcp//"),
        (307, "/mcp"),
        (307, "/"),
        (307, "http://["),
        (302, "/mcp/"),
    ],
)
async def test_no_other_redirection_is_followed(status: int, location: str) -> None:
    asked_for: list[str] = []

    async def handler(asked: Asked) -> httpx2.Response:
        asked_for.append(asked.url)
        return httpx2.Response(status, headers={"location": location})

    async with connected(handler, url="http://mcp.test/mcp") as (channel, _):
        await channel.send(request(7))
        assert f"HTTP {status}" in str(reason(await channel.receive()))
    assert len(asked_for) == 1


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(202),
        httpx2.Response(204),
        httpx2.Response(200, headers={"content-type": "application/json"}, content=b""),
        httpx2.Response(200, headers={"content-type": "text/plain"}, content=b"hello"),
    ],
    ids=["202", "204", "empty", "text"],
)
async def test_success_without_an_answer_breaks_the_protocol(response: httpx2.Response) -> None:
    assert type(reason(await outcome(response))) is RemoteProtocolError


async def test_an_answer_that_is_none_is_told(autojump_clock: object) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer(99)

    async with connected(handler) as (channel, _):
        await channel.send(request(7, modern=True))
        assert b"99" in (await channel.receive()).data
        # The engine comes back for more and has not settled the request.
        assert type(reason(await channel.receive())) is RemoteProtocolError


async def test_a_settled_request_gets_nothing_more(autojump_clock: object) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer(7)

    async with connected(handler) as (channel, _):
        await channel.send(request(7, modern=True))
        await channel.receive()
        channel.settled(7)
        with trio.move_on_after(100) as scope:
            await channel.receive()
        assert scope.cancelled_caught


async def test_an_answer_over_the_limit_is_refused_and_its_stream_closed() -> None:
    for head in ({"content-type": "application/json"}, {"content-type": "text/event-stream"}):
        stream = Stream(b"data: " + b"x" * 9000)
        response = httpx2.Response(200, headers=head, stream=stream)
        error = reason(await outcome(response, max_message_bytes=2000))
        assert type(error) is RemoteProtocolError
        assert stream.closed.is_set()


async def test_what_came_before_an_event_over_the_limit_is_received(autojump_clock: object) -> None:
    stream = Stream(b"data: good\n\ndata: " + b"x" * 9000)

    async def handler(asked: Asked) -> httpx2.Response:
        return sse(stream)

    async with connected(handler, max_message_bytes=2000) as (channel, _):
        await channel.send(request(7, modern=True))
        assert (await channel.receive()).data == b"good"
        with trio.fail_after(10):
            assert type(reason(await channel.receive())) is RemoteProtocolError


async def test_a_length_over_the_limit_is_not_waited_for() -> None:
    stream = Stream()
    head = {"content-type": "application/json", "content-length": "5000"}
    error = reason(await outcome(httpx2.Response(200, headers=head, stream=stream), max_message_bytes=2000))
    assert "longer than 2000 bytes" in str(error)


@pytest.mark.parametrize("end", [None, httpx2.ReadError("reset by peer")])
async def test_a_modern_stream_that_ends_without_an_answer_lost_it(end: Exception | None) -> None:
    stream = Stream(b"id: 1\nretry: 5\ndata: progress\n\n")
    stream.end(end)

    async def handler(asked: Asked) -> httpx2.Response:
        return sse(stream)

    async with connected(handler) as (channel, script):
        await channel.send(request(7, modern=True))
        assert (await channel.receive()).data == b"progress"
        assert isinstance(reason(await channel.receive()), ConnectionLost)
    # The modern era knows no resumption, ids or not.
    assert [asked.method for asked in script.asked] == ["POST"]


async def test_failing_at_first_contact_and_later() -> None:
    answers: list[httpx2.Response | Exception] = [
        httpx2.ConnectError("refused"),
        json_answer(2),
        httpx2.ConnectError("refused"),
        httpx2.RemoteProtocolError("Server disconnected"),
    ]

    async def handler(asked: Asked) -> httpx2.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    kinds = []
    async with connected(handler) as (channel, _):
        for id in (1, 2, 3, 4):
            await channel.send(request(id, modern=True))
            frame = await channel.receive()
            channel.settled(id)
            kinds.append(type(frame.reason) if isinstance(frame, NoAnswer) else None)
    assert kinds == [ConnectFailed, None, ConnectionLost, ConnectionLost]


async def test_what_the_users_client_raises_fails_one_request_only() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        if b'"id":1' in asked.body:
            raise RuntimeError("a bug in an auth flow")
        return json_answer(2)

    async with connected(handler) as (channel, _):
        await channel.send(request(1, modern=True))
        first = await channel.receive()
        await channel.send(request(2, modern=True))
        second = await channel.receive()
    assert isinstance(first, NoAnswer)
    assert "a bug in an auth flow" in str(first.reason)
    assert b'"id":2' in second.data


async def test_a_header_that_cannot_be_sent_fails_its_request_only() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer()

    async with connected(handler) as (channel, script):
        await channel.send(request(1, metadata={"mcp-method": "tools/call", "mcp-name": "käse"}))
        frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, LocalProtocolError)
    assert script.asked == []


@pytest.mark.parametrize("url", ["ftp://host/mcp", "http:///mcp", "mcp", "http+unix:///mcp", "http://[::1/"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        HttpClientTransport(url)


def test_headers_of_the_protocol_are_not_the_users() -> None:
    with pytest.raises(ValueError, match="mcp-session-id"):
        HttpClientTransport("http://h/mcp", headers={"Mcp-Session-Id": "stolen"})


def test_secrets_are_not_shown() -> None:
    assert repr(HttpClientTransport("https://me:pw@h/mcp?key=1#x")) == "<HttpClientTransport https://h/mcp>"
