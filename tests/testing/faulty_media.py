"""Bindings that each break one rule: memory with a planted fault at the client's end, at the server's, or in serve."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_transports.memory import MemoryTransport


class Passing(FrameChannel):
    """A channel that passes everything on to another one: the soil that faults are planted in."""

    def __init__(self, inner: FrameChannel) -> None:
        self.inner = inner

    async def send(self, value: Frame) -> None:
        await self.inner.send(value)

    async def receive(self) -> Frame:
        return await self.inner.receive()

    async def aclose(self) -> None:
        await self.inner.aclose()


class Planted(MemoryTransport):
    """Memory whose client's channels are of the faulty kind."""

    def __init__(self, channel: Callable[[FrameChannel], FrameChannel], **options: Any) -> None:
        super().__init__(**options)
        self._channel = channel

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with super().connect() as inner:
            yield self._channel(inner)


class DropsEveryTenth(Passing):
    count = 0

    async def send(self, value: Frame) -> None:
        self.count += 1
        if self.count % 10:
            await self.inner.send(value)
        else:
            await trio.lowlevel.checkpoint()


class SendsTwice(Passing):
    count = 0

    async def send(self, value: Frame) -> None:
        self.count += 1
        await self.inner.send(value)
        if self.count % 50 == 0:
            await self.inner.send(value)


class SendsBurstsBackwards(Passing):
    async def send_many(self, frames: Sequence[Frame]) -> None:
        for frame in reversed(frames):
            await self.inner.send(frame)


class ChangesText(Passing):
    async def receive(self) -> Frame:
        frame = await self.inner.receive()
        return Frame(frame.data.replace("é".encode(), b"e"))


class TearsWhenCancelled(Passing):
    """Frames go in two pieces, put together by `PutsTogether`; goes on after it was cancelled between them."""

    async def send(self, value: Frame) -> None:
        half = len(value.data) // 2
        await self.inner.send(Frame(b"1" + value.data[:half]))
        await self.inner.send(Frame(b"2" + value.data[half:]))


class PutsTogether(Passing):
    first = b""

    async def receive(self) -> Frame:
        while True:
            data = (await self.inner.receive()).data
            if data[:1] == b"2":
                whole, self.first = self.first + data[1:], b""
                return Frame(whole)
            self.first += data[1:]


class SwallowsTheEnd(Passing):
    async def receive(self) -> Frame:
        try:
            return await self.inner.receive()
        except trio.EndOfChannel:
            await trio.sleep_forever()
            raise


class EndsOnce(Passing):
    ended = False

    async def receive(self) -> Frame:
        if self.ended:
            await trio.sleep_forever()
        try:
            return await self.inner.receive()
        except trio.EndOfChannel:
            self.ended = True
            raise


class BreaksAtACleanEnd(Passing):
    async def receive(self) -> Frame:
        try:
            return await self.inner.receive()
        except trio.EndOfChannel:
            raise trio.BrokenResourceError from None


class RaisesOSError(Passing):
    async def receive(self) -> Frame:
        try:
            return await self.inner.receive()
        except trio.EndOfChannel:
            raise ConnectionResetError("Connection reset by peer") from None


class ClosesOnlyOnce(Passing):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("closed already")
        self.closed = True
        await self.inner.aclose()


class HangsWhenClosedAgain(Passing):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            await trio.sleep_forever()
        self.closed = True
        await self.inner.aclose()


class NeverWakesItsReceiver(Passing):
    """Received by a lock of its own that `aclose` waits for."""

    def __init__(self, inner: FrameChannel) -> None:
        super().__init__(inner)
        self.lock = trio.Lock()

    async def receive(self) -> Frame:
        async with self.lock:
            return await self.inner.receive()

    async def aclose(self) -> None:
        async with self.lock:
            await self.inner.aclose()


class LosesWhenCancelled(Passing):
    async def receive(self) -> Frame:
        frame = await self.inner.receive()
        await trio.lowlevel.checkpoint()
        return frame


class DropsWhatIsUnderWay(Passing):
    """Sends in the background; what was not sent when it is closed is forgotten."""

    def __init__(self, inner: FrameChannel) -> None:
        super().__init__(inner)
        self.waiting: list[Frame] = []

    async def send(self, value: Frame) -> None:
        self.waiting.append(value)
        if len(self.waiting) >= 8:
            waiting, self.waiting = self.waiting, []
            await self.inner.send_many(waiting)
        else:
            await trio.lowlevel.checkpoint()

    async def receive(self) -> Frame:
        waiting, self.waiting = self.waiting, []
        await self.inner.send_many(waiting)
        return await self.inner.receive()


class CarriesAnything(Passing):
    max_message_bytes = 70_000  # type: ignore[assignment]


