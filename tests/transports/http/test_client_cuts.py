"""Property: however a stream is cut and come back to, every message arrives once and in order."""

from __future__ import annotations

import httpx2
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from .scripted import LEGACY, Asked, Stream, connected, handshake, json_answer, request, sse


class Resumable:
    """Keeps the events of one call and gives, on each connection, what comes after ``Last-Event-ID``, up to a cut."""

    def __init__(self, messages: int, cuts: list[tuple[int, bool]]) -> None:
        self.events = [b"id: %d\ndata: m%d\n\n" % (number, number) for number in range(1, messages + 1)]
        self.cuts = cuts

    def stream_after(self, last: int) -> httpx2.Response:
        rest = b"".join(self.events[last:])
        # The first event always comes, or there would be nothing to come back with.
        least = 0 if last else len(self.events[0])
        if not self.cuts:
            return sse(Stream(rest))
        length, clean = self.cuts.pop()
        stream = Stream(rest[: least + length])
        stream.end(None if clean else httpx2.ReadError("cut"))
        return sse(stream)

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return self.stream_after(int(asked.headers["last-event-id"]))
        if b'"initialize"' in asked.body:
            return json_answer()
        if asked.body == b"{}":
            return httpx2.Response(202)
        return self.stream_after(0)


@given(
    messages=st.integers(1, 20),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=12),
)
def test_each_message_arrives_once_and_in_order(messages: int, cuts: list[tuple[int, bool]]) -> None:
    async def main() -> list[bytes]:
        # Each attempt that brings nothing counts as a failure.
        async with connected(Resumable(messages, cuts), listen=False, resume_attempts=99) as (channel, _):
            await handshake(channel)
            await channel.send(request(2, metadata=LEGACY))
            got: list[bytes] = []
            while len(got) < messages:
                got += [frame.data for frame in await channel.receive_many()]
            return got

    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) == [b"m%d" % number for number in range(1, messages + 1)]
