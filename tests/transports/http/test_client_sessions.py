"""A client's channel in the legacy era: sessions, streams that are come back to, the session's own stream."""

from __future__ import annotations

import httpx2
import pytest
import trio

from mcp_actors.abc import Frame, NoAnswer, NotificationsMissed
from mcp_actors.errors import ConnectionLost, RemoteProtocolError, SessionExpired
from mcp_transports.http.client import HttpChannel

from .scripted import LEGACY, URL, Asked, Stream, connected, handshake, json_answer, request, sse

CANCEL = Frame(
    b'{"method":"notifications/cancelled"}', method="notifications/cancelled", cancels=2, metadata=LEGACY
)


class Server:
    """A legacy server: a session, 202 for messages, and whatever the test gives for calls and GETs."""

    def __init__(self, *calls: httpx2.Response, gets: tuple[httpx2.Response | Exception, ...] = ()) -> None:
        self.calls = list(calls)
        self.gets = list(gets)
        self.cut = trio.Event()

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method == "DELETE":
            return httpx2.Response(405)
        if asked.method == "GET":
            answer = self.gets.pop(0) if self.gets else httpx2.Response(405)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if b'"initialize"' in asked.body:
            return json_answer(headers={"mcp-session-id": "s-1"})
        if b'"tools/call"' in asked.body:
            if not self.calls:
                await trio.sleep_forever()
            return self.calls.pop(0)
        return httpx2.Response(202)


async def call(channel: HttpChannel, id: int = 2) -> None:
    await channel.send(request(id, metadata=LEGACY))


async def missed(channel: HttpChannel) -> dict[str, bool]:
    """Whether the next frame says that notifications may have been missed, and of what."""
    frame = await channel.receive()
    assert isinstance(frame, NotificationsMissed)
    assert frame.reason is None
    return {"first": frame.first}


async def given_up(channel: HttpChannel) -> tuple[bool, str]:
    """Whether the next frame says that there is no stream, if there ever was one, and why."""
    frame = await channel.receive()
    assert isinstance(frame, NotificationsMissed)
    assert frame.reason is not None
    return not frame.first, str(frame.reason)


def lost(frame: Frame) -> str:
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, ConnectionLost)
    return str(frame.reason)


