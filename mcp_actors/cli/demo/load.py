"""The load of the demo: sessions over every binding in `BINDINGS`, in both eras, until the time is over.

All sessions are open from the first call to the last. At first one of them calls, one call after the other, binding by
binding: this is what a call takes. Then a few call at a steady rate, and in the end all of them, each again as soon as
it has its answer: then the processors are the limit, and a latency contains the time a call waited for them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import attrs
import trio

from mcp_actors import Client, Server
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.demo import servers
from mcp_actors.errors import McpError
from mcp_actors.supervision.histogram import Histogram
from mcp_actors.supervision.platform import join_words
from mcp_actors.types import CallToolResult, TextContent

__all__ = ["BINDINGS", "ERAS", "Binding", "DemoLatencies", "DemoLoad", "Failures", "Tally"]


# -- Figures: a `Tally` for each binding and era, whose memory does not grow with the calls ------------


@attrs.define
class Failures:
    """The errors of one row: how many there were, and the first few of them in words."""

    count: int = 0
    examples: list[str] = attrs.field(factory=list)

    def add(self, what: str) -> None:
        """Counts an error and keeps its text if it is one of the first three."""
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(what)


@attrs.define
class DemoLatencies:
    """Seconds until an answer, measured in three ways."""

    alone: Histogram = attrs.field(factory=Histogram)
    """One call after the other, while nothing else calls."""
    steady: Histogram = attrs.field(factory=Histogram)
    """At a steady rate, each from the moment at which its call was due."""
    busy: Histogram = attrs.field(factory=Histogram)
    """While all sessions call."""

    def merge(self, other: DemoLatencies) -> None:
        """Adds those of another row."""
        for name in ("alone", "steady", "busy"):
            getattr(self, name).merge(getattr(other, name))


@attrs.define
class Tally:
    """One row of the table."""

    binding: str
    era: str
    planned: int
    """Sessions to open."""
    calls_at_once: int
    """Calls that each session keeps in flight."""
    opened: int = 0
    live: int = 0
    calls: int = 0
    """Calls that came to their end: answered, or cancelled on purpose."""
    reports: int = 0
    """Progress reports that arrived."""
    cancelled: int = 0
    """Calls that were cancelled in flight."""
    confirmed: int = 0
    """Of these, the handlers at the server that saw ``trio.Cancelled``, as counted by the server."""
    failures: Failures = attrs.field(factory=Failures)
    latencies: DemoLatencies = attrs.field(factory=DemoLatencies)
    """Of the calls that were answered."""

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Returns the sum of all rows."""
        total = cls("all", "", 0, 1)
        for tally in tallies:
            for name in ("planned", "opened", "live", "calls", "reports", "cancelled", "confirmed"):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
            total.failures.count += tally.failures.count
            total.latencies.merge(tally.latencies)
        return total


ERAS = ("legacy", "modern")

_WARM_UP = 10  # calls before those alone that are not measured
_ALONE_CALLS = 200  # for each binding and era
_ALONE_PART = 0.1  # of the seconds of the demo: no binding takes longer for its calls alone
_STEADY_SESSIONS = 2  # of each binding and era
_STEADY_RATE = 10  # calls a second of each of them
_STEADY_PART = 0.5  # of the seconds of the demo
_SHARE_OF_HELD = 0.15  # calls that are cancelled in flight
_SHARE_OF_STEPS = 0.30  # calls that report progress
_MAX_HOLD = 0.02  # seconds from a held call's first report to its cancellation, at most
_CONFIRM_WITHIN = 20.0  # seconds for the server to have counted all cancellations of a session
_OPEN_WITHIN = 10.0  # seconds for all sessions to be open; then those call that are
_CALL_WITHIN = 20.0  # seconds; a call that takes longer is an error of the demo

Target = Server | str | ClientTransport


@attrs.frozen
class Binding:
    """One row of the table of bindings.

    ``open`` gives a function that names a target for each new session; what it needs (a listening server) lives as
    long as its block. ``sessions`` is how many to open over all eras; ``None``: all that the others leave.
    """

    name: str
    open: Callable[[], AbstractAsyncContextManager[Callable[[], Target]]]
    sessions: int | None
    calls_at_once: int


@asynccontextmanager
async def _memory() -> AsyncIterator[Callable[[], Target]]:
    server = servers.server()
    yield lambda: server


@asynccontextmanager
async def _stdio() -> AsyncIterator[Callable[[], Target]]:
    command = join_words([sys.executable, "-P", "-m", "mcp_actors", "serve", servers.__name__])
    # These children are this program once more, and find it as it was found.
    yield lambda: client_transport(f"stdio:{command}", env="inherit")


def _listening(address: str) -> Callable[[], AbstractAsyncContextManager[Callable[[], Target]]]:
    @asynccontextmanager
    async def listen() -> AsyncIterator[Callable[[], Target]]:
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(servers.server().serve, address)
            yield lambda: url
            nursery.cancel_scope.cancel()

    return listen


