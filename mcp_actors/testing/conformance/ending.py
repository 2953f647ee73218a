"""Checks of how a channel ends: closed by this end, closed by the peer, or broken off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from mcp_actors.abc import Frame, FrameChannel, NothingSent
from mcp_actors.testing.conformance.rules import (
    BLOCK,
    BREAKAGE,
    CLEAN_END,
    CLOSING,
    DELIVERED,
    ENDINGS,
    HALF_CLOSE,
    Check,
    RuleBroken,
    expect,
)
from mcp_actors.testing.conformance.subject import (
    TransportUnderTest,
    compare,
    make_frame,
    make_frames,
    receive_all,
    receive_count,
    send_in_ways,
)

__all__ = ["ENDING"]

_Pair = tuple[FrameChannel, FrameChannel]
SIDES = ("the client", "the server")


def _sides(pair: _Pair, closer: int) -> tuple[FrameChannel, FrameChannel, str]:
    """(who closes, the other, what to call that)"""
    return pair[closer], pair[1 - closer], f"{SIDES[closer]} closed"


async def what_was_sent_arrives_before_the_end(tested: TransportUnderTest) -> None:
    """One side sends and closes at once; the other receives everything, then `trio.EndOfChannel`, again and again."""
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, other, who = _sides(pair, closer)
            frames = make_frames(60)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_and_close, closing, frames)
                with tested.soon(CLEAN_END, f"{who}, and the other side did not notice"):
                    got, ending = await receive_all(other)
            compare_delivered(got, frames, who)
            await _is_clean(tested, other, ending, who)


def compare_delivered(got: list[bytes], frames: list[Frame], who: str) -> None:
    """As `compare`, for frames that were sent before a channel was closed.

    Raises:
        RuleBroken: Frames are missing at the end, which closing has lost, or it is as `compare` says.
    """
    wanted = [frame.data for frame in frames]
    if len(got) < len(wanted) and got == wanted[: len(got)]:
        raise RuleBroken(
            DELIVERED, f"{who}: {len(wanted) - len(got)} of {len(wanted)} frames sent before did not arrive"
        )
    compare(got, wanted, who)


async def _send_and_close(channel: FrameChannel, frames: list[Frame]) -> None:
    await send_in_ways(channel, frames)
    await channel.aclose()


async def _is_clean(tested: TransportUnderTest, channel: FrameChannel, ending: Exception, who: str) -> None:
    expect(
        isinstance(ending, trio.EndOfChannel),
        CLEAN_END,
        f"{who} in order, and the other side's receive raised {ending!r}",
    )
    for receive in (channel.receive, channel.receive_many):
        with tested.soon(CLEAN_END, f"{who}: receiving after EndOfChannel waits"):
            try:
                await receive()
            except trio.EndOfChannel:
                continue
        raise RuleBroken(CLEAN_END, f"{who}: after EndOfChannel something was received")


async def sending_to_a_closed_peer_breaks(tested: TransportUnderTest) -> None:
    """After the peer closed, sending raises `trio.BrokenResourceError`, if not at once then soon, and again."""
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, other, who = _sides(pair, closer)
            await closing.aclose()
            with tested.soon(BREAKAGE, f"{who}, and sending to it neither ends nor fails"):
                await _send_until_broken(tested, other, who)
            await _raises(trio.BrokenResourceError, partial(other.send, make_frame(0)), BREAKAGE, who)
            await _raises(trio.BrokenResourceError, partial(other.send_many, [make_frame(0)]), BREAKAGE, who)
            try:
                has_written = other.write_now(make_frame(0))
            except NothingSent:
                has_written = False
            expect(not has_written, BREAKAGE, f"{who}, and write_now said that it had written")


async def _send_until_broken(tested: TransportUnderTest, channel: FrameChannel, who: str) -> None:
    frame = make_frame(0, 16 * 1024)
    for _ in range(tested.max_buffered // len(frame.data)):
        try:
            await channel.send(frame)
        except trio.BrokenResourceError:
            return
    raise RuleBroken(BREAKAGE, f"{who}, and {tested.max_buffered} bytes could be sent to it")


async def _raises(kind: type[Exception], act: Callable[[], Awaitable[object]], rule: str, who: str) -> None:
    try:
        await act()
    except kind:
        return
    except (trio.ClosedResourceError, trio.BrokenResourceError, trio.EndOfChannel) as error:
        raise RuleBroken(rule, f"{who}: {error!r} was raised, due was {kind.__name__}") from error
    raise RuleBroken(rule, f"{who}: nothing was raised, due was {kind.__name__}")


async def a_closed_channel_says_so(tested: TransportUnderTest) -> None:
    """After ``aclose``: every use raises `trio.ClosedResourceError`, and closing again does nothing."""
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, other, who = _sides(pair, closer)
            await other.send(make_frame(0))
            await receive_count(closing, 1, tested.patience, who)
            await _close_repeatedly(tested, closing, who)
            await _is_closed(tested, closing, who)


async def _close_repeatedly(tested: TransportUnderTest, channel: FrameChannel, who: str) -> None:
    for time in ("", " a second time", " a third time"):
        with tested.soon(CLOSING, f"aclose{time} did not return"):
            try:
                await channel.aclose()
            except Exception as error:
                raise RuleBroken(CLOSING, f"aclose{time} raised {error!r}") from error


async def _is_closed(tested: TransportUnderTest, channel: FrameChannel, who: str) -> None:
    frame = make_frame(0)
    for act in (
        channel.receive,
        channel.receive_many,
        partial(channel.send, frame),
        partial(channel.send_many, [frame, frame]),
    ):
        with tested.soon(CLOSING, f"{who}, and a later use of its channel waits"):
            await _raises(trio.ClosedResourceError, act, CLOSING, f"{who}, then used its channel")


async def a_closed_client_channel_says_so(tested: TransportUnderTest) -> None:
    """The client's channel alone: closed under a task that waits, closed again, its block left."""

    async def nothing(channel: FrameChannel) -> None:
        await trio.sleep_forever()

    async with tested.serving(nothing) as transport, tested.connected(transport) as client:
        caught: list[BaseException] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_catch, client.receive_many, caught)
            await _let_wait(tested)
            nursery.start_soon(_close_repeatedly, tested, client, SIDES[0])
        expect_closed(caught, "receive_many")
        await _close_repeatedly(tested, client, SIDES[0])
        await _is_closed(tested, client, "the client closed")
        async with tested.connected(transport) as left:
            pass
        await _is_closed(tested, left, "the block was left")