async def test_the_session_comes_with_everything_after_initialize() -> None:
    async with connected(Server(json_answer(2)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await channel.receive()
    assert [(asked.method, asked.headers.get("mcp-session-id")) for asked in script.asked] == [
        ("POST", None),
        ("POST", "s-1"),
        ("POST", "s-1"),
        ("DELETE", "s-1"),
    ]
    assert script.asked[2].headers["mcp-protocol-version"] == "2025-11-25"
    assert script.asked[3].headers["mcp-protocol-version"] == "2025-11-25"


async def test_modern_requests_ignore_sessions() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer(headers={"mcp-session-id": "s-1"})

    async with connected(handler) as (channel, script):
        for id in (1, 2):
            await channel.send(request(id, modern=True))
            await channel.receive()
    assert [(asked.method, asked.headers.get("mcp-session-id")) for asked in script.asked] == [
        ("POST", None)
    ] * 2


async def test_the_era_without_sessions_gets_none_that_the_other_began() -> None:
    async with connected(Server(json_answer(2)), listen=False) as (channel, script):
        await handshake(channel)
        await channel.send(request(2, modern=True))
        await channel.receive()
    assert "mcp-session-id" not in script.of("POST")[2].headers


async def test_a_session_id_of_other_characters_is_refused() -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        return json_answer(headers={"mcp-session-id": "a b"})

    async with connected(handler) as (channel, _):
        await channel.send(request(1, "initialize"))
        frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert isinstance(frame.reason, RemoteProtocolError)


async def test_initialized_is_accepted_before_anything_else_is_sent(autojump_clock: trio.abc.Clock) -> None:
    server = Server(json_answer(2))

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "POST" and asked.body == b"{}":
            await trio.sleep(3)
        return await server(asked)

    async with connected(handler, listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await channel.receive()
    assert script.of("POST")[2].at - script.of("POST")[1].at == 3


async def test_a_404_ends_the_session_and_all_that_waits(autojump_clock: trio.abc.Clock) -> None:
    server = Server()

    async def handler(asked: Asked) -> httpx2.Response:
        if b'"id":3' in asked.body:
            return httpx2.Response(
                404, headers={"content-type": "application/json"}, content=b'{"jsonrpc":"2.0"}'
            )
        return await server(asked)

    async with connected(handler, listen=False) as (channel, script):
        await handshake(channel)
        await call(channel, 2)
        await trio.testing.wait_all_tasks_blocked()
        await call(channel, 3)
        # What was refused for it was never run. Of what was under way nobody can tell.
        for about, never_run in ((3, True), (2, False)):
            frame = await channel.receive()
            assert isinstance(frame, NoAnswer)
            assert frame.about == about
            assert isinstance(frame.reason, SessionExpired)
            assert frame.reason.never_run is never_run
        with pytest.raises(trio.BrokenResourceError) as caught:
            await channel.receive()
        assert isinstance(caught.value.__cause__, SessionExpired)
        with pytest.raises(trio.BrokenResourceError):
            await call(channel, 4)
        await trio.testing.wait_all_tasks_blocked()
        assert script.under_way == 0
    # What is gone is not deleted.
    assert script.of("DELETE") == []


async def test_a_404_on_a_message_ends_the_session_too() -> None:
    server, unread = Server(), Stream(b"a page about what is missing")

    async def handler(asked: Asked) -> httpx2.Response:
        return httpx2.Response(404, stream=unread) if asked.body == b"pong" else await server(asked)

    async with connected(handler, listen=False) as (channel, _):
        await handshake(channel)
        await channel.send(Frame(b"pong", metadata=LEGACY))
        with pytest.raises(trio.BrokenResourceError):
            await channel.receive()
    assert unread.closed.is_set()


# -- cancelling ----------------------------------------------------------------------------------------------


async def test_a_legacy_cancellation_is_a_message_and_follows_its_request(
    autojump_clock: trio.abc.Clock,
) -> None:
    stream = Stream()
    async with connected(Server(sse(stream)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(CANCEL)
        await trio.testing.wait_all_tasks_blocked()
        assert [asked.body for asked in script.of("POST")][2:] == [request(2).data, CANCEL.data]
        # The server knows: what it may still write there is of no use.
        assert stream.closed.is_set()


async def test_a_cancellation_does_not_overtake_a_slow_upload(autojump_clock: trio.abc.Clock) -> None:
    async with connected(Server(), listen=False) as (channel, script):
        await handshake(channel)
        script.uploads[b"tools/call"] = 0.5
        await call(channel)
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(CANCEL)
        await trio.sleep(2)
        assert [asked.body for asked in script.of("POST")][2:] == [request(2).data, CANCEL.data]


async def test_a_modern_cancellation_closes_the_stream_and_sends_nothing(
    autojump_clock: trio.abc.Clock,
) -> None:
    stream = Stream()

    async def handler(asked: Asked) -> httpx2.Response:
        return sse(stream)

    async with connected(handler) as (channel, script):
        await channel.send(request(2, modern=True))
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(Frame(CANCEL.data, method=CANCEL.method, cancels=2))
        await trio.testing.wait_all_tasks_blocked()
        assert stream.closed.is_set()
        # It may be over already when it is cancelled.
        await channel.send(Frame(CANCEL.data, method=CANCEL.method, cancels=2))
        await trio.testing.wait_all_tasks_blocked()
    assert len(script.asked) == 1


async def test_what_still_waits_for_room_is_never_sent(autojump_clock: trio.abc.Clock) -> None:
    async with connected(Server(), listen=False, max_posts=1) as (channel, script):
        await handshake(channel)
        await call(channel, 9)
        await trio.testing.wait_all_tasks_blocked()
        await call(channel, 2)
        await channel.send(CANCEL)
        await channel.send(Frame(b"pong", metadata=LEGACY))
        await trio.testing.wait_all_tasks_blocked()
        # An answer to the server does not wait behind requests.
        assert [asked.body for asked in script.of("POST")][2:] == [request(9).data, b"pong"]


# -- coming back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [None, httpx2.ReadError("cut")])
@pytest.mark.parametrize(
    ("retry", "wait"),
    [(b"retry: 500\n", 0.5), (b"", 1.0), (b"retry: 0\n", 0.1), (b"retry: 99999999\n", 3600.0)],
)
async def test_a_stream_that_ends_early_is_come_back_to_at_its_time(
    retry: bytes, wait: float, end: Exception | None, autojump_clock: trio.abc.Clock
) -> None:
    first = Stream(b"id: e-1\n" + retry + b"data:\n\ndata: progress\n\n")
    again = Stream(b'id: e-2\ndata: {"id":2}\n\n')
    async with connected(Server(sse(first), gets=(sse(again),)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        assert (await channel.receive()).data == b"progress"
        await trio.sleep(7)
        ended = trio.current_time()
        first.end(end)
        frame = await channel.receive()
        assert frame == Frame(b'{"id":2}', about=2)
        assert again.closed.is_set() is False
        channel.settled(2)
        # The server leaves the stream open; we do not.
        await trio.sleep(2)
        assert again.closed.is_set()
    (get,) = script.of("GET")
    assert get.headers["last-event-id"] == "e-1"
    assert get.headers["mcp-session-id"] == "s-1"
    assert get.headers["accept"] == "text/event-stream"
    assert get.at - ended == pytest.approx(wait, abs=1e-6)


async def test_an_answered_stream_is_not_come_back_to(autojump_clock: trio.abc.Clock) -> None:
    stream = Stream(b'id: e-1\nretry: 0\ndata: {"id":2}\n\n', end=True)
    async with connected(Server(sse(stream)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await channel.receive()
        channel.settled(2)
        with trio.move_on_after(60):
            await channel.receive()
    assert script.of("GET") == []


async def test_a_stream_without_ids_lost_its_answer(autojump_clock: trio.abc.Clock) -> None:
    async with connected(Server(sse(Stream(b"data: x\n\n", end=True))), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await channel.receive()
        assert "the answer was lost" in lost(await channel.receive())
    assert script.of("GET") == []


async def test_failing_attempts_back_off_and_give_up(autojump_clock: trio.abc.Clock) -> None:
    gets = (httpx2.ConnectError("refused"), httpx2.Response(503), httpx2.ReadError("cut"))
    stream = Stream(b"id: 1\nretry: 100\ndata:\n\n", end=True)
    async with connected(Server(sse(stream), gets=gets), listen=False) as (channel, script):
        await handshake(channel)
        began = trio.current_time()
        await call(channel)
        assert "could not be resumed" in lost(await channel.receive())
    times = [round(get.at - began, 3) for get in script.of("GET")]
    assert times == [0.1, 0.3, 0.7]


async def test_an_attempt_that_brings_something_counts_no_failures(autojump_clock: trio.abc.Clock) -> None:
    gets = (
        httpx2.Response(503),
        httpx2.Response(503),
        sse(Stream(b"id: 2\ndata: more\n\n", end=True)),
        httpx2.Response(503),
        sse(Stream(b"id: 3\ndata: answer\n\n")),
    )
    stream = Stream(b"id: 1\ndata:\n\n", end=True)
    async with connected(Server(sse(stream), gets=gets), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        assert [(await channel.receive()).data for _ in range(2)] == [b"more", b"answer"]
    assert [get.headers["last-event-id"] for get in script.of("GET")] == ["1", "1", "1", "2", "2"]


async def test_a_server_that_does_not_resume_lost_the_answer(autojump_clock: trio.abc.Clock) -> None:
    stream = Stream(b"id: 1\ndata:\n\n", end=True)
    async with connected(Server(sse(stream)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        assert "HTTP 405" in lost(await channel.receive())
    assert len(script.of("GET")) == 1


@pytest.mark.parametrize("retry", [b"500", b"5000"])
async def test_nobody_comes_back_for_what_was_given_up(retry: bytes, autojump_clock: trio.abc.Clock) -> None:
    stream = Stream(b"id: 1\nretry: " + retry + b"\ndata:\n\n", end=True)
    async with connected(Server(sse(stream)), listen=False) as (channel, script):
        await handshake(channel)
        await call(channel)
        await trio.sleep(0.2)
        channel.settled(2)
        await trio.sleep(60)
        assert script.of("GET") == []
        assert "0 requests" in repr(channel)


# -- the session's own stream --------------------------------------------------------------------------------


async def test_the_sessions_stream_is_opened_after_initialized_and_kept(
    autojump_clock: trio.abc.Clock,
) -> None:
    first, second = Stream(b"id: 1\nretry: 2500\ndata: changed\n\n"), Stream(b"data: again\n\n")
    server = Server(gets=(sse(first), httpx2.ConnectError("refused"), sse(second)))
    async with connected(server) as (channel, script):
        await handshake(channel)
        assert await missed(channel) == {"first": True}
        assert (await channel.receive()).data == b"changed"
        began = trio.current_time()
        first.end()
        assert (await channel.receive()).data == b"again"
        gets = script.of("GET")
        assert [get.headers.get("last-event-id") for get in gets] == [None, "1", "1"]
        assert [round(get.at - began, 3) for get in gets[1:]] == [2.5, 7.5]
    assert second.closed.is_set()


async def test_a_stream_that_cannot_be_resumed_begins_anew_and_says_so(
    autojump_clock: trio.abc.Clock,
) -> None:
    first, second = Stream(b"data: changed\n\n", end=True), Stream(b"data: again\n\n")
    async with connected(Server(gets=(sse(first), sse(second)))) as (channel, script):
        await handshake(channel)
        assert await missed(channel) == {"first": True}
        assert (await channel.receive()).data == b"changed"
        assert await missed(channel) == {"first": False}
        assert (await channel.receive()).data == b"again"
        assert [get.headers.get("last-event-id") for get in script.of("GET")] == [None, None]


async def test_a_server_that_has_forgotten_an_event_is_asked_for_a_stream_without_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    first, second = Stream(b"id: 1\ndata: changed\n\n", end=True), Stream(b"data: again\n\n")
    async with connected(Server(gets=(sse(first), httpx2.Response(400), sse(second)))) as (channel, script):
        await handshake(channel)
        assert await missed(channel) == {"first": True}
        assert (await channel.receive()).data == b"changed"
        assert await missed(channel) == {"first": False}
        assert (await channel.receive()).data == b"again"
        assert [get.headers.get("last-event-id") for get in script.of("GET")] == [None, "1", None]


async def test_a_server_without_a_stream_is_asked_once(autojump_clock: trio.abc.Clock) -> None:
    async with connected(Server()) as (channel, script):
        await handshake(channel)
        await trio.sleep(1000)
        assert len(script.of("GET")) == 1


async def test_a_stream_that_is_gone_with_its_session_ends_the_channel(
    autojump_clock: trio.abc.Clock,
) -> None:
    server = Server(gets=(sse(Stream(b"id: 1\ndata:\n\n", end=True)), httpx2.Response(404)))
    async with connected(server) as (channel, _):
        await handshake(channel)
        assert await missed(channel) == {"first": True}
        with pytest.raises(trio.BrokenResourceError) as caught:
            await channel.receive()
        assert isinstance(caught.value.__cause__, SessionExpired)


async def test_a_404_for_the_first_get_is_no_ending(autojump_clock: trio.abc.Clock) -> None:
    async with connected(Server(json_answer(2), gets=(httpx2.Response(404),))) as (channel, _):
        await handshake(channel)
        why = f"{URL} gives the session no stream for its notifications (HTTP 404)"
        assert await given_up(channel) == (False, why)
        await call(channel)
        assert b'"id":2' in (await channel.receive()).data


async def test_the_sessions_stream_waits_while_another_is_about_to_come_back(
    autojump_clock: trio.abc.Clock,
) -> None:
    answered = Stream(b"id: 1\nretry: 500\ndata:\n\n", end=True)
    gets = (
        sse(Stream(b"id: a\nretry: 100\ndata:\n\n", end=True)),
        sse(Stream(b"data: answer\n\n")),
        sse(Stream()),
    )
    async with connected(Server(sse(answered), gets=gets)) as (channel, script):
        await handshake(channel)
        await call(channel)
        assert await missed(channel) == {"first": True}
        assert (await channel.receive()).data == b"answer"
        await trio.sleep(1)
        assert [get.headers.get("last-event-id") for get in script.of("GET")] == [None, "1", "a"]
