"""The load's own reading of wires, however the bytes are cut; and that an open loop hides nothing."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.suite.bench import Bench, ThisProcess
from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.scenarios import loops
from benchmarks.suite.server import HandlerEvents
from mcp_actors.cli.bench.field import Arrival, Field, run_blocking
from mcp_actors.cli.bench.http import ResponseReader
from mcp_actors.cli.bench.plan import Calls, LoadError, Message, check_sums, id_of
from mcp_actors.cli.bench.streams import Framing, Lines, WebSocketFrames

MESSAGES = st.lists(
    st.binary(min_size=1, max_size=300).map(lambda data: data.replace(b"\n", b" ")), max_size=5
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def unmasked(data: bytes) -> bytes:
    """The frame as a server would send it: the mask was of zeros."""
    size = data[1] & 0x7F
    head = 2 + {126: 2, 127: 8}.get(size, 0)
    return bytes((data[0], size)) + data[2:head] + data[head + 4 :]


@pytest.mark.parametrize(("make", "turn"), [(Lines, bytes), (WebSocketFrames, unmasked)])
@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_messages_are_whole_however_they_are_cut(
    make: Callable[[], Framing], turn: Callable[[bytes], bytes], messages: list[bytes], cuts: list[int]
) -> None:
    framing = make()
    data = b"".join(turn(framing.wrap(each)) for each in messages)
    assert [each for piece in pieces(data, cuts) for each in framing.feed(piece)] == messages


@pytest.mark.parametrize("size", [125, 126, 65535, 65536])
def test_lengths_of_web_socket_frames(size: int) -> None:
    framing = WebSocketFrames()
    assert framing.feed(unmasked(framing.wrap(b"x" * size))) == [b"x" * size]


def test_a_ping_is_no_message_and_a_close_is_an_end() -> None:
    framing = WebSocketFrames()
    assert framing.feed(b"\x89\x02hi" + b"\x01\x02ab" + b"\x80\x01c") == [b"abc"]
    with pytest.raises(LoadError, match="closed"):
        framing.feed(b"\x88\x00")


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nMcp-Session-Id: s1\r\n\r\n" + b'{"a":1}'
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    b'f\r\ndata: {"a":1}\n\n\r\n' + b'1c\r\nid: 1\n\nid: 2\ndata: {"b":2}\n\n\r\n0\r\n\r\n'
)
EMPTY = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
@pytest.mark.parametrize(
    ("data", "messages"), [(LENGTH, [b'{"a":1}']), (CHUNKS, [b'{"a":1}', b'{"b":2}']), (EMPTY, [])]
)
def test_responses_are_whole_however_they_are_cut(
    data: bytes, messages: list[bytes], cuts: list[int]
) -> None:
    reader = ResponseReader()
    for _ in range(2):
        responses = [reader.feed(piece) for piece in pieces(data, cuts)]
        assert [each for response in responses for each in response.messages] == messages
        assert [response.complete for response in responses].count(True) == 1
        assert responses[-1].complete


def test_a_session_is_known_as_soon_as_the_head_of_a_stream_is() -> None:
    unfinished = CHUNKS.replace(b"\r\n\r\n", b"\r\nmcp-session-id: s1\r\n\r\n", 1).removesuffix(b"0\r\n\r\n")
    response = ResponseReader().feed(unfinished)
    assert (len(response.messages), response.complete, response.session) == (2, False, "s1")


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(LoadError):
        ResponseReader().feed(data)


class StallingField(Field):
    """Answers at once, but for one stall: virtual time, one lane."""

    def __init__(self, stall_at: float, stall: float) -> None:
        super().__init__("modern")
        self.now = 0.0
        self._stall_at, self._stall = stall_at, stall
        self._asked: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    async def connect(self) -> int:
        return 0

    def post(self, lane: int, message: Message) -> None:
        assert message.id is not None
        self._asked.append(message.id)

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        if not self._asked:
            assert until is not None
            self.now = max(self.now, until)
            return []
        if self.now >= self._stall_at:
            self.now += self._stall
            self._stall = 0.0
        self.now += 0.0001
        asked, self._asked = self._asked, []
        return [
            (0, json.dumps({"id": id, "result": {"structuredContent": {"total": id + 1}}}).encode())
            for id in asked
        ]

    async def leave(self, lane: int) -> None: ...
    async def pause(self, seconds: float) -> None: ...
    async def stall(self, lane: int) -> None: ...


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Bench, StallingField]:
    field = StallingField(stall_at=0.5, stall=0.2)
    monkeypatch.setattr(loops, "time", field)
    job = BenchmarkJob("roundtrip", "stdio", "ours", "modern", 1, 1.0, {})
    served = ThisProcess(HandlerEvents(tmp_path / "told"))
    return Bench(job, field, served, itertools.count(1), random.Random(1), "modern"), field


def test_an_open_loop_counts_those_who_would_have_come_during_a_stall(
    stalling: tuple[Bench, StallingField],
) -> None:
    bench, _ = stalling
    calls = Calls("modern")
    taken = run_blocking(loops.open_loop(bench, 0, calls.__getitem__, rate=100.0, seconds=1.0))
    assert len(taken.took) == 100
    # Twenty were meant to be sent in the 0.2 s of the stall; each waited for what was left of it.
    assert sum(took > 0.005 for took in taken.took) == pytest.approx(20, abs=1)
    assert max(taken.took) == pytest.approx(0.2, abs=0.01)


def test_a_closed_loop_would_have_hidden_them(stalling: tuple[Bench, StallingField]) -> None:
    bench, _ = stalling
    calls = Calls("modern")
    taken = run_blocking(loops.closed_loop(bench, [0], calls.__getitem__, window=1, seconds=1.0))
    assert sum(took > 0.005 for took in taken.took) == 1


def test_wrong_answers_are_no_figure() -> None:
    good = b'{"id":1,"result":{"structuredContent":{"total":2}}}'
    check_sums([good], random.Random(1))
    for bad in (b'{"id":1,"error":{}}', good.replace(b"2}", b"3}"), b'{"result":{}}'):
        with pytest.raises(LoadError):
            check_sums([good, bad], random.Random(1))


def test_a_call_asks_for_its_own_id() -> None:
    message = Calls("legacy", "add_inline")[17]
    assert id_of(message.data) == 17
    assert json.loads(message.data)["params"] == {"name": "add_inline", "arguments": {"a": 17, "b": 1}}
