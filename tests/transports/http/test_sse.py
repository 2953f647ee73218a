"""Server-sent events: what is written can be read, wherever it is split and however its lines end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.responses import Refusal
from mcp_transports.http.sse import COMMENT, ServerSentEvent, SseDecoder, encode_event, encode_retry
from tests.transports.http.fakes import FakeListener, FakeResponse

BOM = b"\xef\xbb\xbf"


def decode(*pieces: bytes, limit: int = 10_000) -> list[ServerSentEvent]:
    return feed_all(SseDecoder(limit), pieces)


def feed_all(decoder: SseDecoder, pieces: Iterable[bytes]) -> list[ServerSentEvent]:
    return [event for piece in pieces for event in decoder.feed(piece)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("written", "wire"),
    [
        (encode_event(b"{}"), b"data: {}\n\n"),
        (encode_event(b"", id="1"), b"id: 1\ndata: \n\n"),
        (
            encode_event(b"/messages?session_id=1", event="endpoint"),
            b"event: endpoint\ndata: /messages?session_id=1\n\n",
        ),
        (encode_event(b"x", retry=0, id="i", event="e"), b"event: e\nid: i\nretry: 0\ndata: x\n\n"),
        (encode_event(b"", id=""), b"id: \ndata: \n\n"),
        (encode_retry(500), b"retry: 500\n\n"),
        (COMMENT, b":\n\n"),
    ],
)
def test_what_is_written(written: bytes, wire: bytes) -> None:
    assert written == wire


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\r\ndata: x", "\n"])
def test_a_value_that_would_spill_into_another_line_is_not_written(bad: str) -> None:
    with pytest.raises(LocalProtocolError, match="one line"):
        encode_event(bad.encode())
    with pytest.raises(LocalProtocolError, match="one line"):
        encode_event(b"", id=bad)
    with pytest.raises(LocalProtocolError, match="one line"):
        encode_event(b"", event=bad)


def test_a_value_that_would_be_ignored_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="NUL"):
        encode_event(b"", id="a\0")
    with pytest.raises(LocalProtocolError, match="negative"):
        encode_event(b"", retry=-1)
    with pytest.raises(LocalProtocolError, match="negative"):
        encode_retry(-1)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        (b"data: a\n\n", [ServerSentEvent(b"a")]),
        (b"data:a\n\n", [ServerSentEvent(b"a")]),
        (b"data:  a \n\n", [ServerSentEvent(b" a ")]),
        (b"data: a:b\n\n", [ServerSentEvent(b"a:b")]),
        (b"data: a\ndata: b\n\n", [ServerSentEvent(b"a\nb")]),
        (b"data\ndata: b\ndata\n\n", [ServerSentEvent(b"\nb\n")]),
        (b"data: a\n\ndata: b\n\n", [ServerSentEvent(b"a"), ServerSentEvent(b"b")]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [ServerSentEvent(b"a"), ServerSentEvent(b"b")]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"", []),
        (b"\n\n\n", []),
        (b":\n\n", []),
        (b": comment\n: another\ndata: a\n:within\n\n", [ServerSentEvent(b"a")]),
        (b"event: endpoint\ndata: /x\n\n", [ServerSentEvent(b"/x", "endpoint")]),
        (b"event: message\ndata: x\n\n", [ServerSentEvent(b"x")]),
        (b"event\ndata: x\n\n", [ServerSentEvent(b"x")]),
        (b"event: a\nevent: b\ndata: x\n\ndata: y\n\n", [ServerSentEvent(b"x", "b"), ServerSentEvent(b"y")]),
        (b"id: 7\ndata: \n\n", [ServerSentEvent(b"", id="7")]),
        (b"id: 7\n\n", [ServerSentEvent(b"", id="7")]),
        (b"id\n\n", [ServerSentEvent(b"", id="")]),
        (b"id: a\0b\n\n", []),
        (b"id: 1\nid: a\0b\ndata: x\n\n", [ServerSentEvent(b"x", id="1")]),
        (b"retry: 250\n\n", [ServerSentEvent(b"", retry=250)]),
        (b"retry: 0\n\n", [ServerSentEvent(b"", retry=0)]),
        (b"retry: -1\n\nretry: 1.5\n\nretry: 1s\n\nretry: +1\n\nretry: \n\nretry\n\n", []),
        (b"retry:  1\n\nretry: \xd9\xa1\n\nretry: " + b"9" * 5000 + b"\n\n", []),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"data : a\n\n", []),
        (b"other: a\n\n", []),
        (b"data: \xff\xfe\n\n", [ServerSentEvent(b"\xff\xfe")]),
        # Ends of lines for text, but not here.
        (
            b"data: a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n\n",
            [ServerSentEvent(b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f")],
        ),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\r\n", [ServerSentEvent(each) for each in (b"a", b"b", b"c")]),
        (b"data: a\r\n\ndata: b\n\rdata: c\n\n", [ServerSentEvent(each) for each in (b"a", b"b", b"c")]),
        (BOM + b"data: a\n\n", [ServerSentEvent(b"a")]),
        (BOM + BOM + b"data: a\n\n", []),
        (b"data: a\n\n" + BOM + b"data: b\n\n", [ServerSentEvent(b"a")]),
        (BOM[:2] + b"data: a\n\ndata: b\n\n", [ServerSentEvent(b"b")]),
        (b"\n" + BOM + b"data: a\n\n", []),
    ],
)
def test_what_is_read(wire: bytes, events: list[ServerSentEvent]) -> None:
    assert decode(wire) == events
    assert decode(*bytewise(wire)) == events


def test_only_data_under_no_other_name_is_a_message() -> None:
    assert ServerSentEvent(b"{}").is_message
    assert not ServerSentEvent(b"", id="1").is_message
    assert not ServerSentEvent(b"/x", "endpoint").is_message


def test_id_and_delay_are_kept_across_events() -> None:
    decoder = SseDecoder(1000)
    assert (decoder.last_event_id, decoder.retry) == ("", None)
    decoder.feed(b"id: 1\nretry: 10\ndata: \n\n")
    assert (decoder.last_event_id, decoder.retry) == ("1", 10)
    decoder.feed(b"data: a\n\n:\n\nevent: x\n\n")
    assert (decoder.last_event_id, decoder.retry) == ("1", 10)
    decoder.feed(b"id: \xc3\xa9\n")
    assert decoder.last_event_id == "1"
    decoder.feed(b"\n")
    assert decoder.last_event_id == "\u00e9"
    decoder.feed(b"id\n\n")
    assert decoder.last_event_id == ""


def test_an_event_that_was_never_finished_counts_for_its_delay_only() -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(b"id: 1\n\nid: 2\nretry: 5\ndata: x\n") == [ServerSentEvent(b"", id="1")]
    assert (decoder.last_event_id, decoder.retry) == ("1", 5)


def test_crlf_split_in_the_middle_is_one_ending() -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(b"data: a\r") == []
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: b\r") == []
    assert decoder.feed(b"\n\r") == [ServerSentEvent(b"a\nb")]
    assert decoder.feed(b"\n") == []


@pytest.mark.parametrize(
    "wire",
    [
        b"data: " + b"x" * 95,
        b"data: " + b"x" * 95 + b"\n\n",
        b":" + b"x" * 100,
        b"other: " + b"x" * 100,
        b":" + b"x" * 100 + b"\n",
        b"other: " + b"x" * 100 + b"\n\ndata: a\n\n",
        b"data: xxxx\n" * 11,
        b"data\n" * 26,
        b"id: 1\n" * 21,
        b"event: " + b"x" * 50 + b"\ndata: " + b"x" * 50 + b"\n",
        b"\n" + b"x" * 101,
    ],
)
def test_what_is_longer_than_the_limit_is_refused_and_given_back(wire: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="100 bytes"):
        decode(wire, limit=100)
    decoder = SseDecoder(100)
    with pytest.raises(RemoteProtocolError, match="100 bytes"):
        feed_all(decoder, bytewise(wire))
    assert repr(decoder) == "<SseDecoder: failed, last event id ''>"
    assert decoder.failure is not None
    assert not decoder._partial
    with pytest.raises(RemoteProtocolError, match="100 bytes"):
        decoder.feed(b"data: a\n\n")


def test_what_just_fits_is_taken_and_comments_do_not_add_up() -> None:
    wire = b"data: " + b"x" * 94 + b"\n\n"
    assert decode(wire * 3, limit=100) == [ServerSentEvent(b"x" * 94)] * 3
    quiet = b"data: a\n" + b": still here\n" * 100 + b"other: x\n" * 100 + b"\n"
    assert decode(quiet, limit=100) == [ServerSentEvent(b"a")]


def test_events_before_one_that_is_too_long_are_delivered() -> None:
    decoder = SseDecoder(20)
    assert decoder.feed(b"id: 1\ndata: a\n\ndata: " + b"x" * 50) == [ServerSentEvent(b"a", id="1")]
    assert decoder.failure is not None
    assert decoder.last_event_id == "1"
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"")


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SseDecoder(0)


def test_its_repr_is_its_state() -> None:
    decoder = SseDecoder(100)
    decoder.feed(b"id: 1\n\ndata: ab\nda")
    assert repr(decoder) == "<SseDecoder: 10 bytes of the next event, last event id '1'>"


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)
NAME = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=10)
WRITTEN = st.fixed_dictionaries(
    {"data": LINE.map(str.encode)}, optional={"id": NAME, "event": NAME, "retry": st.integers(0, 10**9)}
)


def cuts(wire: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(wire), *(place % (len(wire) + 1) for place in places)})
    return [wire[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(WRITTEN, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_what_is_encoded_comes_back_wherever_it_is_split(
    written: list[dict[str, object]], places: list[int]
) -> None:
    wire = b"".join(encode_event(**each) + COMMENT for each in written)  # type: ignore[arg-type]
    expected = [
        ServerSentEvent(each["data"], each.get("event") or "message", each.get("id"), each.get("retry"))  # type: ignore[arg-type]
        for each in written
    ]
    assert decode(*cuts(wire, places)) == expected


PIECES = [
    b"data",
    b"data:",
    b"data: ",
    b"id: ",
    b"id",
    b"event: x",
    b"retry: 12",
    b":",
    b" ",
    b"a",
    b"\0",
    b"\xc3\xa9",
]
ENDINGS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n"]
SOUP = st.lists(st.sampled_from(PIECES + ENDINGS * 2), max_size=40).map(b"".join)


@given(st.sampled_from([b"", BOM, BOM[:2], BOM * 2]), SOUP, st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_of_anything_gives_the_same(start: bytes, soup: bytes, places: list[int]) -> None:
    wire = start + soup
    whole, split = SseDecoder(1000), SseDecoder(1000)
    events = whole.feed(wire)
    assert feed_all(split, cuts(wire, places)) == events
    assert repr(split) == repr(whole)
    assert split.retry == whole.retry
    assert decode(*bytewise(wire)) == events


@given(SOUP, st.sampled_from([b"\r", b"\r\n"]))
def test_the_kind_of_ending_makes_no_difference(soup: bytes, ending: bytes) -> None:
    plain = soup.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decode(plain.replace(b"\n", ending)) == decode(plain)


@given(SOUP, st.integers(1, 40), st.lists(st.integers(0, 10**6), max_size=12))
def test_no_more_than_the_limit_is_ever_held(soup: bytes, limit: int, places: list[int]) -> None:
    decoder = SseDecoder(limit)
    try:
        for piece in cuts(soup, places):
            for event in decoder.feed(piece):
                assert len(event.data) <= limit
            assert len(decoder._partial) <= limit
            assert decoder._unfinished.size <= limit
    except RemoteProtocolError:
        plain = soup.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        assert max(len(block) for block in plain.split(b"\n\n")) > limit


# -- HTTP+SSE of 2024-11-05: one stream is the connection, messages are POSTed beside it -----------------

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
