"""Checks of what a channel carries: every frame, whole, once, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError
from mcp_actors.testing.conformance.rules import (
    DELIVER,
    ENDINGS,
    HAND_OVER,
    LIMIT,
    ORDER,
    PROPERTIES,
    SETTLED,
    WHOLE,
    WRITE_NOW,
    Check,
    RuleBroken,
    expect,
)
from mcp_actors.testing.conformance.subject import (
    ENDED,
    TransportUnderTest,
    compare,
    make_frame,
    make_frames,
    receive_all,
    receive_count,
    send_in_ways,
)

__all__ = ["CARRYING"]

# Enough that a fault in every tenth frame shows, few enough that a child process is quick.
FRAMES = 120
# Lengths at which length fields, buffers and pipes change.
EDGES = (125, 126, 127, 128, 4095, 4096, 4097, 16383, 16384, 32768, 65535, 65536, 65537, 131072, 200_000)
ODD_TEXTS = ("é", "漢字", "\U0001f9ed", "\\u0000", "\\n\\r\\n", "\u2028\u2029", "\x7f\x85", '\\"', "  ")
# Frames handed over without waiting after which the check takes the buffer for unbounded.
MANY = 4096


async def _exchange(
    tested: TransportUnderTest, pair: tuple[FrameChannel, FrameChannel], frames: Sequence[Frame]
) -> None:
    """Sends the frames both ways at the same time and compares what arrives."""

    async def one_way(sender: FrameChannel, receiver: FrameChannel, who: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_in_ways, sender, frames)
            got = await receive_count(receiver, len(frames), tested.patience, who)
        compare(got, frames, who)

    client, server = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_way, client, server, "client to server")
        nursery.start_soon(one_way, server, client, "server to client")


async def frames_arrive_in_order(tested: TransportUnderTest) -> None:
    """Both ways at the same time, one by one and in bursts, received one by one and in bursts."""
    async with tested.pair() as (client, server):
        await _exchange(tested, (client, server), make_frames(FRAMES))
        last = make_frame(FRAMES, tag="last")
        for sender, receiver, who in (
            (client, server, "client to server"),
            (server, client, "server to client"),
        ):
            # A frame that was duplicated, or comes late, would arrive before this one.
            await sender.send(last)
            compare(await receive_count(receiver, 1, tested.patience, who), [last], who)


async def frames_arrive_unchanged(tested: TransportUnderTest) -> None:
    """Text of every kind, and lengths at which length fields and buffers change."""
    frames = [Frame(f'{{"jsonrpc":"2.0","method":"kit/{text}"}}'.encode()) for text in ODD_TEXTS]
    async with tested.pair() as (client, server):
        limit = _limit(tested, client, server)
        frames += [make_frame(number, size) for number, size in enumerate(EDGES) if size <= limit]
        await _exchange(tested, (client, server), frames)


async def large_frames_arrive(tested: TransportUnderTest) -> None:
    """One frame of ``max_message_bytes``, or of ``largest`` if that is less, each way."""
    async with tested.pair() as (client, server):
        size = min(_limit(tested, client, server), tested.largest)
        await _exchange(tested, (client, server), [make_frame(0, size), make_frame(1)])


async def longer_frames_are_refused(tested: TransportUnderTest) -> None:
    """One byte over ``max_message_bytes``: refused where it is made, or the end of the connection; never a piece."""
    for to_server in (True, False):
        async with tested.pair() as (client, server):
            sender, receiver = (client, server) if to_server else (server, client)
            limits = [
                each for each in (client.max_message_bytes, server.max_message_bytes) if each is not None
            ]
            if not limits or min(limits) > tested.largest:
                return
            await _send_too_long(tested, sender, receiver, make_frame(0, min(limits) + 1))


async def _send_too_long(
    tested: TransportUnderTest, sender: FrameChannel, receiver: FrameChannel, long: Frame
) -> None:
    after = make_frame(1, tag="after")
    refused = False
    got: list[bytes] = []

    async def receive() -> None:
        with trio.move_on_after(tested.patience):
            try:
                while after.data not in got:
                    got.extend(frame.data for frame in await receiver.receive_many())
            except ENDED:
                # The other way to refuse. The sender may still be at it.
                await receiver.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        try:
            await sender.send(long)
        except LocalProtocolError:
            refused = True
        except ENDED:
            pass
        try:
            await sender.send(after)
        except ENDED:
            expect(not refused, LIMIT, "after a frame was refused, the channel was of no use any more")
    expect(long.data not in got, LIMIT, f"a frame of {len(long.data)} bytes was carried")
    expect(set(got) <= {after.data}, LIMIT, f"a piece of a frame of {len(long.data)} bytes arrived")
    expect(refused or after.data not in got, LIMIT, "a longer frame vanished, and the connection went on")
    expect(
        not refused or got == [after.data], LIMIT, "after a frame was refused, the next one did not arrive"
    )


def _limit(tested: TransportUnderTest, *channels: FrameChannel) -> int:
    limits = [each.max_message_bytes for each in channels if each.max_message_bytes is not None]
    return min(limits) if limits else tested.largest


async def senders_take_turns(tested: TransportUnderTest) -> None:
    """Several tasks send, one after the other, in all four ways, as a link's writer and its callers do."""
    async with tested.pair() as (client, server):
        frames = make_frames(FRAMES, sizes=(0, 200, 3000))
        sent: list[Frame] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_turns, client, frames, sent)
            got = await receive_count(server, len(frames), tested.patience, "client to server")
        compare(got, sent, "client to server, four tasks in turns")


