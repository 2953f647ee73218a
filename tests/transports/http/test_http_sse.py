"""HTTP+SSE of 2024-11-05: one stream is the connection, messages are POSTed beside it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.responses import Refusal
from tests.transports.http.fakes import FakeListener, FakeResponse

EVENTS = {"accept": "text/event-stream"}


async def echo(channel: FrameChannel) -> None:
    async with channel:
        while True:
            for frame in await channel.receive_many():
                await channel.send(frame)


def endpoint_of(stream: FakeResponse) -> str:
    assert stream.status == 200
    first = stream.chunks[0].decode().splitlines()
    assert first[0] == "event: endpoint"
    return first[1].removeprefix("data: ")


def post(listener: FakeListener, path: str, body: bytes = b'{"n":1}', **headers: str) -> FakeResponse:
    return listener.send("POST", path, body, {"content-type": "application/json", **headers})


async def connected(listener: FakeListener, **headers: str) -> tuple[FakeResponse, str]:
    stream = listener.send("GET", "/sse", headers={**EVENTS, **headers})
    await trio.testing.wait_all_tasks_blocked()
    return stream, endpoint_of(stream)


async def test_messages_go_in_by_post_and_out_as_events(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    listener.handler.on_connection = echo
    stream, path = await connected(listener)
    assert path.startswith("/messages?session_id=")
    assert len(path) >= len("/messages?session_id=") + 32
    response = post(listener, path)
    assert (response.status, response.body) == (202, b"")
    await trio.testing.wait_all_tasks_blocked()
    assert stream.chunks[1:] == [b'event: message\ndata: {"n":1}\n\n']
    assert repr(listener.http_sse) == "<HttpSseChannels: 1 open>"


async def test_the_client_that_leaves_its_stream_has_left(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    ended = trio.Event()

    async def wait(channel: FrameChannel) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    listener.handler.on_connection = wait
    stream, path = await connected(listener)
    stream.leave()
    await ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert post(listener, path).status == 404
    assert len(listener.http_sse) == len(listener.open_streams) == 0


async def test_the_server_that_closes_ends_the_stream(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    channels = []

    async def close(channel: FrameChannel) -> None:
        channels.append(channel)
        await channel.aclose()
        await channel.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await channel.send(Frame(b"{}"))
        with pytest.raises(trio.ClosedResourceError):
            await channel.receive()
        assert not channel.write_now(Frame(b"{}"))

    listener.handler.on_connection = close
    stream, path = await connected(listener)
    assert stream.ended
    assert post(listener, path).status == 404
    assert repr(channels[0]) == "<HttpSseChannel peer closed>"


async def test_bad_requests_beside_a_pipe(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    listener.handler.on_connection = echo
    _, path = await connected(listener)
    assert post(listener, "/messages").status == 404
    assert post(listener, "/messages?session_id=unknown").status == 404
    assert post(listener, "/messages?other=1&" + path.partition("?")[2]).status == 202
    assert listener.send("POST", path, b"{}", {"content-type": "text/plain"}).status == 415
    assert listener.send("GET", "/sse").status == 406


async def test_a_pipe_belongs_to_who_opened_it(nursery: trio.Nursery) -> None:
    def name(request: Request) -> str | Refusal | None:
        return request.headers.get("authorization")

    listener = FakeListener(nursery, authenticate=name)
    listener.handler.on_connection = echo
    _, path = await connected(listener, authorization="ann")
    assert listener.handler.principals == [Principal("ann")]
    assert post(listener, path, authorization="ann").status == 202
    assert post(listener, path, authorization="bob").status == 404
    assert post(listener, path).status == 404


def echoes_later(listener: FakeListener) -> trio.Event:
    """Lets connections be read only once the event that is returned is set."""
    read = trio.Event()

    async def later(channel: FrameChannel) -> None:
        await read.wait()
        await echo(channel)

    listener.handler.on_connection = later
    return read


async def test_a_server_that_reads_slowly_makes_posts_wait_and_then_refuses_them(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(nursery)
    read = echoes_later(listener)
    stream, path = await connected(listener)
    for _ in range(256):
        assert post(listener, path).status == 202
    refused = post(listener, path)
    assert refused.status is None
    await trio.sleep(6)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    patient = post(listener, path)
    await trio.sleep(1)
    read.set()
    await trio.testing.wait_all_tasks_blocked()
    assert patient.status == 202
    assert len(stream.chunks) == 1 + 257


@pytest.mark.parametrize("messages", [20, 200])
async def test_messages_that_wait_to_be_received_are_weighed_by_address(
    nursery: trio.Nursery, messages: int
) -> None:
    body = b"x" * 1000
    listener = FakeListener(nursery, posted=2 * 10 * len(body))
    read = echoes_later(listener)
    stream, path = await connected(listener)
    answers = [post(listener, path, body) for _ in range(messages)]
    assert [each.status for each in answers] == [202] * 10 + [503] * (messages - 10)
    assert answers[-1].headers["retry-after"] == "1"
    assert b"messages that wait of this client" in answers[-1].body
    assert listener.http_sse.posted.statistics().refused == messages - 10
    listener.peer = "other"
    _, others = await connected(listener)
    assert [post(listener, others, body).status for _ in range(11)] == [202] * 10 + [503]
    read.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(stream.chunks) == 1 + 10
    assert listener.http_sse.posted.held == 0


async def test_messages_that_nobody_received_are_released_with_their_connection(
    nursery: trio.Nursery,
) -> None:
    listener = FakeListener(nursery)
    ended = trio.Event()

    async def leaves(channel: FrameChannel) -> None:
        async with channel:
            await ended.wait()

    listener.handler.on_connection = leaves
    _, path = await connected(listener)
    answers = [post(listener, path) for _ in range(260)]
    await trio.testing.wait_all_tasks_blocked()
    assert listener.http_sse.posted.held == 260 * len(b'{"n":1}')
    ended.set()
    await trio.testing.wait_all_tasks_blocked()
    assert {each.status for each in answers[256:]} == {404}
    assert (listener.http_sse.posted.held, listener.http_sse.posted.statistics().holders) == (0, 0)


async def test_a_client_that_reads_slowly_makes_the_server_wait(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery, longest=50)
    results: list[Any] = []

    async def talk(channel: FrameChannel) -> None:
        assert channel.max_message_bytes == 50
        with pytest.raises(LocalProtocolError):
            await channel.send(Frame(b"x" * 51))
        assert channel.write_now(Frame(b"1"))
        stream.full = True
        results.append(channel.write_now(Frame(b"2")))
        await channel.send(Frame(b"3"))
        results.append("sent")
        stream.full = True
        try:
            await channel.send(Frame(b"4"))
        except trio.BrokenResourceError:
            results.append("broken")

    started = trio.Event()

    async def wait_then_talk(channel: FrameChannel) -> None:
        await started.wait()
        await talk(channel)

    listener.handler.on_connection = wait_then_talk
    stream, _ = await connected(listener)
    stream.run = lambda fn: None  # type: ignore[method-assign]
    started.set()
    await trio.testing.wait_all_tasks_blocked()
    assert results == [False]
    stream.make_room()
    await trio.testing.wait_all_tasks_blocked()
    assert results == [False, "sent"]
    assert stream.chunks[1:] == [b"event: message\ndata: 1\n\n", b"event: message\ndata: 3\n\n"]
