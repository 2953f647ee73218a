"""Checks of what cancellation leaves behind, tried at every checkpoint of an operation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from mcp_actors.abc import ClientTransport, Frame, FrameChannel
from mcp_actors.testing.conformance.rules import (
    CANCELLED_RECEIVE,
    CANCELLED_SEND,
    ENDINGS,
    NO_LOSS,
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
)
from mcp_actors.testing.recording import PassingChannel

__all__ = ["CANCELLING", "InterruptingTransport", "cancelled_at_step"]


# The resumptions at which a send is cancelled: each of the first, then fewer, since each takes a connection.
STEPS_OF_SENDING = (0, 1, 2, 3, 5, 9, 17)
# Cancelled receives in a row before one may end: no receive needs so many resumptions.
STEPS_OF_RECEIVING = 7


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when a task is resumed for the n-th time: it ends at the next checkpoint after that."""

    def __init__(self, task: trio.lowlevel.Task, step: int, scope: trio.CancelScope) -> None:
        self._task = task
        self._left = step
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel(reason="the kit cancels here")


async def cancelled_at_step(step: int, act: Callable[[], Awaitable[None]]) -> bool:
    """Runs ``act``, cancelled at its first checkpoint (``step`` 0) or the one after its n-th resumption.

    True if it was cancelled, false if it had ended before.
    """
    with trio.CancelScope() as scope:
        if step == 0:
            scope.cancel(reason="the kit cancels here")
            await act()
            return False
        instrument = _CancelAtStep(trio.lowlevel.current_task(), step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            await act()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


async def cancelled_receives_lose_nothing(tested: TransportUnderTest) -> None:
    """``receive`` and ``receive_many`` are cancelled at each of their checkpoints in turn, while frames arrive."""
    for to_server in (True, False):
        for burst in (False, True):
            async with tested.pair() as (client, server):
                sender, receiver = (client, server) if to_server else (server, client)
                await _receive_with_cancels(tested, sender, receiver, burst)


async def _receive_with_cancels(
    tested: TransportUnderTest, sender: FrameChannel, receiver: FrameChannel, burst: bool
) -> None:
    size = min(sender.max_message_bytes or 150_000, 150_000)
    frames = make_frames(60, sizes=(0, 300, size, 20))
    got: list[bytes] = []
    who = f"received by {'receive_many' if burst else 'receive'}, cancelled at every checkpoint"

    async def send() -> None:
        for number, frame in enumerate(frames):
            await sender.send(frame)
            # Some are there before they are asked for, some come while a task waits.
            for _ in range(number % 5):
                await trio.lowlevel.checkpoint()

    async def receive() -> None:
        if burst:
            got.extend(frame.data for frame in await receiver.receive_many())
        else:
            got.append((await receiver.receive()).data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        step = 0
        with trio.move_on_after(tested.patience) as waiting:
            while len(got) < len(frames):
                if step < STEPS_OF_RECEIVING:
                    await cancelled_at_step(step, receive)
                else:
                    await receive()
                step = (step + 1) % (STEPS_OF_RECEIVING + 1)
        if waiting.cancelled_caught:
            raise RuleBroken(
                CANCELLED_RECEIVE, f"{who}: {len(got)} of {len(frames)} frames arrived, then none"
            )
    try:
        compare(got, frames, who)
    except RuleBroken as breach:
        rule = CANCELLED_RECEIVE if breach.rule == NO_LOSS else breach.rule
        raise RuleBroken(rule, breach.seen) from breach


async def cancelled_sends_tear_nothing(tested: TransportUnderTest) -> None:
    """``send`` and ``send_many`` are cancelled at each of their checkpoints in turn, while the peer reads."""
    for count in (1, 3):
        for step in STEPS_OF_SENDING:
            if not await _cancel_one_send(tested, count, step):
                break


async def sends_cancelled_while_waiting_tear_nothing(tested: TransportUnderTest) -> None:
    """``send`` is cancelled while it waits for a peer that does not read."""
    async with tested.pair() as (client, server):
        sent: list[bytes] = []
        got: list[bytes] = []
        size = min(client.max_message_bytes or 16 * 1024, 16 * 1024)
        for number in range(tested.max_buffered // size):
            victim = make_frame(number, size)
            with trio.move_on_after(tested.quiet) as waiting:
                await client.send(victim)
            if waiting.cancelled_caught:
                break
            sent.append(victim.data)

        async def receive() -> None:
            got.extend((await receive_all(server))[0])

        what = "send, cancelled while it waited"
        with tested.soon(CANCELLED_SEND, f"{what}: the connection neither goes on nor ends"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                accepted = await _send_next(client)
                await client.aclose()
        compare(got[: len(sent)], sent, f"{what}: those before it")
        _judge(got[len(sent) :], [victim], accepted, what)


async def _send_next(channel: FrameChannel) -> Frame | None:
    """Sends a frame after a cancelled send; returns it, or ``None`` if it could not be sent."""
    after = make_frame(0, tag="after")
    try:
        await channel.send(after)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return None
    return after


async def _cancel_one_send(tested: TransportUnderTest, count: int, step: int) -> bool:
    """True if there was a checkpoint to cancel at."""
    async with tested.pair() as (client, server):
        size = min(client.max_message_bytes or tested.largest, tested.largest, 512 * 1024)
        first = make_frame(0, tag="first")
        victims = [make_frame(number, size, "victim") for number in range(count)]
        await client.send(first)
        got: list[bytes] = []
        cancelled = False
        accepted: Frame | None = None

        async def send() -> None:
            await (client.send_many(victims) if count > 1 else client.send(victims[0]))

        async def receive() -> None:
            got.extend((await receive_all(server))[0])

        what = f"{'send_many' if count > 1 else 'send'}, cancelled at checkpoint {step}"
        with tested.soon(CANCELLED_SEND, f"{what}: the connection neither goes on nor ends"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                cancelled = await cancelled_at_step(step, send)
                accepted = await _send_next(client)
                expect(
                    cancelled or accepted is not None,
                    ENDINGS,
                    f"{what}: it was not cancelled, and the next send failed",
                )
                await client.aclose()
        expect(got[:1] == [first.data], CANCELLED_SEND, f"{what}: the frame before it did not arrive")
        _judge(got[1:], victims, accepted, what)
        return cancelled


def _judge(got: list[bytes], victims: Sequence[Frame], accepted: Frame | None, what: str) -> None:
    """Allows some of the cancelled frames from the first on, then those sent later; or a torn one last."""
    wanted = [frame.data for frame in victims]
    if accepted is not None:
        expect(
            bool(got) and got[-1] == accepted.data,
            CANCELLED_SEND,
            f"{what}: the next send went well, but what arrived last is not its frame",
        )
        got = got[:-1]
    elif got and got[-1] not in wanted:
        torn = got.pop()
        expect(
            len(got) < len(wanted) and wanted[len(got)].startswith(torn),
            CANCELLED_SEND,
            f"{what}: the last {len(torn)} bytes that arrived are not the beginning of its frame",
        )
    expect(
        got == wanted[: len(got)],
        CANCELLED_SEND,
        f"{what}: {len(got)} frames arrived between its neighbours that were not sent so",
    )


CANCELLING = (
    Check(cancelled_receives_lose_nothing, CANCELLED_RECEIVE),
    Check(cancelled_sends_tear_nothing, CANCELLED_SEND),
    Check(sends_cancelled_while_waiting_tear_nothing, CANCELLED_SEND),
)


# -- the interrupting transport ------------------------------------------------------------------------

# The resumptions at which receives are cancelled in turn; -1 cancels nothing.
STEPS = (0, 1, 2, 3, 4, -1)


class InterruptingTransport:
    """A client's transport on which every receive is cancelled a few times before it may end.

    It is for checks that need a whole client: its channels lose what those of the binding lose when cancelled.
    """

    def __init__(self, inner: ClientTransport) -> None:
        self._inner = inner

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """As the inner transport."""
        async with self._inner.connect() as channel:
            yield _InterruptedChannel(channel)


class _InterruptedChannel(PassingChannel):
    _turn = 0

    async def receive_many(self) -> list[Frame]:
        got: list[Frame] = []

        async def receive() -> None:
            got.extend(await self._inner.receive_many())

        while not got:
            step = STEPS[self._turn % len(STEPS)]
            self._turn += 1
            if step < 0:
                await receive()
            else:
                await cancelled_at_step(step, receive)
        return got