BINDINGS: tuple[Binding, ...] = (
    Binding("memory", _memory, sessions=None, calls_at_once=1),
    # Client and server share this process, and over HTTP each call is a request of its own: dearer than in memory.
    Binding("http", _listening("http://127.0.0.1:0/mcp"), sessions=32, calls_at_once=2),
    Binding("ws", _listening("ws://127.0.0.1:0/ws"), sessions=32, calls_at_once=2),
    Binding("tcp", _listening("tcp://127.0.0.1:0"), sessions=32, calls_at_once=2),
    # A session over stdio is a child process: a few of them, busy, instead of hundreds of interpreters.
    Binding("stdio", _stdio, sessions=4, calls_at_once=16),
)


class WrongAnswer(Exception):
    """The server gave a wrong answer."""


@attrs.define(eq=False)
class DemoLoad:
    """All sessions of one run; ``tallies`` may be read at any time."""

    sessions: int
    seconds: float
    random: random.Random
    tallies: list[tuple[Binding, Tally]] = attrs.field(init=False)
    phase: str = attrs.field(init=False, default="opening the sessions")
    """What is being done, in a few words."""
    opened: trio.Event = attrs.field(factory=trio.Event)
    """Set when all sessions are open, or have failed to open."""
    starting: trio.Event = attrs.field(factory=trio.Event)
    """Set when all sessions begin to call together."""
    stopping: trio.Event = attrs.field(factory=trio.Event)
    began: float | None = attrs.field(init=False, default=None)
    ended: float | None = attrs.field(init=False, default=None)
    _open: list[_DemoSession] = attrs.field(init=False, factory=list)
    _measuring: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        # In a small demo no binding but the first gets more than an even share, and in a tiny one none at all.
        part = self.sessions // (2 * len(BINDINGS))
        some = part >= len(ERAS)
        few = {each.name: min(each.sessions, part) if some else 0 for each in BINDINGS if each.sessions}
        self.tallies = []
        for binding in BINDINGS:
            wanted = few.get(binding.name, self.sessions - sum(few.values()))
            for index, era in enumerate(ERAS):
                planned = (wanted + index) // len(ERAS)
                if planned:
                    self.tallies.append((binding, Tally(binding.name, era, planned, binding.calls_at_once)))

    @property
    def rows(self) -> list[Tally]:
        return [tally for _, tally in self.tallies]

    async def run(self) -> None:
        """Opens all sessions at once, returns when all have ended; `stop` makes that soon."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._conduct)
            async with trio.open_nursery() as bindings:
                for binding in BINDINGS:
                    bindings.start_soon(self._run_binding, binding)
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """No new calls from now on."""
        if self.ended is None:
            self.ended = trio.current_time()
        self._measuring.cancel()
        self.stopping.set()
        for each in (self.opened, self.starting):
            each.set()  # the tasks that wait for it may leave

    @property
    def elapsed(self) -> float:
        """Seconds in which calls were begun, so far."""
        if self.began is None:
            return 0.0
        return (self.ended or trio.current_time()) - self.began

    @property
    def steady_sessions(self) -> int:
        """Sessions that call at a steady rate."""
        return sum(min(row.planned, _STEADY_SESSIONS) for row in self.rows)

    @property
    def steady_rate(self) -> int:
        """Calls a second of these sessions together."""
        return self.steady_sessions * _STEADY_RATE

    def _look_whether_open(self) -> None:
        if sum(row.opened + row.failures.count for row in self.rows) >= self.sessions:
            self.opened.set()

    async def _conduct(self) -> None:
        """Lets the sessions call, in one way after the other; `stop` ends that early."""
        with trio.move_on_after(_OPEN_WITHIN):
            await self.opened.wait()
        with self._measuring:
            self.phase = "one call at a time"
            for row in self.rows:
                for session in self._some_of(row, 1):
                    await session.call_alone(self.random, self.seconds * _ALONE_PART)
            self.phase = f"{self.steady_rate} calls a second"
            async with trio.open_nursery() as nursery:
                until = trio.current_time() + self.seconds * _STEADY_PART
                for row in self.rows:
                    for session in self._some_of(row, _STEADY_SESSIONS):
                        nursery.start_soon(session.call_steadily, self.random, until)
        if self.ended is None:
            self.phase = "all sessions call"
            self.began = trio.current_time()
            self.starting.set()
            await trio.sleep(self.seconds)
            self.stop()

    def _some_of(self, row: Tally, most: int) -> list[_DemoSession]:
        return [session for session in self._open if session.tally is row][:most]

    async def _run_binding(self, binding: Binding) -> None:
        async with binding.open() as target:
            async with trio.open_nursery() as sessions:
                for each, tally in self.tallies:
                    if each is binding:
                        for number in range(tally.planned):
                            who = f"{tally.binding}/{tally.era}/{number}"
                            sessions.start_soon(self._session, target(), tally, who)

    async def _session(self, target: Target, tally: Tally, who: str) -> None:
        try:
            async with Client(target, era=tally.era, timeout=_CALL_WITHIN, cap=2 * _CALL_WITHIN) as client:
                session = _DemoSession(client, tally, who)
                self._open.append(session)
                tally.opened += 1
                tally.live += 1
                self._look_whether_open()
                try:
                    await self.starting.wait()
                    await self._use(session)
                finally:
                    tally.live -= 1
                    self._open.remove(session)
        except Exception as error:
            tally.failures.add(f"{who}: {type(error).__name__}: {error}")
            self._look_whether_open()

    async def _use(self, session: _DemoSession) -> None:
        async with trio.open_nursery() as calls:
            for _ in range(session.tally.calls_at_once):
                calls.start_soon(session.call_repeatedly, random.Random(self.random.random()), self.stopping)
        await session.confirm()


@attrs.define(eq=False)
class _DemoSession:
    client: Client
    tally: Tally
    who: str
    cancelled: int = 0
    confirmed: int = 0

    async def call_alone(self, chance: random.Random, seconds: float) -> None:
        """One plain call after the other, at most so many seconds; ends with its first error, which is counted."""
        with self._errors_counted(), trio.move_on_after(seconds):
            for _ in range(_WARM_UP):
                await self._plain_call(chance)
            for _ in range(_ALONE_CALLS):
                began = trio.current_time()
                await self._plain_call(chance)
                self.tally.latencies.alone.add(trio.current_time() - began)

    async def call_steadily(self, chance: random.Random, until: float) -> None:
        """Calls when the next call is due, however long the one before took; ends as `call_alone` does."""
        due = trio.current_time() + chance.random() / _STEADY_RATE
        with self._errors_counted():
            while due < until:
                await trio.sleep_until(due)
                await self._plain_call(chance)
                self.tally.latencies.steady.add(trio.current_time() - due)
                due += 1 / _STEADY_RATE

    @contextmanager
    def _errors_counted(self) -> Iterator[None]:
        try:
            yield
        except (McpError, WrongAnswer) as error:
            self.tally.failures.add(f"{self.who}: {type(error).__name__}: {error}")

    async def call_repeatedly(self, chance: random.Random, stopping: trio.Event) -> None:
        """One call after the other; ends with its first error, which is counted."""
        with self._errors_counted():
            while not stopping.is_set():
                chosen = chance.random()
                if chosen < _SHARE_OF_HELD:
                    await self._held_call(chance.random() * _MAX_HOLD)
                    continue
                started = trio.current_time()
                if chosen < _SHARE_OF_HELD + _SHARE_OF_STEPS:
                    await self._call_with_progress(chance.randint(2, 6))
                else:
                    await self._plain_call(chance)
                self.tally.latencies.busy.add(trio.current_time() - started)
                self.tally.calls += 1

    async def _plain_call(self, chance: random.Random) -> None:
        a, b = chance.randint(0, 10**6), chance.randint(0, 10**6)
        answer = _value(await self.client.call_tool("add", {"a": a, "b": b}))
        if answer != a + b:
            raise WrongAnswer(f"{a} + {b} gave {answer!r}")

    async def _call_with_progress(self, count: int) -> None:
        seen: list[float] = []
        await self.client.call_tool(
            "steps", {"count": count}, on_progress=lambda report: seen.append(report.progress)
        )
        self.tally.reports += len(seen)
        if seen != list(range(1, count + 1)):
            raise WrongAnswer(f"{count} reports of progress were due before the answer, these came: {seen}")

    async def _held_call(self, hold: float) -> None:
        """Cancelled ``hold`` seconds after its first report: by then the handler runs for certain."""
        with trio.CancelScope() as scope:

            def begun(_report: object) -> None:
                self.tally.reports += 1
                scope.deadline = trio.current_time() + hold

            answer = await self.client.call_tool("hold", {"who": self.who}, on_progress=begun)
        if not scope.cancelled_caught:
            raise WrongAnswer(f"a held call was answered: {answer.content!r}")
        self.cancelled += 1
        self.tally.cancelled += 1
        self.tally.calls += 1
        await self._count_confirmed()
        self.tally.calls += 1

    async def confirm(self) -> None:
        """Waits until the server has counted every cancellation; what is missing after that is an error."""
        with trio.move_on_after(_CONFIRM_WITHIN):
            while self.confirmed < self.cancelled:
                await trio.sleep(0.01)
                await self._count_confirmed()
        if self.confirmed != self.cancelled:
            self.tally.failures.add(
                f"{self.who}: {self.cancelled} calls cancelled, {self.confirmed} handlers saw it"
            )

    async def _count_confirmed(self) -> None:
        counted = _value(await self.client.call_tool("cancellations", {"who": self.who}))
        if counted > self.confirmed:  # the answers of two calls may overtake each other
            self.tally.confirmed += counted - self.confirmed
            self.confirmed = counted


def _value(result: CallToolResult) -> int:
    """Returns the value of a tool of the demo, read from its text: not every revision has structured content."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if result.is_error or len(texts) != 1 or not texts[0].isdecimal():
        raise WrongAnswer(f"no number but {result.content!r}")
    return int(texts[0])
