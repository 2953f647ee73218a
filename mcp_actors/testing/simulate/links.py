"""Links between simulated machines, in virtual time.

A link's durations are drawn from distributions, in seconds. `run` runs a Trio program in virtual time so that it does
the same things in the same order each time; every frame in transit is an entry in the heap of its `VirtualClock`.

`~mcp_actors.testing.FaultyTransport` needs a nursery and two tasks for every channel, because it wraps a binding that
it cannot change. Here there is no binding underneath, so a frame costs one entry in a heap and no task: the same
thousand sessions took 1.8 s of processor time and 104 KiB each, against 2.8 s and 128 KiB. Both compute the time of
arrival with `SerialLine`.
"""

from __future__ import annotations

import gc
import heapq
import importlib
import itertools
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import attrs
import trio

from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel
from mcp_actors.errors import ConnectFailed
from mcp_actors.testing.faults import SerialLine

__all__ = [
    "Constant",
    "Distribution",
    "Empirical",
    "Exponential",
    "LinkProfile",
    "LogNormal",
    "SimulatedChannel",
    "SimulatedClientTransport",
    "SimulatedServerTransport",
    "TrafficCounts",
    "Uniform",
    "VirtualClock",
    "as_distribution",
    "drawn",
    "run",
]


# -- distributions -------------------------------------------------------------------------------------


class Distribution(Protocol):
    """Draws durations; any object with this method is one."""

    def sample(self, rng: random.Random) -> float:
        """Returns one value, 0 or more. It must take its random numbers from ``rng`` only."""


