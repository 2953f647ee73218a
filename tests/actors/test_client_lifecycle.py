"""The table of a client's life: each row is driven from outside, and each pair that is missing is refused."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import (
    Client,
    ClientPool,
    ClosedElsewhere,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    Server,
)
from mcp_actors._client.connectivity import NEXT_STATE, ClientEvent, ClientState
from mcp_actors.testing import ScriptedPeer
from mcp_transports.memory import MemoryTransport

from .peers import BreaksFirst, counting, faulty_pair, greet, settled


class Steered:
    """A transport whose attempts succeed, fail and end when the test says so."""

    def __init__(self) -> None:
        self.attempts = 0
        self.attempted = trio.Event()
        self.outcomes_in, self.outcomes = trio.open_memory_channel[Any](9)
        self.may_close = trio.Event()
        self.may_close.set()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self.attempts += 1
        self.attempted.set()
        try:
            outcome = await self.outcomes.receive()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
        finally:
            with trio.CancelScope(shield=True):
                await self.may_close.wait()


class Life:
    """A client that is entered by a task of its own, and what the test does to it."""

    def __init__(self, nursery: trio.Nursery, *, restart: bool, era: str) -> None:
        self.transport = Steered()
        self.client = Client(self.transport, restart=restart, era=era)
        self.raised: McpError | None = None
        self.peer: ScriptedPeer | None = None
        self._nursery = nursery
        self._leave = trio.Event()

    @property
    def state(self) -> str:
        return repr(self.client).partition("' ")[2].rstrip(">")

    async def enter(self) -> None:
        self._nursery.start_soon(self._enter)
        await settled()

    async def _enter(self) -> None:
        try:
            async with self.client:
                await self._leave.wait()
        except McpError as error:
            self.raised = error

    async def accept(self) -> ScriptedPeer:
        """The attempt succeeds, and the server waits for the handshake."""
        await self.next_attempt()
        channel, self.peer = faulty_pair()
        self.transport.outcomes_in.send_nowait(channel)
        await settled()
        return self.peer

    async def connect(self) -> None:
        await greet(await self.accept())
        await settled()

    async def hang_up(self) -> None:
        assert self.peer is not None
        await self.peer.channel.aclose()
        await settled()

    async def refuse(self, error: BaseException | None = None) -> None:
        await self.next_attempt()
        self.transport.outcomes_in.send_nowait(error or ConnectFailed("nobody there"))
        await settled()

    async def next_attempt(self) -> None:
        """Waits for the end of the pause before it."""
        with trio.fail_after(60):
            await self.transport.attempted.wait()
        self.transport.attempted = trio.Event()

    async def close(self) -> None:
        """Closes the client and waits for that."""
        await self.client.aclose()

    async def begin_to_close(self) -> None:
        """Closes the client, whose transport takes its time."""
        if self.transport.may_close.is_set():
            self.transport.may_close = trio.Event()
        self._nursery.start_soon(self.client.aclose)
        await settled()

    async def let_it_close(self) -> None:
        self.transport.may_close.set()
        await settled()

    async def leave(self) -> None:
        """Ends everything, whatever state it is in."""
        self.transport.may_close.set()
        self._leave.set()
        await self.client.aclose()
        await settled()


Steps = Callable[[Life], Awaitable[None]]


async def do_nothing(life: Life) -> None: ...


async def reconnect(life: Life) -> None:
    await life.enter()
    await life.connect()
    await life.hang_up()


async def be_connected(life: Life) -> None:
    await life.enter()
    await life.connect()


async def be_closing(life: Life) -> None:
    await be_connected(life)
    await life.begin_to_close()


async def be_closed(life: Life) -> None:
    await be_connected(life)
    await life.close()


REACH: dict[ClientState, Steps] = {
    ClientState.NEW: do_nothing,
    ClientState.DISCARDED: Life.close,
    ClientState.CONNECTING: Life.enter,
    ClientState.CONNECTED: be_connected,
    ClientState.RECONNECTING: reconnect,
    ClientState.CLOSING: be_closing,
    ClientState.CLOSED: be_closed,
}


async def die_of_the_probe(life: Life) -> None:
    peer = await life.accept()
    assert (await peer.receive())["method"] == "server/discover"
    await life.hang_up()
    assert life.transport.attempts == 2


async def refuse_again(life: Life) -> None:
    await life.refuse()
    await life.refuse()
    assert life.transport.attempts >= 3


async def crash(life: Life) -> None:
    await life.refuse(SystemExit(3))


HAPPEN: dict[tuple[ClientState, ClientEvent], Steps] = {
    (ClientState.NEW, ClientEvent.OPEN): Life.enter,
    (ClientState.NEW, ClientEvent.CLOSE): Life.close,
    (ClientState.DISCARDED, ClientEvent.CLOSE): Life.close,
    (ClientState.CONNECTING, ClientEvent.CONNECTED): Life.connect,
    (ClientState.CONNECTING, ClientEvent.LOST): die_of_the_probe,
    (ClientState.CONNECTING, ClientEvent.CLOSE): Life.begin_to_close,
    (ClientState.CONNECTING, ClientEvent.END): Life.refuse,
    (ClientState.CONNECTED, ClientEvent.LOST): Life.hang_up,
    (ClientState.CONNECTED, ClientEvent.CLOSE): Life.begin_to_close,
    (ClientState.CONNECTED, ClientEvent.END): Life.hang_up,
    (ClientState.RECONNECTING, ClientEvent.CONNECTED): Life.connect,
    (ClientState.RECONNECTING, ClientEvent.LOST): refuse_again,
    (ClientState.RECONNECTING, ClientEvent.CLOSE): Life.begin_to_close,
    (ClientState.RECONNECTING, ClientEvent.END): crash,
    (ClientState.CLOSING, ClientEvent.CLOSE): Life.begin_to_close,
    (ClientState.CLOSING, ClientEvent.END): Life.let_it_close,
    (ClientState.CLOSED, ClientEvent.CLOSE): Life.close,
}


def test_every_row_is_driven_and_every_state_is_reached() -> None:
    assert set(HAPPEN) == set(NEXT_STATE)
    assert set(REACH) == set(ClientState)


@pytest.mark.parametrize(
    ("row", "happens"), HAPPEN.items(), ids=[f"{state.name}-{event.name}" for state, event in HAPPEN]
)
async def test_a_row_is_what_happens(row: tuple[ClientState, ClientEvent], happens: Steps) -> None:
    state, _ = row
    async with trio.open_nursery() as nursery:
        life = Life(nursery, restart=row != (ClientState.CONNECTED, ClientEvent.END), era="auto")
        await REACH[state](life)
        if row == (ClientState.RECONNECTING, ClientEvent.CLOSE):
            # In the middle of an attempt, which takes its time to end; a pause ends at once.
            await life.next_attempt()
        assert life.state == state.value
        await happens(life)
        assert life.state == NEXT_STATE[row].value
        await life.leave()
        assert life.state in ("ended", "closed before it was opened")


@pytest.mark.parametrize("state", [state for state in ClientState if state is not ClientState.NEW], ids=str)
async def test_a_client_that_is_not_new_cannot_be_entered(state: ClientState) -> None:
    assert (state, ClientEvent.OPEN) not in NEXT_STATE
    async with trio.open_nursery() as nursery:
        life = Life(nursery, restart=True, era="auto")
        await REACH[state](life)
        kind = ConnectionLost if state is ClientState.DISCARDED else LocalProtocolError
        with pytest.raises(kind):
            async with life.client:
                raise AssertionError
        assert life.state == state.value
        await life.leave()


async def test_a_first_attempt_that_fails_is_raised_to_who_enters() -> None:
    async with trio.open_nursery() as nursery:
        life = Life(nursery, restart=True, era="auto")
        await life.enter()
        await life.refuse()
        assert type(life.raised) is ConnectFailed


async def test_closing_in_the_pause_before_an_attempt_ends_it_at_once() -> None:
    async with trio.open_nursery() as nursery:
        life = Life(nursery, restart=True, era="auto")
        await reconnect(life)
        await life.refuse()
        began = trio.current_time()
        await life.close()
        assert trio.current_time() == began
        assert life.state == "ended"
        await life.leave()


# -- A connection that breaks under a call: whether anything of that was sent -----------------------------------------


@pytest.mark.parametrize("hows", [["at once"], ["queued"], ["at once", "queued", "at once"]])
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("restart", [True, False])
async def test_a_call_of_which_nothing_was_sent_waits_for_the_next_connection(
    era: str, hows: list[str], restart: bool
) -> None:
    """It is as new as one that is made after the loss."""
    server, transport = counting(), MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(BreaksFirst(transport, list(hows)), era=era, restart=restart) as client:
            if restart:
                assert (await client.call_tool("count")).text == "1"
            else:
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("count")
                assert lost.value.never_run
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_may_have_been_sent_is_not_sent_again(era: str) -> None:
    server, transport = counting(), MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(BreaksFirst(transport, ["torn"]), era=era, restart=True) as client:
            with pytest.raises(ConnectionLost) as lost:
                await client.call_tool("count")
            assert not lost.value.never_run
            assert (await client.call_tool("count")).text == "2"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_calls_behind_one_that_is_being_sent_were_not_sent(era: str) -> None:
    server, transport, ends = counting(), MemoryTransport(), list[str]()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        way = BreaksFirst(transport, ["ended"])
        async with Client(way, era=era, restart=True) as client:

            async def call() -> None:
                try:
                    ends.append((await client.call_tool("count")).text)
                except ConnectionLost as lost:
                    ends.append(f"lost, never run: {lost.never_run}")

            async with trio.open_nursery() as callers:
                callers.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(3):
                    callers.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                way.ended.set()
        nursery.cancel_scope.cancel()
    assert sorted(ends) == ["1", "2", "3", "lost, never run: False"]


async def test_a_server_whose_connections_all_break_is_waited_for_no_longer_than_for_an_answer() -> None:
    server, transport = counting(), MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        client = Client(BreaksFirst(transport, ["at once"] * 1000), era="legacy", restart=True, timeout=60)
        async with client:
            began = trio.current_time()
            with pytest.raises(ConnectionLost):
                await client.call_tool("count")
            assert 60 <= trio.current_time() - began < 70
        nursery.cancel_scope.cancel()


# -- Clients that are opened and closed in any order from any task, and what becomes of those that must not be ---


def echoing(**options: object) -> Server:
    server = Server("echo", **options)  # type: ignore[arg-type]

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


async def is_alive(client: Client) -> bool:
    return (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"  # type: ignore[union-attr]


# -- the pool ---------------------------------------------------------------------------------------------------------


async def test_clients_are_closed_in_the_order_in_which_they_were_opened() -> None:
    async with ClientPool() as pool:
        clients = [await pool.open(Client(echoing())) for _ in range(3)]
        for number, client in enumerate(clients):
            await pool.close(client)
            with pytest.raises(ConnectionLost):
                await is_alive(client)
            for later in clients[number + 1 :]:
                assert await is_alive(later)


async def test_clients_are_opened_and_closed_by_tasks_that_end() -> None:
    found: list[Client] = []

    async def open_one(pool: ClientPool) -> None:
        found.append(await pool.open(Client(echoing())))

    async with ClientPool() as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(open_one, pool)
        assert len(found) == 5
        assert all([await is_alive(client) for client in found])
        random.Random(1).shuffle(found)
        async with trio.open_nursery() as nursery:
            for client in found:
                nursery.start_soon(pool.close, client)
        assert repr(pool) == "<ClientPool 0 clients>"


async def test_a_client_that_cannot_be_opened_costs_itself_only() -> None:
    async with ClientPool() as pool:
        good = await pool.open(Client(echoing()))
        with pytest.raises(ConnectFailed):
            await pool.open(Client("tcp://127.0.0.1:1"))
        assert await is_alive(good)
        assert repr(pool) == "<ClientPool 1 clients>"


async def test_leaving_the_block_closes_what_is_open_and_what_is_being_opened(autojump_clock: object) -> None:
    """The one that is being opened connects to a server that never answers."""
    raised: list[type[BaseException]] = []

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        await trio.sleep_forever()
        yield

    class Silent:
        def connect(self) -> object:
            return never()

    async def open_silent(pool: ClientPool) -> None:
        try:
            await pool.open(Client(Silent()))  # type: ignore[arg-type]
        except ConnectionLost as error:
            raised.append(type(error))

    async with trio.open_nursery() as nursery:
        async with ClientPool() as pool:
            client = await pool.open(Client(echoing()))
            nursery.start_soon(open_silent, pool)
            await trio.testing.wait_all_tasks_blocked()
    assert raised == [ConnectionLost]
    with pytest.raises(ConnectionLost):
        await is_alive(client)
    with pytest.raises(LocalProtocolError):
        await pool.open(Client(echoing()))


async def test_what_the_block_raises_leaves_it_unchanged() -> None:
    async def fail() -> None:
        async with ClientPool() as pool:
            await pool.open(Client(echoing()))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


async def test_an_open_that_is_cancelled_leaves_nothing() -> None:
    async with ClientPool() as pool:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pool.open(Client(echoing()))
        assert scope.cancelled_caught
        assert repr(pool) == "<ClientPool 0 clients>"


async def test_what_a_lifespan_raises_at_its_end_is_raised_by_close() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        raise OSError("the disk is full")

    async with ClientPool() as pool:
        client = await pool.open(Client(echoing(lifespan=lifespan)))
        other = await pool.open(Client(echoing()))
        with capture_logs(), pytest.raises(OSError, match="the disk is full"):
            await pool.close(client)
        assert await is_alive(other)
        await pool.close(client)


async def test_a_client_is_opened_once() -> None:
    async with ClientPool() as pool:
        client = await pool.open(Client(echoing()))
        with pytest.raises(LocalProtocolError):
            await pool.open(client)
        await pool.close(client)
        with pytest.raises(LocalProtocolError):
            await pool.open(client)


# -- blocks that are left where they must not be ----------------------------------------------------------------------


async def test_another_order_is_one_typed_error_and_nothing_else() -> None:
    """All that was opened inside of the client, and round it, goes on and is closed as ever."""
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as nursery:
            first = await Client(echoing()).__aenter__()
            async with Client(echoing()) as second:
                with trio.CancelScope(), capture_logs() as logs:
                    with pytest.raises(ClosedElsewhere, match=r"another order.*ClientPool"):
                        await first.__aexit__(None, None, None)
                assert [each["event"] for each in logs] == ["closed elsewhere"]
                with pytest.raises(ConnectionLost):
                    await is_alive(first)
                assert await is_alive(second)
            await first.__aexit__(None, None, None)
            nursery.start_soon(trio.lowlevel.checkpoint)
    assert not outer.cancel_called


async def test_another_task_is_one_typed_error_and_nothing_else() -> None:
    client = Client(echoing())
    go_on = trio.Event()
    finished: list[str] = []

    async def opener(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope():
            async with trio.open_nursery() as nursery:
                await client.__aenter__()
                task_status.started()
                nursery.start_soon(trio.lowlevel.checkpoint)
                await go_on.wait()
            await trio.lowlevel.checkpoint()
        finished.append("opener")

    async with trio.open_nursery() as nursery:
        await nursery.start(opener)
        with capture_logs(), pytest.raises(ClosedElsewhere, match=r"another task.*ClientPool"):
            await client.__aexit__(None, None, None)
        go_on.set()
    assert finished == ["opener"]


async def test_an_open_scope_inside_is_another_order_too() -> None:
    client = await Client(echoing()).__aenter__()
    with trio.fail_after(5), capture_logs(), pytest.raises(ClosedElsewhere):
        await client.__aexit__(None, None, None)


async def test_a_pool_that_is_left_elsewhere_closes_its_clients_all_the_same() -> None:
    pool = await ClientPool().__aenter__()
    client = await pool.open(Client(echoing()))
    async with trio.open_nursery():
        with capture_logs(), pytest.raises(ClosedElsewhere, match="this ClientPool"):
            await pool.__aexit__(None, None, None)
    with pytest.raises(ConnectionLost):
        await is_alive(client)