async def _take_turns(sender: FrameChannel, frames: Sequence[Frame], sent: list[Frame]) -> None:
    turn = trio.Lock()
    queue = iter(frames)

    async def send_some(way: int) -> None:
        while True:
            async with turn:
                frame = next(queue, None)
                if frame is None:
                    return
                sent.append(frame)
                if way == 0 or not (_hand_over(sender, frame) if way == 1 else sender.write_now(frame)):
                    await (sender.send_many([frame]) if way == 3 else sender.send(frame))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for way in range(4):
            nursery.start_soon(send_some, way)


async def deliveries_keep_the_order(tested: TransportUnderTest) -> None:
    """Frames that a channel delivers past ``receive_many`` come in order with the others, and only in between."""
    async with tested.pair() as (client, server):
        frames, last = make_frames(FRAMES, sizes=(0, 200, 3000)), make_frame(0, tag="last")
        sent: list[Frame] = []
        got: list[bytes] = []
        waiting, asked = False, 0

        def take(frame: Frame) -> bool:
            nonlocal asked
            asked += 1
            expect(waiting, DELIVER, "a frame was delivered while no task waited in receive_many")
            if asked % 5 == 0:
                return False
            got.append(frame.data)
            if frame.data == last.data:
                reading.cancel(reason="that was the last one")
            return True

        async def send_all() -> None:
            await _take_turns(server, frames, sent)
            await server.send(last)

        client.deliver_to(take)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            with trio.move_on_after(tested.patience) as reading:
                while last.data not in got[-1:]:
                    waiting = True
                    received = await client.receive_many()
                    waiting = False
                    got += [frame.data for frame in received]
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel(reason="all has come, or nothing more does")
        compare(got, [*sent, last], "server to client, delivered and received")


def _hand_over(channel: FrameChannel, frame: Frame) -> bool:
    try:
        channel.send_nowait(frame)
    except trio.WouldBlock:
        return False
    return True


async def senders_at_once(tested: TransportUnderTest) -> None:
    """Several tasks send at the same time: frames stay whole, and each task's own stay in order."""
    async with tested.pair() as (client, server):
        streams = [make_frames(40, f"task-{number}") for number in range(6)]
        async with trio.open_nursery() as nursery:
            for frames in streams:
                nursery.start_soon(send_in_ways, client, frames)
            got = await receive_count(server, 6 * 40, tested.patience, "client to server")
        known = {frame.data for frames in streams for frame in frames}
        for data in got:
            expect(data in known, WHOLE, f"what arrived was never sent: {data[:60]!r}…")
        for number, frames in enumerate(streams):
            own = {frame.data for frame in frames}
            compare([data for data in got if data in own], frames, f"client to server, task {number} of six")