def _not_negative(instance: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{type(instance).__name__}: {attribute.name} is a number of seconds, not {value!r}")


@attrs.frozen
class Constant:
    """The same value each time.

    Raises:
        ValueError: it is negative or infinite.
    """

    seconds: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns the value."""
        return self.seconds


@attrs.frozen
class Uniform:
    """Values between ``low`` and ``high``, all equally likely.

    Raises:
        ValueError: one of them is negative or infinite, or ``high`` is lower than ``low``.
    """

    low: float = attrs.field(validator=_not_negative)
    high: float = attrs.field(validator=_not_negative)

    def __attrs_post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError("Uniform: high is lower than low")

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return self.low + rng.random() * (self.high - self.low)


@attrs.frozen
class Exponential:
    """Times between random events that are ``mean`` seconds apart on average.

    Raises:
        ValueError: the mean is negative or infinite.
    """

    mean: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return -math.log(1.0 - rng.random()) * self.mean


@attrs.frozen
class LogNormal:
    """Half of the values below ``median``, and a long tail: the longer, the greater ``sigma``.

    p99 is ``median * exp(2.33 * sigma)``: with 0.5 about 3 times the median, with 1 about 10 times.

    Raises:
        ValueError: a value is negative or infinite.
    """

    median: float = attrs.field(validator=_not_negative)
    sigma: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return self.median * math.exp(rng.gauss(0.0, self.sigma))


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


@attrs.frozen
class Empirical:
    """Values that were measured, each as likely as the others, or in proportion to ``weights``.

    Raises:
        ValueError: there are no values, one is negative or infinite, or the weights do not fit them.
    """

    values: Sequence[float] = attrs.field(converter=_numbers)
    weights: Sequence[float] | None = attrs.field(default=None, converter=attrs.converters.optional(_numbers))
    _cumulated: tuple[float, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not self.values or not all(0 <= each < math.inf for each in self.values):
            raise ValueError("Empirical: values are one or more numbers of seconds")
        weights = self.weights if self.weights is not None else (1.0,) * len(self.values)
        if len(weights) != len(self.values) or not all(0 <= each < math.inf for each in weights):
            raise ValueError("Empirical: one weight for each value, none of them negative")
        if not 0 < sum(weights) < math.inf:
            raise ValueError("Empirical: the weights together must be a number that is more than 0")
        object.__setattr__(self, "_cumulated", tuple(itertools.accumulate(weights)))

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return rng.choices(self.values, cum_weights=self._cumulated)[0]


def as_distribution(value: float | Distribution) -> Distribution:
    """Returns ``value``, or a `Constant` for a plain number."""
    return Constant(value) if isinstance(value, int | float) else value


def drawn(distribution: Distribution, rng: random.Random) -> float:
    """Returns a value of a distribution; infinity is one, for what never comes.

    Raises:
        ValueError: It is no duration.
        Exception: What the distribution raises.
    """
    value = distribution.sample(rng)
    if not (isinstance(value, int | float) and value >= 0):
        raise ValueError(f"{distribution!r}: a duration is a number of seconds, 0 or more, and not {value!r}")
    return value


# -- virtual time --------------------------------------------------------------------------------------

T = TypeVar("T")

# Ten thousand sessions are some million objects that live to the end, and calls leave next to no cyclic garbage:
# collecting it as often as usual took a fifth of the time.
COLLECT_AFTER = (1_000_000, 50, 1_000)


class VirtualClock(trio.abc.Clock):
    """A clock that starts at 0, does not move while any task can run, and then jumps to the next deadline.

    `trio.testing.MockClock` with autojump does the same in three turns of Trio's loop for each jump; this one needs a
    single turn, and its time is the deadline itself, not a sum that should be equal to it. Trio asks a clock how long
    to sleep only when no task is ready. That is the moment to jump, as nothing here waits for the world outside.

    Frames in transit on links are entries in the clock's own heap, so their arrival costs no task and no cancel scope.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._serial = 0
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.failure: Exception | None = None
        """Why the run is of no use: a mistake in its world, where the engine would take it for a lost connection."""
        self.failed = trio.Event()

    def fail(self, error: Exception) -> None:
        """Ends the run with an error; the first one counts."""
        if self.failure is None:
            self.failure = error
            self.failed.set()

    def draw(self, distribution: Distribution, rng: random.Random) -> float:
        """Does the same as `drawn`; what that raises ends the run."""
        try:
            return drawn(distribution, rng)
        except Exception as error:
            self.fail(error)
            raise

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:.6f} s, {len(self._due)} due>"

    def at(self, when: float, action: Callable[[Any], None], argument: Any) -> None:
        """Calls ``action(argument)`` when that time has come; of several at one time, in the order of these requests.

        It must not raise: it is called by Trio's loop itself, between two tasks.
        """
        self._serial += 1
        heapq.heappush(self._due, (when, self._serial, action, argument))

    def start_clock(self) -> None:
        """Does nothing: the clock moves only by jumps."""

    def current_time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jumps to ``deadline``, or to an action that is due before it and calls that; Trio need not sleep."""
        due = self._due
        then = min(deadline, due[0][0]) if due else deadline
        if then == math.inf:
            return math.inf
        self._now = max(then, self._now)
        while due and due[0][0] <= self._now:
            _, _, action, argument = heapq.heappop(due)
            action(argument)
        return 0.0


def run(function: Callable[[VirtualClock], Awaitable[T]], seed: int) -> T:
    """`trio.run` on a clock of its own, which ``function`` is given.

    Raises `RuntimeError` inside a running Trio program, and where this version of Trio cannot be made repeatable.
    """
    clock = VirtualClock()
    with _repeatable(seed), _seldom_collecting():
        return trio.run(function, clock, clock=clock)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Makes Trio's scheduler and the module `random` repeatable for the length of the block.

    Trio runs the tasks that are ready in a random order, on purpose, and has no public switch for that. It has one for
    Hypothesis, in a private module: a batch is sorted by the age of its tasks before it is shuffled, and the rng for
    that are one object that can be seeded. The first half matters as much as the second: tasks whose deadlines are
    equal become ready in the order of their memory addresses. Sorting loses nothing: the order is still random, the
    same for the same seed.
    """
    scheduler: Any = importlib.import_module("trio._core._run")
    rng = getattr(scheduler, "_r", None)
    if not isinstance(rng, random.Random) or not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        raise RuntimeError(f"trio {trio.__version__} has no known way to make its scheduler repeatable")
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, rng.getstate(), random.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    rng.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        rng.setstate(before[1])
        random.setstate(before[2])


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Collects the garbage of earlier runs first, and collects rarely in the block."""
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Makes all of it old, so that the next collection of what is young need not look through a million objects.
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)


# -- links ---------------------------------------------------------------------------------------------

# Frames in transit in one direction of one connection before `send` waits: what a pipe or a socket holds.
WINDOW = 256


@attrs.frozen(kw_only=True)
class LinkProfile:
    """The properties of every client's connection. The defaults are a perfect one.

    A number in place of a distribution means `Constant`; all times are seconds.

    Raises:
        ValueError: a probability is not within 0 and 1, a time is negative, the bandwidth or ``disconnect_every`` is
            not positive, or ``disconnect_at_frame`` is less than 1.
    """

    latency: Distribution = attrs.field(default=Constant(0.0), converter=as_distribution)
    """Seconds that a frame is in transit, drawn for each. A frame never overtakes the one before it. Connecting takes
    a round trip."""
    bandwidth: float = math.inf
    """Bytes per second in each direction; a frame leaves after those before it."""
    stall: float = 0.0
    """The probability, for each frame, that the line stalls before it."""
    stall_time: Distribution = attrs.field(default=Constant(1.0), converter=as_distribution)
    """Seconds for which it stalls."""
    disconnect: float = 0.0
    """The probability, for each frame, that the connection breaks in its place."""
    disconnect_every: float = math.inf
    """The mean of the seconds after which a connection breaks, whether it is used or not."""
    notice: Distribution = attrs.field(default=Constant(0.0), converter=as_distribution)
    """Seconds until a side learns of a break, drawn for each side. What was in transit is lost at once."""
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
class TrafficCounts:
    """Counts of what went over all links."""

    disconnects: int = 0
    stalls: int = 0
    frames: int = 0
    bytes: int = 0
    frames_lost: int = 0

    def count_stall(self) -> None:
        """Counts one stall of a line."""
        self.stalls += 1


class _SimulatedConnection:
    """The state that the two ends of a connection share."""

    __slots__ = ("broken", "clock", "ends", "frames", "link", "rng", "traffic")

    def __init__(
        self, link: LinkProfile, clock: VirtualClock, rng: random.Random, traffic: TrafficCounts
    ) -> None:
        self.link = link
        self.clock = clock
        self.rng = rng
        self.traffic = traffic
        self.frames = 0
        self.broken = False
        self.ends: tuple[SimulatedChannel, ...] = ()
        if link.disconnect_every < math.inf:
            after = -math.log(1.0 - rng.random()) * link.disconnect_every
            clock.at(trio.current_time() + after, self.cut, None)

    def cut(self, _: object = None) -> None:
        """Breaks the connection, unless it is over already."""
        if self.broken or any(end.closed for end in self.ends):
            return
        self.broken = True
        self.traffic.disconnects += 1
        now = trio.current_time()
        for end in self.ends:
            self.clock.at(now + self.clock.draw(self.link.notice, self.rng), end.end, _lost())

    def line(self) -> SerialLine:
        """Returns the line for one direction."""
        link = self.link
        stall_time, latency = (
            partial(self.clock.draw, link.stall_time),
            partial(self.clock.draw, link.latency),
        )
        return SerialLine(link.bandwidth, link.stall, stall_time, latency, self.traffic.count_stall)

    def is_cut_by_this_frame(self) -> bool:
        self.frames += 1
        link = self.link
        return self.frames == link.disconnect_at_frame or (
            link.disconnect > 0.0 and self.rng.random() < link.disconnect
        )


def _lost() -> trio.BrokenResourceError:
    return trio.BrokenResourceError("the connection was lost (as simulated)")


class SimulatedChannel(FrameChannel):
    """One end of a simulated connection."""

    def __init__(self, connection: _SimulatedConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._arrived: deque[Frame] = deque()
        self._ending: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._line = connection.line()
        self._latest = -math.inf
        self._in_transit = 0
        self.closed = False
        self.other: SimulatedChannel = self

    def __repr__(self) -> str:
        return (
            f"<SimulatedChannel {self._name}: {len(self._arrived)} to receive, {self._in_transit} in transit>"
        )

    @property
    def peer(self) -> str:
        return self._name

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_nowait(self, frame: Frame) -> None:
        """Sends one frame without waiting.

        Raises:
            trio.WouldBlock: Too much is in transit already.
            trio.ClosedResourceError: This end was closed.
            trio.BrokenResourceError: The connection has ended.
        """
        if self.closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._ending is not None:
            raise trio.BrokenResourceError("the connection has ended") from self._ending
        if self._in_transit >= WINDOW:
            raise trio.WouldBlock
        connection = self._connection
        traffic = connection.traffic
        traffic.frames += 1
        traffic.bytes += len(frame.data)
        if connection.is_cut_by_this_frame():
            connection.cut()
        self._latest = max(self._line.arrival(len(frame.data), connection.rng), self._latest)
        self._in_transit += 1
        connection.clock.at(self._latest, self.other.arrive, frame)

    async def send(self, value: Frame) -> None:
        """Sends one frame. If it is cancelled while it waits for space, nothing was sent."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                self.send_nowait(value)
                return
            except trio.WouldBlock:
                await self._changed.park()

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. After a cancellation, those that waited for space are not sent; none is torn."""
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
        if other._in_transit >= WINDOW:
            other._changed.unpark_all()
        other._in_transit -= count

    # -- called by the clock ------------------------------------------------------------------------------------------

    def arrive(self, frame: Frame) -> None:
        """Receives a frame, unless it was lost on the way."""
        if self._connection.broken or self.closed:
            self._connection.traffic.frames_lost += 1
            return
        self._arrived.append(frame)
        self._changed.unpark_all()

    def end(self, ending: Exception) -> None:
        """Receives the end of the connection."""
        if self._ending is None:
            self._ending = ending
            self._changed.unpark_all()

    # -- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes both directions. The other end gets what was sent and then the end; what it sends is lost."""
        if not self.closed:
            self.closed = True
            self._arrived.clear()
            self._changed.unpark_all()
            connection = self._connection
            if not connection.broken:
                due = trio.current_time() + connection.clock.draw(connection.link.latency, connection.rng)
                connection.clock.at(max(due, self._latest), self.other.end, trio.EndOfChannel())
        await trio.lowlevel.checkpoint()


