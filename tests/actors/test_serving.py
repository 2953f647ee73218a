"""Who owns a server's life: stopping, cancelling, lifespans that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_client
from mcp_transports.memory import MemoryTransport

from .peers import LEGACY, Serves, arrived, call, faulty_pair, settled
from .witness import Witness


def living() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_stop_lets_calls_end_and_may_be_called_twice() -> None:
    witness = Witness()
    async with trio.open_nursery() as nursery:
        transport = MemoryTransport()
        await nursery.start(witness.server.serve, transport)
        async with transport.connect() as channel:
            peer = ScriptedPeer(channel)
            await peer.initialize(LEGACY)
            await peer.send(call(1, "nap", seconds=2))
            await peer.send(call(2, "hang"))
            await settled()
            witness.server.stop()
            await settled()
            witness.server.stop()
            assert "stopping" in repr(witness.server)
            await peer.send(call(3, "echo", text="too late"))
            assert [message["id"] for message in await arrived(peer, within=100)] == [1]
    assert trio.current_time() >= witness.server.limits.drain_grace
    assert witness.cancelled == [2]
    assert witness.server.tree().sessions == ()


async def test_a_stopped_server_serves_again() -> None:
    witness = Witness()
    for text in ("one", "two"):
        async with connected_pair(witness.server) as client:
            result = await client.call_tool("echo", {"text": text})
            assert result.content[0].text == text  # type: ignore[union-attr]
            witness.server.stop()
            witness.server.stop()


async def test_cancelling_serve_closes_every_connection_at_once() -> None:
    witness = Witness()
    baseline = living()
    channels = [faulty_pair() for _ in range(5)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(*[channel for channel, _ in channels]))
        for _, peer in channels:
            await peer.initialize(LEGACY)
            await peer.send(call(1, "hang"))
        await settled()
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == began
    assert len(witness.cancelled) == 5
    assert all(channel.closed for channel, _ in channels)
    assert living() == baseline


@pytest.mark.parametrize("when", ["enter", "exit"])
@pytest.mark.parametrize("nested", [False, True])
async def test_what_a_lifespan_raises_comes_out_as_it_is(when: str, nested: bool) -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            if when == "enter":
                raise KeyError("no database")
            if nested:
                nursery.start_soon(trio.lowlevel.checkpoint)
            yield
            raise KeyError("no database")

    with pytest.raises(KeyError, match="no database"):
        await Server("s", lifespan=lifespan).serve(Serves())


async def test_a_client_of_a_server_whose_lifespan_fails_gets_that_error() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise KeyError("no database")
        yield

    baseline = living()
    with pytest.raises(KeyError, match="no database"):
        async with Client(Server("s", lifespan=lifespan)):
            raise AssertionError
    assert living() == baseline


async def test_closing_while_the_lifespan_fails_does_not_wait_for_ever() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        await trio.sleep(2)
        raise KeyError("no database")
        yield

    client = Client(Server("s", lifespan=lifespan))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.sleep(1)
            await client.aclose()

        with pytest.raises(KeyError):
            async with client:
                raise AssertionError
    assert trio.current_time() == 2


async def test_the_lifespan_ends_after_the_last_call() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("up")
        yield
        await trio.sleep(1)
        events.append("down")

    server = Server("s", lifespan=lifespan)

    @server.tool
    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            events.append("call ended")

    async with raw_client(server) as peer:
        await peer.initialize(LEGACY)
        await peer.send(call(1, "work"))
        await settled()
        server.stop()
        await trio.sleep(100)
    assert events == ["up", "call ended", "down"]


async def test_a_connection_that_comes_while_the_server_stops_is_closed() -> None:
    channel, peer = faulty_pair()
    late, late_peer = faulty_pair()
    witness = Witness()

    class Late:
        """Brings its second connection when the server is draining."""

        async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            async with trio.open_nursery() as nursery:
                task_status.started("here")
                nursery.start_soon(handler, channel)
                await trio.sleep(1)
                nursery.start_soon(handler, late)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Late())
        await peer.initialize(LEGACY)
        await peer.send(call(1, "nap", seconds=2))
        await settled()
        witness.server.stop()
        await trio.sleep(1.5)
        assert late.closed
        with pytest.raises(trio.EndOfChannel):
            await late_peer.receive()
        assert [message["id"] for message in await arrived(peer, within=5)] == [1]


async def test_stopping_while_the_lifespan_begins_ends_it_as_soon_as_it_has() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        await trio.sleep(2)
        events.append("up")
        yield
        events.append("down")

    server = Server("s", lifespan=lifespan)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, MemoryTransport())
        await trio.sleep(1)
        server.stop()
    assert events == ["up", "down"]
    assert trio.current_time() == 2


@pytest.mark.parametrize("count", [1, 2])
async def test_what_a_transport_raises_comes_out_as_it_is(count: int) -> None:
    class Dies:
        async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            task_status.started("here")
            await trio.sleep(1)
            raise OSError("the listener died")

    witness = Witness()
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def serve() -> None:
            with pytest.raises(OSError, match="the listener died"):
                await witness.server.serve(Serves(channel), *[Dies() for _ in range(count)])

        await peer.initialize(LEGACY)
        await peer.send(call(1, "hang"))
    assert witness.cancelled == [1]
    assert channel.closed


async def test_a_lifespan_that_fails_at_its_end_is_told_to_whoever_leaves() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        raise KeyError("could not save")

    baseline = living()
    with pytest.raises(KeyError, match="could not save"):
        async with connected_pair(Server("s", lifespan=lifespan)) as client:
            await client.ping()
    assert living() == baseline
