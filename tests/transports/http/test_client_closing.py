"""How a client's channel ends, and what the older binding, HTTP+SSE, makes of it."""

from __future__ import annotations

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors.abc import Frame, NoAnswer
from mcp_actors.errors import ConnectFailed, RemoteProtocolError
from mcp_transports.http.client import AccessRefused, HttpClientTransport, HttpRefused
from mcp_transports.http.client.session_state import MAX_FRAMES, ReceiveQueue

from .scripted import LEGACY, URL, Asked, Script, Stream, connected, handshake, json_answer, request, sse

ENDPOINT = b"event: endpoint\ndata: /messages?session_id=7\n\n"


class OlderServer:
    """HTTP+SSE: the stream answers GET, messages go to the endpoint; a POST to the stream's URL is refused."""

    def __init__(self, stream: Stream | None, *, refusal: int = 405, accepts: int = 202) -> None:
        self.stream = stream
        self.refusal = refusal
        self.accepts = accepts

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return httpx2.Response(404) if self.stream is None else sse(self.stream)
        if asked.url == URL:
            return httpx2.Response(self.refusal, content=b"no POST here")
        return httpx2.Response(self.accepts, content=b"Accepted")


def refused(frame: Frame) -> Exception:
    assert isinstance(frame, NoAnswer)
    assert frame.reason is not None
    return frame.reason


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
async def test_a_server_of_the_older_binding_is_found(status: int, autojump_clock: trio.abc.Clock) -> None:
    stream = Stream(b": hi\n\n" + ENDPOINT)
    async with connected(OlderServer(stream, refusal=status)) as (channel, script):
        await channel.send(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        stream.write(b'event: message\ndata: {"id":1}\n\n')
        assert await channel.receive() == Frame(b'{"id":1}')
        channel.settled(1)
        await channel.send(Frame(b"{}", method="notifications/initialized", metadata=LEGACY))
        await channel.send(request(2))
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(Frame(b"stop", method="notifications/cancelled", cancels=2))
        await trio.testing.wait_all_tasks_blocked()
    posted = "http://mcp.test/messages?session_id=7"
    assert [(asked.method, asked.url) for asked in script.asked] == [
        ("POST", URL),
        ("GET", URL),
        *[("POST", posted)] * 4,
    ]
    assert script.asked[-1].body == b"stop"
    assert stream.closed.is_set()


async def test_the_end_of_the_one_stream_is_the_end_of_the_channel(autojump_clock: trio.abc.Clock) -> None:
    for error, ending in ((None, trio.EndOfChannel), (httpx2.ReadError("cut"), trio.BrokenResourceError)):
        stream = Stream(ENDPOINT, b"data: last\n\n")
        async with connected(OlderServer(stream)) as (channel, _):
            await channel.send(request(1, "initialize"))
            assert (await channel.receive()).data == b"last"
            stream.end(error)
            with pytest.raises(ending):
                await channel.receive()
            with pytest.raises(trio.BrokenResourceError):
                await channel.send(request(2))


@pytest.mark.parametrize(
    "endpoint",
    [b"https://mcp.test/m", b"http://evil.test/m", b"//evil.test/m", b"http://mcp.test:81/m", b"http://["],
)
async def test_an_endpoint_elsewhere_gets_nothing(endpoint: bytes) -> None:
    stream = Stream(b"event: endpoint\ndata: " + endpoint + b"\n\n")
    async with connected(OlderServer(stream)) as (channel, script):
        await channel.send(request(1, "initialize"))
        error = refused(await channel.receive())
    assert isinstance(error, HttpRefused)
    assert isinstance(error.__cause__, RemoteProtocolError)
    assert {asked.url for asked in script.asked} == {URL}


async def test_a_server_that_speaks_neither_says_what_it_said_first() -> None:
    async with connected(OlderServer(None)) as (channel, _):
        await channel.send(request(1, "initialize"))
        error = refused(await channel.receive())
    assert isinstance(error, HttpRefused)
    assert (error.status, error.text) == (405, "no POST here")


async def test_a_stream_that_never_says_where_to_post(autojump_clock: trio.abc.Clock) -> None:
    stream = Stream()
    async with connected(OlderServer(stream)) as (channel, _):
        await channel.send(request(1, "initialize"))
        assert isinstance(refused(await channel.receive()), HttpRefused)
        assert stream.closed.is_set()
    assert trio.current_time() < 60


@pytest.mark.parametrize(
    ("method", "status"), [("tools/call", 405), ("initialize", 500), ("initialize", 401)]
)
async def test_nothing_else_leads_to_the_older_binding(method: str, status: int) -> None:
    async with connected(OlderServer(Stream(ENDPOINT), refusal=status)) as (channel, script):
        await channel.send(request(1, method))
        error = refused(await channel.receive())
    assert isinstance(error, AccessRefused if status == 401 else HttpRefused)
    assert len(script.asked) == 1


async def test_what_the_endpoint_refuses_fails_its_request(autojump_clock: trio.abc.Clock) -> None:
    server = OlderServer(Stream(ENDPOINT), accepts=503)
    async with connected(server) as (channel, _):
        await channel.send(request(1, "initialize"))
        error = refused(await channel.receive())
    assert isinstance(error, HttpRefused)
    assert error.status == 503


# -- closing -----------------------------------------------------------------------------------------------------------


async def legacy(asked: Asked) -> httpx2.Response:
    """A session, and a call that never ends."""
    if b'"initialize"' in asked.body:
        return json_answer(headers={"mcp-session-id": "s"})
    if asked.method == "DELETE" or b'"tools/call"' in asked.body:
        await trio.sleep_forever()
    return httpx2.Response(202)


async def test_closing_ends_everything_within_two_seconds(autojump_clock: trio.abc.Clock) -> None:
    async with connected(legacy, listen=False) as (channel, script):
        await handshake(channel)
        await channel.send(request(2))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await channel.aclose()
        # The server never answers its DELETE.
        assert trio.current_time() - began == 2
        assert script.under_way == 0
        await channel.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await channel.receive()
        with pytest.raises(trio.ClosedResourceError):
            await channel.send(request(3))
    assert len(script.of("DELETE")) == 1


async def test_messages_on_their_way_are_not_cut_off_by_closing(autojump_clock: trio.abc.Clock) -> None:
    heard = []

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.body.startswith(b"{"):
            return await legacy(asked)
        await trio.sleep(1)
        heard.append(asked.body)
        return httpx2.Response(202)

    async with connected(handler, listen=False) as (channel, _):
        await handshake(channel)
        await channel.send(request(2))
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(Frame(b"an answer"))
        await channel.send(Frame(b"stop", method="notifications/cancelled", cancels=2))
        began = trio.current_time()
    assert sorted(heard) == [b"an answer", b"stop"]
    # With the DELETE, to which the server says nothing.
    assert trio.current_time() - began == 2


async def test_what_nobody_expected_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer(2)

    async with connected(handler) as (channel, _):
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(httpx2.AsyncClient, "build_request", None)
            await channel.send(request(1))
            assert "NoneType" in str(refused(await channel.receive()))
        await channel.send(request(2))
        assert b'"id":2' in (await channel.receive()).data
    assert [(each["event"], each["task"]) for each in logs] == [("POST failed", "POST tools/call 1")]


async def test_closing_from_another_task_wakes_the_reader(
    autojump_clock: trio.abc.Clock, nursery: trio.Nursery
) -> None:
    async with connected(legacy, listen=False) as (channel, _):
        nursery.start_soon(channel.aclose)
        with pytest.raises(trio.ClosedResourceError):
            await channel.receive()
        await channel.aclose()


async def test_a_body_that_raises_is_not_put_into_a_group() -> None:
    async def body() -> None:
        async with connected(legacy) as (channel, _):
            await channel.send(request(1))
            raise KeyError

    with pytest.raises(KeyError):
        await body()


async def test_cancelling_the_block_leaves_nothing(autojump_clock: trio.abc.Clock) -> None:
    script = Script(legacy)
    with trio.move_on_after(5) as scope:
        async with httpx2.AsyncClient(transport=script) as client:
            async with HttpClientTransport(URL, client=client, listen=False).connect() as channel:
                await channel.send(request(1))
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert script.under_way == 0


@pytest.mark.parametrize("attempt", range(8))
async def test_nothing_is_sent_once_the_channel_was_cancelled(
    attempt: int, autojump_clock: trio.abc.Clock
) -> None:
    """Trio chooses the order of tasks: in one of these attempts the cancellation comes while the last of them ends."""
    refused = []
    with trio.CancelScope() as scope:
        async with connected(legacy) as (channel, _):
            await handshake(channel)
            await channel.send(request(2))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            with trio.CancelScope(shield=True):
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                    try:
                        channel.send_nowait(Frame(b"stop", method="notifications/cancelled", cancels=1))
                    except trio.BrokenResourceError as error:
                        refused.append(str(error))
    assert len(refused) > 10
    assert set(refused) == {"the channel has ended"}


async def test_a_client_that_was_given_is_left_open() -> None:
    async with httpx2.AsyncClient(transport=Script(legacy)) as client:
        async with HttpClientTransport(URL, client=client).connect():
            pass
        assert not client.is_closed


async def test_a_client_that_was_closed_is_told_of() -> None:
    client = httpx2.AsyncClient(transport=Script(legacy))
    await client.aclose()
    async with HttpClientTransport(URL, client=client).connect() as channel:
        await channel.send(request(1))
        assert "is closed" in str(refused(await channel.receive()))


async def test_a_message_that_nobody_takes_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        await trio.sleep_forever()
        raise AssertionError

    async with connected(handler, message_timeout=5) as (channel, script):
        await channel.send(Frame(b"{}", method="notifications/initialized"))
        assert trio.current_time() == 5
        assert script.under_way == 0


async def test_a_message_that_does_not_get_through_does_not_end_the_channel() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        if asked.body == b"{}":
            raise httpx2.ConnectError("refused")
        return json_answer(2)

    async with connected(handler) as (channel, _):
        await channel.send(Frame(b"{}", method="notifications/initialized"))
        await channel.send(request(2))
        assert b'"id":2' in (await channel.receive()).data


async def test_many_requests_are_under_way_at_once_but_not_too_many(autojump_clock: trio.abc.Clock) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        await trio.sleep(1)
        return json_answer(int(asked.headers["x-id"]))

    async with connected(handler, max_posts=16) as (channel, script):
        for id in range(64):
            await channel.send(request(id, metadata={"mcp-method": "tools/call", "x-id": str(id)}))
        answered = set()
        while len(answered) < 64:
            for frame in await channel.receive_many():
                answered.add(frame.about)
                channel.settled(frame.about or 0)
    assert answered == set(range(64))
    assert script.most == 16
    assert trio.current_time() < 6


# -- the queue ---------------------------------------------------------------------------------------------------------


async def test_a_full_inbox_makes_streams_wait(autojump_clock: trio.abc.Clock, nursery: trio.Nursery) -> None:
    queue = ReceiveQueue(max_bytes=10)
    for _ in range(MAX_FRAMES):
        await queue.put(Frame(b""))
    with trio.move_on_after(1) as scope:
        await queue.put(Frame(b"late"))
    assert scope.cancelled_caught
    assert len(await queue.take()) == MAX_FRAMES
    await queue.put(Frame(b"x" * 100))
    # One that is too large for the rest is always taken, what follows waits for its room.
    nursery.start_soon(queue.put, Frame(b"next"))
    await trio.testing.wait_all_tasks_blocked()
    assert [len(frame.data) for frame in await queue.take()] == [100]
    assert [frame.data for frame in await queue.take()] == [b"next"]
    assert "0/256" in repr(queue)


async def test_a_frame_is_digested_when_its_reader_comes_back() -> None:
    queue = ReceiveQueue(max_bytes=10)
    first, second, late = trio.Event(), trio.Event(), trio.Event()
    numbers = [queue.put_at_once(Frame(b"a")), queue.put_at_once(Frame(b"b")), queue.put_at_once(Frame(b"c"))]
    queue.set_when_processed(numbers[1], second)
    queue.set_when_processed(numbers[0], first)
    await queue.take(1)
    assert not first.is_set()
    await queue.take(1)
    assert first.is_set()
    assert not second.is_set()
    await queue.take(1)
    assert second.is_set()
    queue.set_when_processed(numbers[1], late)
    assert late.is_set()


async def test_what_arrived_before_the_end_can_be_taken() -> None:
    queue = ReceiveQueue(max_bytes=10)
    queue.put_at_once(Frame(b"a"))
    queue.end(ConnectFailed("gone"))
    queue.put_at_once(Frame(b"too late"))
    assert [frame.data for frame in await queue.take()] == [b"a"]
    with pytest.raises(trio.BrokenResourceError, match="gone"):
        await queue.take()