async def handing_over_keeps_its_promise(tested: TransportUnderTest) -> None:
    """``send_nowait``, where it is overridden: whole and in order, bounded, an ending when the channel is closed.

    Raises:
        RuleBroken: It is not so.
    """
    async with tested.pair() as (client, server):
        for sender, receiver in ((client, server), (server, client)):
            if type(sender).send_nowait is FrameChannel.send_nowait:
                continue
            first = make_frame(0, tag="first")
            await sender.send(first)
            taken = [first]
            for number in range(MANY):
                frame = make_frame(number, 1000, "handed-over")
                if not _hand_over(sender, frame):
                    break
                taken.append(frame)
            else:
                raise RuleBroken(HAND_OVER, f"{MANY} frames were taken while no task read: there is no bound")
            got = await receive_count(receiver, len(taken), tested.patience, "handed over")
            last = make_frame(0, tag="last")
            await sender.send(last)
            got += await receive_count(receiver, 1, tested.patience, "after handing over")
            compare(got, [*taken, last], "handed over without waiting")
        await client.aclose()
        try:
            client.send_nowait(make_frame(0))
        except (trio.WouldBlock, trio.ClosedResourceError):
            return
        raise RuleBroken(HAND_OVER, "a closed channel took a frame")


async def writing_at_once_keeps_its_promise(tested: TransportUnderTest) -> None:
    """``write_now``, where it is overridden: what it took arrives whole, what it refused does not arrive."""
    async with tested.pair() as (client, server):
        for sender, receiver in ((client, server), (server, client)):
            taken, refused = [], 0
            for number in range(MANY):
                frame = make_frame(number, (50, 700, 3000, 9000)[number % 4])
                if sender.write_now(frame):
                    taken.append(frame)
                else:
                    refused += 1
                    if refused > 8:
                        break
            got = await receive_count(receiver, len(taken), tested.patience, "written at once")
            last = make_frame(0, tag="last")
            await sender.send(last)
            got += await receive_count(receiver, 1, tested.patience, "after writing at once")
            compare(got, [*taken, last], "written at once")
        await client.aclose()
        expect(not client.write_now(make_frame(0)), WRITE_NOW, "a closed channel said that it had written")


async def channels_describe_themselves(tested: TransportUnderTest) -> None:
    """Properties have the types that the engine counts on, and ``settled`` takes any id."""
    async with tested.pair() as pair:
        for channel in pair:
            limit = channel.max_message_bytes
            expect(
                limit is None or (isinstance(limit, int) and limit > 0),
                PROPERTIES,
                f"max_message_bytes is {limit!r}",
            )
            expect(isinstance(channel.mirrors, bool), PROPERTIES, f"mirrors is {channel.mirrors!r}")
            expect(isinstance(channel.peer, str), PROPERTIES, f"peer is {channel.peer!r}")
            expect(isinstance(channel.loss_report(), Mapping), PROPERTIES, "loss_report() is not a mapping")
            for unknown in (7, "kit-unknown"):
                channel.settled(unknown)
        await _exchange(tested, pair, make_frames(3))
        client, _ = pair
        await client.aclose()
        expect(isinstance(client.peer, str), PROPERTIES, f"peer is {client.peer!r} after aclose")
        expect(
            isinstance(client.loss_report(), Mapping),
            PROPERTIES,
            "loss_report() is not a mapping after aclose",
        )
        got, _ = await receive_all(pair[1])
        compare(got, [], "client to server, nothing sent")


CARRYING = (
    Check(frames_arrive_in_order, ORDER),
    Check(frames_arrive_unchanged, WHOLE),
    Check(large_frames_arrive, LIMIT),
    Check(longer_frames_are_refused, LIMIT),
    Check(senders_take_turns, ORDER),
    Check(deliveries_keep_the_order, DELIVER),
    Check(senders_at_once, ENDINGS, needs="senders_at_once"),
    Check(handing_over_keeps_its_promise, HAND_OVER),
    Check(writing_at_once_keeps_its_promise, WRITE_NOW),
    Check(channels_describe_themselves, SETTLED),
)
