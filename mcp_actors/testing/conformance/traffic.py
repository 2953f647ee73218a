"""The frames that checks send, and how what arrived is compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.testing.conformance.report import RuleBroken
from mcp_actors.testing.conformance.rules import NO_DUPLICATION, NO_LOSS, ORDER, WHOLE

__all__ = ["ENDED", "compare", "make_frame", "make_frames", "receive_all", "receive_count", "send_in_ways"]

# Of the three endings, those that come from the other side.
ENDED = (trio.EndOfChannel, trio.BrokenResourceError)
# Not periodic in any size that a buffer is likely to have, so that a piece that went missing shows.
_FILLING = "".join(f"{number:x}." for number in range(30_011))


def make_frame(number: int, size: int = 0, tag: str = "frame") -> Frame:
    """A notification that carries its number and is exactly ``size`` bytes long, if that is long enough for it."""
    head = f'{{"jsonrpc":"2.0","method":"kit/{tag}","params":{{"n":{number},"fill":"'
    tail = '"}}'
    room = max(0, size - len(head) - len(tail))
    filling = (_FILLING * (room // len(_FILLING) + 1))[:room]
    return Frame(f"{head}{filling}{tail}".encode(), method=f"kit/{tag}")


def make_frames(count: int, tag: str = "frame", sizes: Sequence[int] = (0, 100, 1000, 5000)) -> list[Frame]:
    """Numbered frames whose sizes go round."""
    return [make_frame(number, sizes[number % len(sizes)], tag) for number in range(count)]


async def send_in_ways(channel: FrameChannel, frames: Sequence[Frame]) -> None:
    """Sends frames one by one and in bursts of every length up to 16, so that both are seen side by side."""
    at, burst = 0, 0
    while at < len(frames):
        burst = burst % 16 + 1
        if burst == 1:
            await channel.send(frames[at])
        else:
            await channel.send_many(frames[at : at + burst])
        at += burst


async def receive_count(channel: FrameChannel, count: int, patience: float, who: str) -> list[bytes]:
    """Receives at least ``count`` frames, alternately one and all that there are.

    Args:
        patience: The seconds that each frame may take at most.
        who: The words for these frames in a complaint.

    Raises:
        RuleBroken: A frame did not arrive in time.
    """
    got: list[bytes] = []
    turn = 0
    while len(got) < count:
        turn += 1
        with trio.move_on_after(patience) as waiting:
            if turn % 3 == 1:
                got.append((await channel.receive()).data)
            else:
                got.extend(frame.data for frame in await channel.receive_many())
        if waiting.cancelled_caught:
            raise RuleBroken(
                NO_LOSS, f"{who}: {len(got)} of {count} frames arrived, then none for {patience:g} s"
            )
    return got


async def receive_all(channel: FrameChannel) -> tuple[list[bytes], Exception]:
    """Receives until the end; returns what came and how it ended."""
    got: list[bytes] = []
    try:
        while True:
            got.extend(frame.data for frame in await channel.receive_many())
    except ENDED as ending:
        return got, ending


def compare(got: Sequence[bytes], want: Iterable[Frame | bytes], who: str) -> None:
    """Raises `RuleBroken` with the rule that fits the first difference."""
    wanted = [frame if isinstance(frame, bytes) else frame.data for frame in want]
    if list(got) == wanted:
        return
    known = {data: number for number, data in enumerate(wanted)}
    for place, data in enumerate(got):
        if data not in known:
            raise RuleBroken(WHOLE, f"{who}: number {place} of what arrived was never sent: {_shown(data)}")
    counts = Counter(got)
    for data, number in known.items():
        if counts[data] > 1:
            raise RuleBroken(NO_DUPLICATION, f"{who}: frame {number} arrived {counts[data]} times")
    missing = [number for data, number in known.items() if data not in counts]
    if missing:
        raise RuleBroken(
            NO_LOSS,
            f"{who}: {len(missing)} of {len(wanted)} frames did not arrive, the first is frame {missing[0]}",
        )
    place = next(i for i, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other)
    raise RuleBroken(ORDER, f"{who}: frame {known[got[place]]} came where frame {place} was due")


def _shown(data: bytes) -> str:
    return f"{data[:60]!r}… ({len(data)} bytes)" if len(data) > 60 else repr(data)
