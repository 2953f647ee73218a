"""One task that waits for many sockets, and the tasks that let it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from mcp_actors.supervision.containment import RESTART_PAUSE, start_again
from mcp_actors.supervision.task_kinds import TICKER
from mcp_transports._poller import EpollPoller, Poller, PortablePoller, Ticker, Waiter, open_poller

Pair = tuple[socket.socket, socket.socket]
WAYS: list[type[Poller]] = [EpollPoller, PortablePoller]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for each in made:
        for end in each:
            end.close()


@pytest.fixture(params=WAYS)
async def poller(request: pytest.FixtureRequest, nursery: trio.Nursery) -> Poller:
    poller: Poller = request.param()
    nursery.start_soon(poller.run)
    return poller


def sockets_of(poller: Poller) -> int:
    return int(repr(poller).rstrip(">").rpartition(" of ")[2])


class Reader:
    """Notes what one end receives, until that is its end."""

    def __init__(self, poller: Poller, end: socket.socket, *, removes: socket.socket | None = None) -> None:
        self.end = end
        self.data: list[bytes] = []
        self.error: BaseException | None = None
        self._poller = poller
        self._removes = removes
        self._called = trio.Event()
        poller.add(end.fileno(), self)

    def readable(self) -> None:
        data = self.end.recv(100)
        if data == b"crash":
            raise ZeroDivisionError
        if data == b"exit":
            raise SystemExit
        self.data.append(data)
        if self._removes is not None:
            self._poller.remove(self._removes.fileno())
        if not data:
            self._poller.remove(self.end.fileno())
        self._wake()

    def crashed(self, error: BaseException) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        self._called.set()
        self._called = trio.Event()

    async def called(self) -> None:
        with trio.fail_after(60):
            await self._called.wait()


async def test_whoever_has_something_to_read_is_called(poller: Poller, pairs: list[Pair]) -> None:
    readers = [Reader(poller, end) for _, end in pairs]
    for number, data in ((0, b"a"), (2, b"c")):
        pairs[number][0].send(data)
        await readers[number].called()
    assert [each.data for each in readers] == [[b"a"], [], [b"c"]]
    pairs[1][0].close()
    await readers[1].called()
    assert readers[1].data == [b""]
    assert sockets_of(poller) == 2


async def test_one_that_came_first_may_remove_another(poller: Poller, pairs: list[Pair]) -> None:
    readers = [
        Reader(poller, pairs[0][1], removes=pairs[1][1]),
        Reader(poller, pairs[1][1], removes=pairs[0][1]),
    ]
    last = Reader(poller, pairs[2][1])
    for each, _ in pairs:
        each.send(b"a")
    await last.called()
    assert sorted(len(each.data) for each in readers) == [0, 1]


@pytest.mark.parametrize("how", [b"crash", b"exit"])
async def test_a_reader_that_raises_is_removed_and_told_and_no_other_one(
    poller: Poller, pairs: list[Pair], how: bytes
) -> None:
    broken, other = [Reader(poller, end) for _, end in pairs[:2]]
    with structlog.testing.capture_logs() as logs:
        pairs[0][0].send(how)
        await broken.called()
    assert isinstance(broken.error, ZeroDivisionError if how == b"crash" else SystemExit)
    assert [each["event"] for each in logs] == ["poller failed"]
    assert sockets_of(poller) == 1
    pairs[1][0].send(b"a")
    await other.called()
    assert other.data == [b"a"]


class Leaving(Reader):
    """Removes itself and raises a group, as code that was cancelled does."""

    def readable(self) -> None:
        self._poller.remove(self.end.fileno())
        raise ExceptionGroup("several", [ZeroDivisionError(), ValueError()])


async def test_what_a_reader_raises_that_has_removed_itself_is_told_whole(
    poller: Poller, pairs: list[Pair]
) -> None:
    leaving, other = Leaving(poller, pairs[0][1]), Reader(poller, pairs[1][1])
    with structlog.testing.capture_logs() as logs:
        pairs[0][0].send(b"a")
        await leaving.called()
    assert isinstance(leaving.error, ExceptionGroup)
    assert len(leaving.error.exceptions) == 2
    assert [each["event"] for each in logs] == ["poller failed"]
    pairs[1][0].send(b"b")
    await other.called()
    assert other.data == [b"b"]


@pytest.mark.parametrize("way", WAYS)
def test_it_closes_its_own_descriptor(way: type[Poller], collector_rests: None) -> None:
    before = len(os.listdir("/proc/self/fd"))
    way().close()
    assert len(os.listdir("/proc/self/fd")) == before


class Reading:
    """A task that waits for one end, until it has read ``enough`` bytes."""

    def __init__(self, poller: Poller, end: socket.socket) -> None:
        self.end = end
        self.waiter = Waiter(poller, end.fileno())
        self.data = b""
        self.ended = trio.Event()
        self._read = trio.Event()

    async def run(self, enough: int) -> None:
        def readable() -> bool:
            self.data += self.end.recv(100)
            self._read.set()
            self._read = trio.Event()
            return len(self.data) < enough

        with trio.CancelScope() as self.scope:
            await self.waiter.wait(readable)
        self.ended.set()

    async def asleep(self) -> None:
        """Waits until the task waits."""
        while "asleep" not in repr(self.waiter):
            await trio.lowlevel.checkpoint()

    async def has_read(self) -> None:
        with trio.fail_after(60):
            await self._read.wait()


@pytest.fixture
def reading(poller: Poller, pairs: list[Pair]) -> Iterator[Reading]:
    reading = Reading(poller, pairs[0][1])
    yield reading
    reading.waiter.close()


async def test_who_waits_sleeps_until_it_has_enough_and_the_rest_is_kept(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 2)
    await reading.asleep()
    for piece in (b"a", b"b"):
        assert not reading.ended.is_set()
        pairs[0][0].send(piece)
        await reading.has_read()
    await reading.ended.wait()
    pairs[0][0].send(b"c")
    # Nobody wants it: the poller forgets the socket, and is not woken again and again.
    while sockets_of(poller) != 0:
        await trio.lowlevel.checkpoint()
    assert reading.data == b"ab"
    await reading.run(3)
    assert reading.data == b"abc"


async def test_what_was_cancelled_reads_nothing_any_more(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 9)
    await reading.asleep()
    reading.scope.cancel()
    await reading.ended.wait()
    other = Reader(poller, pairs[1][1])
    for each in pairs[:2]:
        each[0].send(b"later")
    await other.called()
    assert reading.data == b""
    await reading.run(5)
    assert reading.data == b"later"


async def test_what_goes_wrong_is_told_to_who_waits_and_to_nobody_else(
    reading: Reading, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    pairs[0][0].send(b"a")
    with pytest.raises(ZeroDivisionError):
        await reading.waiter.wait(broken)
    await reading.run(1)
    assert reading.data == b"a"


async def test_one_task_waits_and_closing_wakes_it(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 1)
    await reading.asleep()
    with pytest.raises(trio.BusyResourceError):
        await reading.waiter.wait(lambda: True)
    reading.waiter.close()
    reading.waiter.close()
    await reading.ended.wait()
    assert reading.data == b""
    assert sockets_of(poller) == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_poller_that_was_closed_calls_nobody(way: type[Poller], pairs: list[Pair]) -> None:
    poller = way()
    Reader(poller, pairs[0][1])
    poller.close()
    poller.remove(pairs[0][1].fileno())
    waiter = Waiter(poller, pairs[1][1].fileno())
    with trio.CancelScope() as scope:
        scope.cancel()
        await waiter.wait(lambda: True)
    assert scope.cancelled_caught
    waiter.close()


async def test_a_reader_may_be_added_before_anybody_waits_and_after_a_restart(
    pairs: list[Pair], nursery: trio.Nursery
) -> None:
    poller = PortablePoller()
    reader = Reader(poller, pairs[0][1])
    pairs[0][0].send(b"a")
    for _ in range(2):
        with trio.CancelScope() as scope:
            nursery.start_soon(cancelled_after, scope, reader)
            await poller.run()
        pairs[0][0].send(b"b")
    assert reader.data == [b"a", b"b"]


async def cancelled_after(scope: trio.CancelScope, reader: Reader) -> None:
    await reader.called()
    scope.cancel()


async def test_a_socket_that_is_removed_is_forgotten_before_its_number_is_used_again(
    poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    """Removed and closed in one turn, while another task may wait for the other direction of a new socket."""
    for waits_already in (False, True):
        old = socket.socketpair()
        Reader(poller, old[1])
        if waits_already:
            await trio.testing.wait_all_tasks_blocked()
        number = old[1].fileno()
        poller.remove(number)
        old[1].close()
        new = socket.socketpair()
        assert number in {each.fileno() for each in new}
        received, other = new if new[0].fileno() == number else new[::-1]
        reader = Reader(poller, received)
        other.send(b"new")
        await reader.called()
        assert reader.data == [b"new"]
        poller.remove(number)
        for each in (old[0], *new):
            each.close()
    assert sockets_of(poller) == 0


async def test_writing_goes_on_while_reading_is_paused(
    poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    """A connection with back-pressure waits to write, and its reader is removed and added meanwhile."""
    here, there = pairs[0]
    for each in (here, there):
        each.setblocking(False)
    while True:
        try:
            there.send(bytes(4096))
        except BlockingIOError:
            break
    written = trio.Event()

    async def write() -> None:
        await trio.lowlevel.wait_writable(there)
        written.set()

    reader = Reader(poller, there)
    nursery.start_soon(write)
    await trio.testing.wait_all_tasks_blocked()
    poller.remove(there.fileno())
    assert not written.is_set()
    reader = Reader(poller, there)
    here.send(b"a")
    await reader.called()
    assert reader.data == [b"a"]
    assert not written.is_set()
    with trio.fail_after(60):
        while not written.is_set():
            here.recv(1 << 20)
            await trio.testing.wait_all_tasks_blocked()
    poller.remove(there.fileno())


async def test_a_descriptor_that_nobody_can_wait_for_ends_its_reader_alone(
    poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    """epoll refuses it at once; Trio does where the task waits."""
    other = Reader(poller, pairs[0][1])
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with structlog.testing.capture_logs() as logs:

        class Null:
            error: BaseException | None = None

            def readable(self) -> None:
                raise AssertionError

            def crashed(self, error: BaseException) -> None:
                self.error = error

        null = Null()
        try:
            poller.add(descriptor, null)
        except OSError as error:
            null.error = error
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(null.error, PermissionError)
    os.close(descriptor)
    assert [each["event"] for each in logs] in ([], ["socket wait failed"])
    assert sockets_of(poller) == 1
    pairs[0][0].send(b"a")
    await other.called()
    assert other.data == [b"a"]


async def test_a_socket_is_waited_for_once(poller: Poller, pairs: list[Pair], nursery: trio.Nursery) -> None:
    reader = Reader(poller, pairs[0][1])
    with pytest.raises(FileExistsError):
        Reader(poller, pairs[0][1])
    pairs[0][0].send(b"a")
    await reader.called()
    assert reader.data == [b"a"]


@pytest.mark.parametrize(
    ("asked", "way"), [("", EpollPoller), ("portable", PortablePoller), (None, EpollPoller)]
)
def test_the_environment_may_ask_for_the_portable_way(
    asked: str | None, way: type[Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_ACTORS_WAITING", raising=False)
    if asked is not None:
        monkeypatch.setenv("MCP_ACTORS_WAITING", asked)
    poller = open_poller()
    poller.close()
    assert type(poller) is way


def test_no_other_way_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_ACTORS_WAITING", "portably")
    with pytest.raises(
        ValueError, match="MCP_ACTORS_WAITING may be 'portable' or not be set, not 'portably'"
    ):
        open_poller()


async def test_who_waits_for_a_socket_that_cannot_be_waited_for_has_lost_it(
    poller: Poller, pairs: list[Pair], nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash is logged once, where it was; for the task the connection is lost."""
    crash, waits = OSError("no more of it"), trio.lowlevel.wait_readable

    async def wait_readable(descriptor: int) -> None:
        if descriptor == pairs[0][1].fileno():
            raise crash
        await waits(descriptor)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    waiter = Waiter(poller, pairs[0][1].fileno())

    def read() -> bool:
        raise SystemExit

    pairs[0][0].send(b"a")
    with structlog.testing.capture_logs() as logs, pytest.raises(trio.BrokenResourceError) as caught:
        await waiter.wait(read)
    assert isinstance(caught.value.__cause__, OSError if isinstance(poller, PortablePoller) else SystemExit)
    assert [each["event"] for each in logs if each["log_level"] == "error"] in (
        ["socket wait failed"],
        ["poller failed"],
    )
    assert sockets_of(poller) == 0
    waiter.close()


