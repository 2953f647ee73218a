"""Links between simulated machines: everything that is under way on all of them stands in the clock.

`~mcp_actors.testing.FaultyTransport` puts a nursery and tasks of its own round every channel, which is the way to wrap
a binding that is not ours to change. Here there is no binding underneath, so a frame costs one entry in a heap and no
task: the same thousand sessions took 1.8 s of processor time and 104 KiB each, against 2.8 s and 128 KiB.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel
from mcp_actors.errors import ConnectFailed
from mcp_actors.simulate.distributions import Constant, Distribution, as_distribution
from mcp_actors.simulate.repeatable import VirtualClock

__all__ = ["Link", "LinkEnd", "Site", "Traffic", "Uplink"]

# Frames under way in one direction of one connection before `send` waits: what a pipe or a socket holds.
WINDOW = 256


@attrs.frozen(kw_only=True)
class Link:
    """What the connection of every client is like; the defaults are a perfect one. Where a time is wanted, a number
    will do for a `Constant`. Raises `ValueError` for what cannot be.
    """

    latency: Distribution = attrs.field(default=Constant(0.0), converter=as_distribution)
    """How long a frame is under way, drawn for each. A frame never overtakes the one before it. Connecting takes a
    round trip."""
    bandwidth: float = math.inf
    """Bytes per second each way; frames wait for those before them to be out."""
    stall: float = 0.0
    """The probability, for each frame, that the line stands still before it."""
    stall_time: Distribution = attrs.field(default=Constant(1.0), converter=as_distribution)
    """For how long it stands still."""
    disconnect: float = 0.0
    """The probability, for each frame, that the connection breaks in its place."""
    disconnect_every: float = math.inf
    """The mean time after which a connection breaks, whether it is used or not."""
    notice: Distribution = attrs.field(default=Constant(0.0), converter=as_distribution)
    """How long after a break a side finds out, drawn for each side; what was under way is gone at once."""
    disconnect_at_frame: int | None = None
    """Every connection breaks in place of its n-th frame, both directions counted together from 1."""

    def __attrs_post_init__(self) -> None:
        for name in ("stall", "disconnect"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, from 0 to 1")
        if not self.bandwidth > 0:
            raise ValueError("bandwidth is a number of bytes per second")
        if not self.disconnect_every > 0:
            raise ValueError("disconnect_every is a number of seconds")
        if self.disconnect_at_frame is not None and self.disconnect_at_frame < 1:
            raise ValueError("disconnect_at_frame counts from 1")


@attrs.define
class Traffic:
    """What went over all links so far."""

    disconnects: int = 0
    stalls: int = 0
    frames: int = 0
    bytes: int = 0
    frames_lost: int = 0


class _Connection:
    """What the two ends have in common."""

    __slots__ = ("broken", "clock", "dice", "ends", "frames", "link", "traffic")

    def __init__(self, link: Link, clock: VirtualClock, dice: random.Random, traffic: Traffic) -> None:
        self.link = link
        self.clock = clock
        self.dice = dice
        self.traffic = traffic
        self.frames = 0
        self.broken = False
        self.ends: tuple[LinkEnd, ...] = ()
        if link.disconnect_every < math.inf:
            after = -math.log(1.0 - dice.random()) * link.disconnect_every
            clock.at(trio.current_time() + after, self.cut, None)

    def cut(self, _: object = None) -> None:
        """Breaks, unless it is over already."""
        if self.broken or any(end.closed for end in self.ends):
            return
        self.broken = True
        self.traffic.disconnects += 1
        now = trio.current_time()
        for end in self.ends:
            self.clock.at(now + self.link.notice.sample(self.dice), end.end, _lost())

    def due(self, size: int, line_free: float) -> tuple[float, float]:
        """When a frame that is sent now is out, and when it arrives."""
        link, dice = self.link, self.dice
        begin = max(trio.current_time(), line_free)
        if link.stall and dice.random() < link.stall:
            self.traffic.stalls += 1
            begin += link.stall_time.sample(dice)
        out = begin + size / link.bandwidth
        return out, out + link.latency.sample(dice)

    def is_cut_by_this_frame(self) -> bool:
        self.frames += 1
        link = self.link
        return self.frames == link.disconnect_at_frame or (
            link.disconnect > 0.0 and self.dice.random() < link.disconnect
        )


def _lost() -> trio.BrokenResourceError:
    return trio.BrokenResourceError("the connection was lost (as simulated)")


class LinkEnd(FrameChannel):
    """One end of a simulated connection."""

    def __init__(self, connection: _Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._arrived: deque[Frame] = deque()
        self._ending: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._line_free = self._latest = -math.inf
        self._under_way = 0
        self.closed = False
        self.other: LinkEnd = self

    def __repr__(self) -> str:
        return f"<LinkEnd {self._name}: {len(self._arrived)} to receive, {self._under_way} under way>"

    @property
    def peer(self) -> str:
        return self._name

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_nowait(self, frame: Frame) -> None:
        """Sends one frame on its way; raises `trio.WouldBlock` when too much is under way already."""
        if self.closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._ending is not None:
            raise trio.BrokenResourceError("the connection has ended") from self._ending
        if self._under_way >= WINDOW:
            raise trio.WouldBlock
        connection = self._connection
        traffic = connection.traffic
        traffic.frames += 1
        traffic.bytes += len(frame.data)
        if connection.is_cut_by_this_frame():
            connection.cut()
        self._line_free, due = connection.due(len(frame.data), self._line_free)
        self._latest = max(due, self._latest)
        self._under_way += 1
        connection.clock.at(self._latest, self.other.arrive, frame)

    async def send(self, value: Frame) -> None:
        """Sends one frame; cancelled while it waits for room, it has sent nothing."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                self.send_nowait(value)
                return
            except trio.WouldBlock:
                await self._changed.park()

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. Cancelled, those that still waited for room are not sent, none is torn."""
        for frame in frames:
            await self.send(frame)

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing."""
        await self._wait()
        self._take(1)
        return self._arrived.popleft()

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns all that have arrived with it. Cancelling loses nothing."""
        await self._wait()
        self._take(len(self._arrived))
        frames = list(self._arrived)
        self._arrived.clear()
        return frames

    async def _wait(self) -> None:
        if self.closed or self._arrived or self._ending is not None:
            await trio.lowlevel.checkpoint()
        while not self._arrived or self.closed:
            if self.closed:
                raise trio.ClosedResourceError("this end was closed")
            if self._ending is not None:
                raise type(self._ending)(*self._ending.args)
            await self._changed.park()

    def _take(self, count: int) -> None:
        other = self.other
        if other._under_way >= WINDOW:
            other._changed.unpark_all()
        other._under_way -= count

    # -- what the clock brings ----------------------------------------------------------------------------------------

    def arrive(self, frame: Frame) -> None:
        """A frame is there, unless it was lost on the way."""
        if self._connection.broken or self.closed:
            self._connection.traffic.frames_lost += 1
            return
        self._arrived.append(frame)
        self._changed.unpark_all()

    def end(self, ending: Exception) -> None:
        """No more will come."""
        if self._ending is None:
            self._ending = ending
            self._changed.unpark_all()

    # -- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes both directions: the other end gets what was sent, then the end; what it sends is lost."""
        if not self.closed:
            self.closed = True
            self._arrived.clear()
            self._changed.unpark_all()
            connection = self._connection
            if not connection.broken:
                due = trio.current_time() + connection.link.latency.sample(connection.dice)
                connection.clock.at(max(due, self._latest), self.other.end, trio.EndOfChannel())
        await trio.lowlevel.checkpoint()


