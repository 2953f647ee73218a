"""What a client's channel makes of the answers to its POSTs."""

from __future__ import annotations

import httpx2
import pytest
import trio

from mcp_actors.abc import Frame, NoAnswer
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RemoteProtocolError
from mcp_transports.http.client import AccessRefused, HttpClientTransport, HttpRefused

from .scripted import MODERN, Asked, Stream, connected, json_answer, request, sse


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