class LosesLongFrames(Passing):
    """They are neither refused nor the end of the connection."""

    max_message_bytes = 70_000  # type: ignore[assignment]

    async def send(self, value: Frame) -> None:
        if len(value.data) > self.max_message_bytes:
            await trio.lowlevel.checkpoint()
        else:
            await self.inner.send(value)

    async def receive(self) -> Frame:
        while len((frame := await self.inner.receive()).data) > self.max_message_bytes:
            pass
        return frame


class SaysThatItWrote(Passing):
    def write_now(self, frame: Frame) -> bool:
        return True


class DeliversPastTheQueue(Passing):
    """Every seventh frame is still to be received when the one behind it is delivered."""

    take: Callable[[Frame], bool] | None = None
    count = 0

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        self.take = take

    async def receive_many(self) -> list[Frame]:
        frames = [await self.inner.receive()]
        self.count += 1
        if self.count % 7 == 0:
            frames.append(await self.inner.receive())
            self.count += 1
            if self.take is not None and self.take(frames[1]):
                del frames[1]
        return frames


class TakesWhenClosed(Passing):
    closed = False

    def send_nowait(self, frame: Frame) -> None:
        if not self.closed:
            self.inner.send_nowait(frame)

    async def aclose(self) -> None:
        self.closed = True
        await self.inner.aclose()


class ForgetsCancellations(Passing):
    async def send(self, value: Frame) -> None:
        if value.method != "notifications/cancelled":
            await self.inner.send(value)


class AnswersBeforeProgress(Passing):
    """Progress is held back until something else was received."""

    def __init__(self, inner: FrameChannel) -> None:
        super().__init__(inner)
        self.late: list[Frame] = []
        self.overtaken = False

    async def receive(self) -> Frame:
        while not (self.late and self.overtaken):
            frame = await self.inner.receive()
            if b"notifications/progress" not in frame.data:
                self.overtaken = bool(self.late)
                return frame
            self.late.append(frame)
        return self.late.pop(0)


class TakesAFloodAtOnce(Passing):
    async def receive_many(self) -> list[Frame]:
        frames = [await self.inner.receive()]
        with trio.move_on_after(0.01):
            while True:
                frames.append(await self.inner.receive())
        return frames


class ForgetsProgress(Passing):
    async def receive(self) -> Frame:
        while True:
            frame = await self.inner.receive()
            if b"notifications/progress" not in frame.data:
                return frame


class ForgetsChanges(Passing):
    async def receive(self) -> Frame:
        while True:
            frame = await self.inner.receive()
            if b"list_changed" not in frame.data or b'"result"' in frame.data:
                return frame


class ForgetsQuestions(Passing):
    async def receive(self) -> Frame:
        while True:
            frame = await self.inner.receive()
            if b"elicitation/create" not in frame.data:
                return frame


class KeepsWhatItCarried(Passing):
    kept: ClassVar[list[Frame]] = []

    async def receive(self) -> Frame:
        frame = await self.inner.receive()
        self.kept.append(frame)
        return frame

    async def send(self, value: Frame) -> None:
        self.kept.append(value)
        await self.inner.send(value)


class SubscribesOnce(Passing):
    """Updates of resources arrive until the first subscription has ended."""

    def __init__(self, inner: FrameChannel) -> None:
        super().__init__(inner)
        self.updates = 0

    async def receive(self) -> Frame:
        while True:
            frame = await self.inner.receive()
            if b"notifications/resources/updated" not in frame.data:
                return frame
            self.updates += 1
            if self.updates == 1:
                return frame


class ToldTooEarly(MemoryTransport):
    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started("memory:")
        await trio.sleep(0.01)
        await super().serve(handler)


class NeverTold(MemoryTransport):
    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await super().serve(handler)


class LeavesHandlersRunning(MemoryTransport):
    """Handlers go on when `serve` is cancelled, until their peers leave."""

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async def go_on(channel: FrameChannel) -> None:
            with trio.CancelScope(shield=True):
                await handler(channel)

        await super().serve(go_on, task_status=task_status)


class LeavesATask(MemoryTransport):
    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with super().connect() as inner:
            trio.lowlevel.spawn_system_task(trio.sleep_forever, name="keep-alive of a faulty binding")
            yield inner


class EndedByVisitors(MemoryTransport):
    """Stops to serve when connections have come and gone without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.visits = 0

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as serving:

            async def count(channel: FrameChannel) -> None:
                self.visits += 1
                if self.visits > 5:
                    serving.cancel()
                await handler(channel)

            await super().serve(count, task_status=task_status)


class OneAtATime(MemoryTransport):
    """Serves the next connection when the one before has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = trio.Lock()

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async def in_turn(channel: FrameChannel) -> None:
            async with self.turn:
                await handler(channel)

        await super().serve(in_turn, task_status=task_status)


class TwoPieces(Planted):
    """Frames of the client go in two pieces that the server's end puts together."""

    def __init__(self) -> None:
        super().__init__(TearsWhenCancelled)

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await super().serve(lambda inner: handler(PutsTogether(inner)), task_status=task_status)
