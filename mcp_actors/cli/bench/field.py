"""A field is all lanes of a load together, over one transport; `ChannelField` has any transport, by its own client."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import trio
import trio.lowlevel

from mcp_actors.abc import (
    ClientTransport,
    Frame,
    FrameChannel,
    NewAccess,
    NoAnswer,
    NotificationsMissed,
    Waiting,
)
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.bench.plan import (
    Era,
    LoadError,
    Message,
    answer_to,
    cancelled,
    id_of,
    notification,
    opening,
)
from mcp_actors.errors import ConnectFailed

__all__ = ["ANSWER_WITHIN_SECONDS", "Arrival", "ChannelField", "Field", "Trouble", "channels", "run_blocking"]


# -- The interface that a scenario has to any transport --------------------------------------------------

ANSWER_WITHIN_SECONDS = 30.0
# Ids of openings and of single questions; scenarios count from one.
_FIRST_OWN_ID = 2_000_000_000

# The lane a message came in on, and the message.
Arrival = tuple[int, bytes]
T = TypeVar("T")


class Trouble(NamedTuple):
    """A request that gets no answer, or, without ``id``, a lane that is lost; counted by its ``kind``."""

    lane: int
    id: int | None
    kind: str
    text: str


class Field(ABC):
    """Lanes to one server: connections, or their equivalent in a transport without connections.

    Raw fields block in their ``async`` methods and never suspend: `run_blocking` drives them, so that no scheduler's
    time is in a figure. Fields on Trio suspend.

    ``troubles`` collects what goes wrong once it is a list, and `arrivals` returns at each; before that it raises
    `LoadError`. ``version`` is the revision that a legacy server has chosen; ``patience`` bounds what has no other
    bound, in seconds.
    """

    era: Era

    def __init__(self, era: Era) -> None:
        self.era = era
        self.version = ""
        self.patience = ANSWER_WITHIN_SECONDS
        self.troubles: list[Trouble] | None = None
        self._ids = iter(range(_FIRST_OWN_ID, 2**53))

    @abstractmethod
    async def connect(self) -> int:
        """Opens a new lane without sending anything."""

    @abstractmethod
    def post(self, lane: int, message: Message) -> None:
        """Queues a message; the next `arrivals` sends it with all others of its lane."""

    @abstractmethod
    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        """Sends the queued messages and waits for messages; none if ``until`` (`time.perf_counter`) passes first.

        Without ``until`` it raises `LoadError` if no message arrives for a long time.
        """

    @abstractmethod
    async def leave(self, lane: int) -> None:
        """Closes a lane as a client does when it has finished."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Sleeps for this time."""

    @abstractmethod
    async def stall(self, lane: int) -> None:
        """Sends the queued messages, and never reads from this lane again."""

    def cancel(self, lane: int, id: int) -> None:
        """Cancels a request in the way of this transport."""
        self.post(lane, cancelled(id))

    def abandon(self, lane: int, id: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases what is held for a request whose answer is no longer waited for."""

    def is_quiet(self, lane: int) -> bool:
        """Whether everything that was sent on a lane has arrived, so that what is sent next cannot overtake it."""
        return True

    async def drop(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases what a lost lane still holds; the server is sent nothing."""

    def fail(self, lane: int, id: int | None, kind: str, text: str) -> None:
        """Adds to the ``troubles``. Raises `LoadError` if they are not collected."""
        if self.troubles is None:
            raise LoadError(text)
        self.troubles.append(Trouble(lane, id, kind, text))

    async def attend(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Opens the stream for messages that answer no request, where the transport has one."""

    def rest(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases resources that the lane needs only during requests, so that other lanes may use them."""

    async def begin(self) -> int:
        """Opens a new lane with the handshake of its era."""
        lane = await self.connect()
        await self.ask(lane, opening(self.era, next(self._ids)))
        if self.era == "legacy":
            self.post(lane, notification("notifications/initialized"))
        return lane

    async def ask(self, lane: int, message: Message) -> dict[str, Any]:
        """Sends one request and returns its result, unmeasured; drops other messages."""
        self.post(lane, message)
        while True:
            for where, data in await self.arrivals():
                if where == lane and id_of(data) == message.id and b'"method"' not in data[:40]:
                    return answer_to(data)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise LoadError("a raw field suspended")


START_WITHIN_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.02
LOOK_SECONDS = 0.002


class _ChannelLane:
    def __init__(self, channel: FrameChannel, stack: AsyncExitStack) -> None:
        self.channel = channel
        self.stack = stack
        self.out: list[Frame] = []
        self.wake = trio.Event()
        self.scope = trio.CancelScope()
        self.reading = trio.CancelScope()


class ChannelField(Field):
    """Lanes over a transport's own client.

    The load itself costs more than on a raw field, so figures compare peers on one transport only.
    """

    def __init__(self, era: Era, target: str | ClientTransport, nursery: trio.Nursery) -> None:
        super().__init__(era)
        self._target = target
        self._nursery = nursery
        self._lanes: dict[int, _ChannelLane] = {}
        self._numbers = 0
        self._found: list[Arrival] = []
        self._arrived = trio.Event()
        self._broken: BaseException | None = None

    async def connect(self) -> int:
        # A server that was started for this load may not listen yet; with troubles it was there before.
        within = START_WITHIN_SECONDS if self.troubles is None else 0.0
        deadline = time.monotonic() + within
        while True:
            stack = AsyncExitStack()
            try:
                target = self._target
                transport = client_transport(target) if isinstance(target, str) else target
                channel = await stack.enter_async_context(transport.connect())
                break
            except ConnectFailed as error:
                if time.monotonic() >= deadline:
                    raise LoadError(str(error)) from error
                await trio.sleep(LOOK_EVERY_SECONDS)
        self._numbers += 1
        lane = self._lanes[self._numbers] = _ChannelLane(channel, stack)
        self._nursery.start_soon(self._write, self._numbers, lane)
        self._nursery.start_soon(self._read, self._numbers, lane)
        return self._numbers

    async def _write(self, number: int, lane: _ChannelLane) -> None:
        with lane.scope:
            while True:
                await lane.wake.wait()
                lane.wake = trio.Event()
                while lane.out:
                    frames, lane.out = lane.out, []
                    try:
                        await lane.channel.send_many(frames)
                    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                        self._lose(number, error)
                        return

    async def _read(self, number: int, lane: _ChannelLane) -> None:
        with lane.reading:
            while True:
                try:
                    frames = await lane.channel.receive_many()
                except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
                    self._lose(number, error)
                    return
                for frame in frames:
                    if isinstance(frame, NoAnswer):
                        reason = frame.reason or LoadError("a request got no answer")
                        about = frame.about if isinstance(frame.about, int) else -1
                        self._note(number, about, "no answer", reason)
                    elif not isinstance(frame, Waiting | NewAccess | NotificationsMissed):
                        self._found.append((number, frame.data))
                self._arrived.set()

    def _lose(self, number: int, error: BaseException) -> None:
        self._note(number, None, "connection lost", error)

    def _note(self, number: int, id: int | None, kind: str, error: BaseException) -> None:
        if self.troubles is None:
            self._broken = self._broken or error
        else:
            text = str(error) or type(error).__name__
            self.fail(number, id, kind, text)
        self._arrived.set()

    def post(self, lane: int, message: Message) -> None:
        self._send(lane, message, None)

    def cancel(self, lane: int, id: int) -> None:
        self._send(lane, cancelled(id), id)

    def _send(self, lane: int, message: Message, cancels: int | None) -> None:
        frame = Frame(
            message.data,
            metadata=message.headers(self.era, self.version),
            method=message.method,
            request=message.id,
            cancels=cancels,
        )
        here = self._lanes[lane]
        if not here.out:
            try:
                here.channel.send_nowait(frame)
                return
            except trio.WouldBlock:
                here.wake.set()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                if self.troubles is None:
                    raise
                self._lose(lane, error)
                return
        here.out.append(frame)

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        while not (self._found or self.troubles):
            if self._broken is not None:
                raise LoadError(f"a channel broke: {self._broken!r}") from self._broken
            self._arrived = trio.Event()
            left = ANSWER_WITHIN_SECONDS if until is None else until - time.perf_counter()
            if left <= 0:
                break
            if until is not None and left <= LOOK_SECONDS:
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_after(left if until is None else left - LOOK_SECONDS) as scope:
                await self._arrived.wait()
            if scope.cancelled_caught and until is None:
                raise LoadError(f"no answer within {ANSWER_WITHIN_SECONDS:g} s")
        found, self._found = self._found, []
        return found

    async def leave(self, lane: int) -> None:
        left = self._lanes.pop(lane)
        with trio.move_on_after(self.patience):
            while left.out:
                await trio.lowlevel.checkpoint()
        left.scope.cancel()
        left.reading.cancel()
        await left.stack.aclose()

    async def drop(self, lane: int) -> None:
        if lane in self._lanes:
            self._lanes[lane].out.clear()
            await self.leave(lane)

    async def stall(self, lane: int) -> None:
        while self._lanes[lane].out:
            await trio.lowlevel.checkpoint()
        self._lanes[lane].reading.cancel()

    async def pause(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def aclose(self) -> None:
        """Closes every lane."""
        for lane in tuple(self._lanes):
            await self.leave(lane)


@asynccontextmanager
async def channels(era: Era, target: str | ClientTransport) -> AsyncIterator[ChannelField]:
    """Closes the lanes of a field at the end of a block."""
    async with trio.open_nursery() as nursery:
        field = ChannelField(era, target, nursery)
        try:
            yield field
        finally:
            with trio.CancelScope(shield=True):
                await field.aclose()
        nursery.cancel_scope.cancel()
