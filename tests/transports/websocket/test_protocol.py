"""The protocol object: every state with every event, and what goes over the wire in each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.errors import LocalProtocolError
from mcp_transports.websocket import protocol as websocket_protocol
from mcp_transports.websocket.protocol import CloseFrame, WebSocketEvent, WebSocketProtocol, WebSocketState

from .raw import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, closing, frame

State, Event = WebSocketState, WebSocketEvent
LIMIT = 1000
# A pair that is missing is refused if it is ours, and without effect if it is the peer's.
EXPECTED: dict[tuple[WebSocketState, WebSocketEvent], WebSocketState] = {
    (State.CONNECTING, Event.OPENED): State.OPEN,
    (State.CONNECTING, Event.STREAM_ENDED): State.CLOSED,
    (State.OPEN, Event.SEND): State.OPEN,
    (State.OPEN, Event.SEND_CLOSE): State.CLOSING,
    (State.OPEN, Event.RECEIVE): State.OPEN,
    (State.OPEN, Event.RECEIVE_CLOSE): State.CLOSED,
    (State.OPEN, Event.RECEIVE_INVALID): State.CLOSED,
    (State.OPEN, Event.STREAM_ENDED): State.CLOSED,
    (State.CLOSING, Event.RECEIVE): State.CLOSING,
    (State.CLOSING, Event.RECEIVE_CLOSE): State.CLOSED,
    (State.CLOSING, Event.RECEIVE_INVALID): State.CLOSED,
    (State.CLOSING, Event.STREAM_ENDED): State.CLOSED,
}


def protocol_in(state: WebSocketState, *, client: bool = False) -> WebSocketProtocol:
    """A protocol that came to ``state`` by what is said and heard, with nothing left to be sent."""
    protocol = WebSocketProtocol(client=client, max_message_bytes=LIMIT)
    if state is not State.CONNECTING:
        protocol.opened()
    if state is State.CLOSING:
        protocol.queue_close()
    if state is State.CLOSED:
        protocol.receive_data(b"")
    protocol.control_to_send()
    assert protocol.state is state
    return protocol


def send(protocol: WebSocketProtocol) -> None:
    assert protocol.encode_message(b"{}") == frame(TEXT, b"{}", masked=False)


def receive(protocol: WebSocketProtocol) -> None:
    """A message and a ping, of which only an open protocol takes notice."""
    is_open = protocol.state is State.OPEN
    assert protocol.receive_data(frame(TEXT, b"{}") + frame(PING, b"?")) == ([b"{}"] if is_open else [])
    assert protocol.control_to_send() == (frame(PONG, b"?", masked=False) if is_open else b"")


def receive_close(protocol: WebSocketProtocol) -> None:
    """Its answer is our Close frame, unless we have sent one before."""
    before = protocol.state
    assert protocol.receive_data(closing(4000, "so") + frame(TEXT, b"{}")) == []
    assert (protocol.peer_close == CloseFrame(4000, "so")) is (before in (State.OPEN, State.CLOSING))
    answered = closing(4000, "so", masked=False) if before is State.OPEN else b""
    assert protocol.control_to_send() == answered


def receive_invalid(protocol: WebSocketProtocol) -> None:
    before = protocol.state
    assert protocol.receive_data(frame(5, b"{}") + frame(TEXT, b"{}")) == []
    assert (protocol.violation is not None) is (before in (State.OPEN, State.CLOSING))
    said = protocol.control_to_send()
    assert said[2:4] == ((1002).to_bytes(2, "big") if before is State.OPEN else b"")


def end_stream(protocol: WebSocketProtocol) -> None:
    assert protocol.receive_data(b"") == []
    assert not protocol.has_control_to_send


DRIVERS: dict[WebSocketEvent, Callable[[WebSocketProtocol], object]] = {
    Event.OPENED: WebSocketProtocol.opened,
    Event.SEND: send,
    Event.SEND_CLOSE: WebSocketProtocol.queue_close,
    Event.RECEIVE: receive,
    Event.RECEIVE_CLOSE: receive_close,
    Event.RECEIVE_INVALID: receive_invalid,
    Event.STREAM_ENDED: end_stream,
}
# What a peer does is never refused: where the table has no row for it, nothing happens.
OF_THE_PEER = {Event.RECEIVE, Event.RECEIVE_CLOSE, Event.RECEIVE_INVALID, Event.STREAM_ENDED}


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_each_row_of_the_table_is_obeyed(state: WebSocketState, event: WebSocketEvent) -> None:
    protocol = protocol_in(state)
    following = EXPECTED.get((state, event))
    if following is None and event not in OF_THE_PEER:
        with pytest.raises(LocalProtocolError, match=state.value):
            DRIVERS[event](protocol)
        assert not protocol.has_control_to_send
    else:
        DRIVERS[event](protocol)
    assert protocol.state is (following or state)


def test_a_close_frame_is_the_last_frame_of_all() -> None:
    protocol = protocol_in(State.OPEN)
    protocol.receive_data(frame(PING, b"?"))
    protocol.queue_ping()
    protocol.queue_close()
    protocol.queue_ping()
    assert protocol.control_to_send() == closing(1000, masked=False)
    assert protocol.control_to_send() == b""


def test_both_sides_may_close_at_once() -> None:
    protocol = protocol_in(State.OPEN)
    protocol.queue_close()
    protocol.receive_data(closing(1001))
    assert protocol.state is State.CLOSED
    assert protocol.control_to_send() == closing(1000, masked=False)


@pytest.mark.parametrize(
    ("payload", "read", "answer"),
    [
        (b"", CloseFrame(1005), b""),
        (b"\x03\xe8", CloseFrame(1000), b"\x03\xe8"),
        (b"\x0b\xb8bye", CloseFrame(3000, "bye"), b"\x0b\xb8bye"),
    ],
)
def test_how_close_frames_are_read_and_answered(payload: bytes, read: CloseFrame, answer: bytes) -> None:
    protocol = protocol_in(State.OPEN)
    protocol.receive_data(frame(CLOSE, payload))
    assert protocol.peer_close == read
    assert protocol.control_to_send() == frame(CLOSE, answer, masked=False)


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535])
def test_codes_that_must_not_be_sent(code: int) -> None:
    protocol = protocol_in(State.OPEN)
    protocol.receive_data(closing(code))
    assert protocol.our_close is not None
    assert protocol.our_close.code == 1002
    assert protocol.peer_close is None


def test_a_long_reason_is_cut_between_two_characters() -> None:
    assert CloseFrame(1002, "é" * 100).encoded() == b"\x03\xea" + "é".encode() * 61


def test_a_client_masks_every_frame_with_another_key() -> None:
    protocol = protocol_in(State.OPEN, client=True)
    server = protocol_in(State.OPEN)
    for size in (1, 125, 126, 900):
        message = bytes(range(97, 122)) * 40
        sent = [protocol.encode_message(message[:size]) for _ in range(5)]
        assert all(each[1] & 0x80 for each in sent)
        assert len({each[2:] for each in sent}) == 5
        assert server.receive_data(b"".join(sent)) == [message[:size]] * 5


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_lengths_are_said_with_as_few_bytes_as_possible(size: int) -> None:
    protocol = WebSocketProtocol(client=False, max_message_bytes=LIMIT)
    protocol.opened()
    assert protocol.encode_message(b"x" * size) == frame(TEXT, b"x" * size, masked=False)


def test_a_message_in_pieces_of_one_byte() -> None:
    protocol = protocol_in(State.OPEN)
    whole = frame(TEXT, '"€'.encode()[:3], fin=False) + frame(CONTINUATION, '"€"'.encode()[3:])
    found = [message for byte in whole for message in protocol.receive_data(bytes([byte]))]
    assert found == ['"€"'.encode()]


def test_text_is_checked_before_the_message_is_complete() -> None:
    protocol = protocol_in(State.OPEN)
    protocol.receive_data(frame(TEXT, b"\xff", fin=False))
    assert protocol.our_close is not None
    assert protocol.our_close.code == 1007


def test_messages_before_a_broken_rule_are_returned() -> None:
    protocol = protocol_in(State.OPEN)
    assert protocol.receive_data(frame(TEXT, b"1") + frame(TEXT, b"2") + frame(BINARY, b"3")) == [b"1", b"2"]
    assert protocol.our_close is not None
    assert protocol.our_close.code == 1003


# Frames as they should be, with text near the bounds of a length, and with each part of a head wrong.
OPCODES = st.sampled_from([TEXT, TEXT, TEXT, TEXT, CONTINUATION, BINARY, CLOSE, PING, PONG, 3])
PAYLOADS = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([0, 1, 125, 126, 400, 999, 1000, 1001, 2048, 2049]).map(lambda size: b"x" * size),
    st.sampled_from(["\u20ac".encode(), b"\xff", b"{}", b"\x03\xe8ok"]),
)
FRAMES = st.builds(
    frame,
    OPCODES,
    PAYLOADS,
    fin=st.sampled_from([True, True, True, False]),
    masked=st.sampled_from([True] * 9 + [False]),
    bits=st.sampled_from([0] * 9 + [0x40]),
    length=st.sampled_from([-1] * 9 + [0, 5, 70_000]),
)
# A length in more bytes than it needs, and one above what is possible.
ODD = st.sampled_from([b"\x81\xfe\x00\x05", b"\x81\xff" + bytes(7) + b"\x05", b"\x81\xff\x80" + bytes(7)])


def read_all(data: bytes, cuts: list[int], *, client: bool) -> list[object]:
    """What a protocol makes of ``data`` in pieces that end at ``cuts``, at each of which its state is noted."""
    protocol = protocol_in(State.OPEN, client=client)
    notes: list[object] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        messages = protocol.receive_data(data[begin:end]) if begin < end else []
        while protocol.has_rest:
            messages += protocol.receive_rest()
        notes += [messages, protocol.state, protocol.violation, protocol.peer_close, protocol.our_close]
        # A client masks with another key each time: the state says enough of it.
        notes.append(protocol.has_control_to_send if client else protocol.control_to_send())
    return notes


@given(
    frames=st.lists(st.one_of(FRAMES, ODD), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=4),
    client=st.booleans(),
)
def test_a_text_frame_in_whole_is_read_as_wsproto_reads_it(
    frames: list[bytes], cuts: list[int], client: bool
) -> None:
    if client:
        # Most frames of a server have no mask.
        frames = [
            frame(each[0] & 15, each[6:40], masked=False) if each[1] < 0xFE else each for each in frames
        ]
    data = b"".join(frames)
    cuts = sorted(min(each, len(data)) for each in cuts)
    found = read_all(data, cuts, client=client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(websocket_protocol, "_text_frame", lambda *_, **__: None)
        assert found == read_all(data, cuts, client=client)


def test_frames_in_whole_are_taken_a_turn_at_a_time() -> None:
    protocol = protocol_in(State.OPEN)
    messages = protocol.receive_data(frame(TEXT, b"{}") * 300)
    assert (len(messages), protocol.has_rest) == (256, True)
    assert (len(protocol.receive_rest()), protocol.has_rest) == (44, False)


def test_what_looks_like_a_frame_inside_of_a_message_is_text() -> None:
    # The second byte of this letter is the first of a text frame.
    text = "\xc1\x02{}".encode()
    assert text[1:] == frame(TEXT, b"{}", masked=False)
    protocol = protocol_in(State.OPEN, client=True)
    outer = frame(TEXT, text, masked=False)
    assert [protocol.receive_data(piece) for piece in (outer[:3], outer[3:])] == [[], [text]]