class Site:
    """Where one simulated server is served: a `ServerTransport` for connections that `Uplink` makes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handler: ConnectionHandler | None = None
        self._connections: trio.Nursery | None = None

    def __repr__(self) -> str:
        count = 0 if self._connections is None else len(self._connections.child_tasks)
        return f"<Site {self._name}: {count} connections>"

    async def serve(
        self, handler: ConnectionHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until cancelled."""
        try:
            async with trio.open_nursery() as self._connections:
                self._handler = handler
                task_status.started(self._name)
                await trio.sleep_forever()
        finally:
            self._handler = self._connections = None

    def accept(self, channel: LinkEnd) -> None:
        """Serves one connection more; raises `ConnectFailed` if nobody does."""
        if self._connections is None:
            raise ConnectFailed(f"nobody serves {self._name}")
        self._connections.start_soon(self._handle, channel)

    async def _handle(self, channel: LinkEnd) -> None:
        assert self._handler is not None
        async with channel:
            await self._handler(channel)


class Uplink:
    """How one client reaches its site: a `ClientTransport`. Each of its connections draws from dice of its own."""

    def __init__(self, site: Site, link: Link, clock: VirtualClock, traffic: Traffic, seed: str) -> None:
        self._site = site
        self._link = link
        self._clock = clock
        self._traffic = traffic
        self._seed = seed
        self._tried = 0
        self.made = 0
        """Connections so far."""

    def __repr__(self) -> str:
        return f"<Uplink to {self._site!r}: {self.made} connections made>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Takes a round trip; raises `ConnectFailed` if nobody is there."""
        self._tried += 1
        name = f"{self._seed} connection {self._tried}"
        dice = random.Random(name)
        await trio.sleep(self._link.latency.sample(dice) + self._link.latency.sample(dice))
        self.made += 1
        connection = _Connection(self._link, self._clock, dice, self._traffic)
        ours, theirs = LinkEnd(connection, name), LinkEnd(connection, name)
        ours.other, theirs.other = theirs, ours
        connection.ends = ours, theirs
        self._site.accept(theirs)
        async with ours:
            yield ours