class SimulatedServerTransport:
    """The transport of one simulated server, for connections that `SimulatedClientTransport` makes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handler: ConnectionHandler | None = None
        self._connections: trio.Nursery | None = None

    def __repr__(self) -> str:
        count = 0 if self._connections is None else len(self._connections.child_tasks)
        return f"<SimulatedServerTransport {self._name}: {count} connections>"

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

    def accept(self, channel: SimulatedChannel) -> None:
        """Serves one more connection; raises `ConnectFailed` if the server is not running."""
        if self._connections is None:
            raise ConnectFailed(f"nobody serves {self._name}")
        self._connections.start_soon(self._handle, channel)

    async def _handle(self, channel: SimulatedChannel) -> None:
        assert self._handler is not None
        async with channel:
            await self._handler(channel)


class SimulatedClientTransport:
    """The transport of one simulated client. Each of its connections has its own random numbers."""

    def __init__(
        self,
        server_transport: SimulatedServerTransport,
        link: LinkProfile,
        clock: VirtualClock,
        traffic: TrafficCounts,
        seed: str,
    ) -> None:
        self._server_transport = server_transport
        self._link = link
        self._clock = clock
        self._traffic = traffic
        self._seed = seed
        self._tried = 0
        self.made = 0
        """How many connections were made."""

    def __repr__(self) -> str:
        return f"<SimulatedClientTransport to {self._server_transport!r}: {self.made} connections made>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a connection after a round trip; raises `ConnectFailed` if the server is not running."""
        self._tried += 1
        name = f"{self._seed} connection {self._tried}"
        rng = random.Random(name)
        latency, draw = self._link.latency, self._clock.draw
        await trio.sleep(draw(latency, rng) + draw(latency, rng))
        self.made += 1
        connection = _SimulatedConnection(self._link, self._clock, rng, self._traffic)
        ours, theirs = SimulatedChannel(connection, name), SimulatedChannel(connection, name)
        ours.other, theirs.other = theirs, ours
        connection.ends = ours, theirs
        self._server_transport.accept(theirs)
        async with ours:
            yield ours