def expect_closed(caught: list[BaseException], what: str) -> None:
    """Checks that what waited in a channel when it was closed got `trio.ClosedResourceError`."""
    for error in caught:
        expect(
            isinstance(error, trio.ClosedResourceError),
            CLOSING,
            f"closed while another task waited in {what}, which raised {error!r}",
        )
    expect(bool(caught), CLOSING, f"closed while another task waited in {what}, which returned")


async def _catch(act: Callable[[], Awaitable[object]], caught: list[BaseException]) -> None:
    try:
        await act()
    except (trio.ClosedResourceError, trio.BrokenResourceError, trio.EndOfChannel) as error:
        caught.append(error)


async def _let_wait(tested: TransportUnderTest) -> None:
    await trio.sleep(tested.quiet)


async def closing_wakes_who_waits(tested: TransportUnderTest) -> None:
    """``aclose`` from two other tasks at once, while one task waits in receive and one in send."""
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, _, who = _sides(pair, closer)
            receiving: list[BaseException] = []
            sending: list[BaseException] = []

            async def send_for_ever(channel: FrameChannel = closing) -> None:
                # More than the medium may take, so that the sender has to wait.
                frame = make_frame(0, 16 * 1024)
                for _ in range(tested.max_buffered // len(frame.data) + 1):
                    await channel.send(frame)

            with tested.soon(CLOSING, f"{who} while tasks waited in it: not all of them were woken"):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_catch, closing.receive, receiving)
                    nursery.start_soon(_catch, send_for_ever, sending)
                    await _let_wait(tested)
                    nursery.start_soon(closing.aclose)
                    nursery.start_soon(closing.aclose)
            expect_closed(receiving, "receive")
            expect_closed(sending, "send")