# -- One task that keeps the deadlines of many -----------------------------------------------------------


class Member:
    def __init__(self, seconds: float, error: BaseException | None = None) -> None:
        self.deadline = trio.current_time() + seconds
        self.expired: list[float] = []
        self.crashes: list[BaseException] = []
        self._error = error

    def expire(self, now: float) -> None:
        self.expired.append(now)
        if self._error is not None:
            raise self._error
        self.deadline = math.inf

    def crashed(self, error: BaseException) -> None:
        self.crashes.append(error)


async def test_a_member_expires_within_a_tick_and_never_early(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    members = [Member(seconds) for seconds in (0.5, 2.0, 3.7)]
    for each in members:
        ticker.add(each)
    start = trio.current_time()
    await trio.sleep(10)
    assert [[when - start for when in each.expired] for each in members] == [[1.0], [2.0], [4.0]]
    assert len(ticker) == 3


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(), trio.TrioInternalError()], ids=repr)
async def test_a_member_that_raises_is_discarded_and_told_and_no_other_one(
    error: BaseException, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    broken, later, other = Member(0.5, error), Member(3.5), Member(0.5)
    with structlog.testing.capture_logs() as logs:
        for each in (broken, later, other):
            ticker.add(each)
        await trio.sleep(10)
    assert broken.crashes == [error]
    assert (len(broken.expired), len(later.expired), len(other.expired)) == (1, 1, 1)
    assert ticker.members == {later, other}
    assert [(each["event"], each["log_level"]) for each in logs] == [("ticker failed", "error")]


async def test_a_ticker_that_crashes_itself_is_started_again(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    failures = [ZeroDivisionError()]

    def on_tick() -> None:
        if failures:
            raise failures.pop()

    ticker: Ticker[Member] = Ticker(1.0, on_tick)
    start_again(nursery, TICKER, ticker.run)
    member = Member(0.5)
    ticker.add(member)
    start = trio.current_time()
    with structlog.testing.capture_logs():
        await trio.sleep(10)
    assert [when - start for when in member.expired] == [pytest.approx(2 + RESTART_PAUSE)]


async def test_a_ticker_without_members_sleeps_for_good(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    member = Member(0.5)
    ticker.add(member)
    ticker.discard(member)
    ticker.discard(member)
    await trio.sleep(5)
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
    assert member.expired == []
