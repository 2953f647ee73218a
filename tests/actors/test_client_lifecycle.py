"""The table of a client's life: each row is driven from outside, and each pair that is missing is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, ConnectFailed, ConnectionLost, LocalProtocolError, McpError
from mcp_actors._client.connectivity import NEXT_STATE, ClientEvent, ClientState
from mcp_actors.testing import ScriptedPeer

from .peers import faulty_pair, greet, settled


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