async def closing_works_when_cancelled(tested: TransportUnderTest) -> None:
    """``aclose`` in a cancelled scope closes nevertheless, and the other side notices."""
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, other, who = _sides(pair, closer)
            with trio.CancelScope() as scope:
                scope.cancel()
                await closing.aclose()
            await _is_closed(tested, closing, f"{who} in a cancelled scope")
            with tested.soon(CLOSING, f"{who} in a cancelled scope, and the other side did not notice"):
                await receive_all(other)


async def leaving_the_block_closes(tested: TransportUnderTest) -> None:
    """When the block of ``connect()`` is left, the channel is closed and the server's end has ended."""
    ended = trio.Event()

    async def handle(channel: FrameChannel) -> None:
        got, _ = await receive_all(channel)
        compare(got, [make_frame(0)], "client to server")
        ended.set()

    async with tested.serving(handle) as transport:
        async with tested.connected(transport) as client:
            await client.send(make_frame(0))
        await _is_closed(tested, client, "the block was left")
        with tested.soon(BLOCK, "the block was left, and the server's end does not know"):
            await ended.wait()


async def a_half_closed_peer_still_reads(tested: TransportUnderTest) -> None:
    """One side ends what it sends; the other gets all of it, then the end, and can still send to it."""
    assert tested.half_close is not None
    for closer in (0, 1):
        async with tested.pair() as pair:
            closing, other, who = _sides(pair, closer)
            frames = make_frames(30)
            await send_in_ways(closing, frames)
            await tested.half_close(closing)
            with tested.soon(HALF_CLOSE, f"{who} one direction, and the other side did not notice"):
                got, ending = await receive_all(other)
            compare(got, frames, who)
            await _is_clean(tested, other, ending, who)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_in_ways, other, frames)
                got = await receive_count(closing, len(frames), tested.patience, f"{who} one direction")
            compare(got, frames, f"{who} one direction")
            await other.aclose()
            with tested.soon(HALF_CLOSE, "both directions are closed, and receive waits"):
                await receive_all(closing)


async def breakage_is_no_clean_end(tested: TransportUnderTest) -> None:
    """The connection is broken off: the other side gets `trio.BrokenResourceError`, receiving and sending."""
    assert tested.break_off is not None
    for breaker in (0, 1):
        async with tested.pair() as pair:
            breaking, other, _ = _sides(pair, breaker)
            who = f"the connection was broken off by {SIDES[breaker]}"
            await tested.break_off(breaking)
            with tested.soon(BREAKAGE, f"{who}, and receive waits"):
                _, ending = await receive_all(other)
            expect(
                isinstance(ending, trio.BrokenResourceError),
                BREAKAGE,
                f"{who}, and receive raised {ending!r}",
            )
            with tested.soon(BREAKAGE, f"{who}, and sending neither ends nor fails"):
                await _send_until_broken(tested, other, who)


ENDING = (
    Check(what_was_sent_arrives_before_the_end, CLEAN_END),
    Check(sending_to_a_closed_peer_breaks, BREAKAGE),
    Check(a_closed_channel_says_so, CLOSING),
    Check(a_closed_client_channel_says_so, CLOSING, tier="client"),
    Check(closing_wakes_who_waits, CLOSING),
    Check(closing_works_when_cancelled, CLOSING),
    Check(leaving_the_block_closes, BLOCK),
    Check(a_half_closed_peer_still_reads, HALF_CLOSE, needs="half_close"),
    Check(breakage_is_no_clean_end, ENDINGS, needs="break_off"),
)
