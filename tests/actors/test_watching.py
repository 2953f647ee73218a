"""What can be looked at is true: statistics and trees at chosen moments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Limits, Server
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_client
from mcp_actors.types import ElicitResult
from mcp_transports.memory import MemoryTransport

from .peers import (
    LEGACY,
    TEXT,
    Dials,
    Serves,
    arrived,
    call,
    cancelled,
    faulty_pair,
    greet,
    legacy_client,
    living,
    met,
    notification,
    progressed,
    reply,
    request,
    settled,
)
from .witness import Witness

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


async def test_calls_of_a_session_with_age_method_target_and_state() -> None:
    witness = Witness(limits=Limits(max_in_flight=2))
    async with legacy_client(witness.server) as peer:
        await peer.send(call(1, "hang"))
        await trio.sleep(3)
        await peer.send(call("two", "nap", seconds=100))
        await peer.send(call(3, "echo", text="x"))
        await trio.sleep(2)
        [session] = witness.server.tree().sessions
        assert [(c.id, c.method, c.target, c.age, c.state) for c in session.calls] == [
            (1, "tools/call", "hang", 5, "running"),
            ("two", "tools/call", "nap", 2, "running"),
            (3, "tools/call", "echo", 2, "waiting"),
        ]
        assert session.name == "witness#1"
        assert session.peer.startswith("memory:")
        assert session.state == "open"
        await peer.send(cancelled(1))
        await settled()
        assert [each.id for each in witness.server.tree().sessions[0].calls] == ["two"]
    await settled()
    assert witness.server.tree().sessions == ()


async def test_counters_count_what_happened() -> None:
    witness = Witness(limits=Limits(max_in_flight=1, max_waiting=0))
    async with legacy_client(witness.server) as peer:
        await peer.send(call(1, "hang"))
        await peer.send(call(2, "hang"))
        await peer.send(request(3, "no/such/method"))
        await peer.send(request(4, "ping"))
        await peer.send(b"{")
        await peer.send(notification("notifications/progress", progressToken=1, progress=1))
        await peer.send(reply(77))
        await peer.send(cancelled(1))
        await peer.send(cancelled(1))
        await settled()
        counters = witness.server.tree().sessions[0].counters
        # initialize, two calls, an unknown method, a ping
        assert (counters.requests, counters.refused, counters.malformed) == (5, 2, 1)
        assert counters.cancelled == 1
        # progress without a call and an answer to nothing; the second cancellation met a call already cancelled or gone
        assert counters.late in (2, 3)
        snapshot = witness.server.tree().sessions[0].counters
        await peer.request(5, "ping")
        assert snapshot.requests == 5


async def test_a_link_counts_frames_and_bytes_and_shows_its_outbox() -> None:
    channel, peer = faulty_pair()
    server = Server("s", limits=Limits(outbox=4))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(channel))
        await peer.initialize(LEGACY)
        await settled()
        before = server.tree().sessions[0].link
        assert (before.outbox, before.outbox_limit, before.blocked) == (0, 4, 0)
        assert (before.frames_in, before.frames_out) == (2, 1)
        assert before.bytes_out == sum(len(frame.data) for frame in channel.sent)
        channel.clog()
        await peer.send(request(1, "ping"))
        await settled()
        for id in (2, 3):
            await peer.send(request(id, "ping"))
        await settled()
        link = server.tree().sessions[0].link
        assert (link.outbox, link.frames_in, link.frames_out) == (3, 5, 1)
        channel.unclog()
        assert len(await arrived(peer)) == 3
        after = server.tree().sessions[0].link
        assert (after.outbox, after.frames_out) == (0, 4)
        assert after.bytes_out == sum(len(frame.data) for frame in channel.sent)
        nursery.cancel_scope.cancel()


async def test_pending_calls_of_a_client() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        async def slow(progress: Any) -> None:
            await trio.sleep(10)

        async def ask() -> None:
            await client.call_tool("any", on_progress=slow)

        nursery.start_soon(ask)
        asked = await peer.receive()
        await trio.sleep(4)
        for number in range(3):
            await peer.send(progressed(asked["id"], number))
        await settled()
        tree = client.tree()
        [pending] = tree.pending
        assert (pending.id, pending.method, pending.age) == (asked["id"], "tools/call", 4)
        # One is with the callback.
        assert pending.progress_waiting == 2
        await peer.send(reply(asked, TEXT))
        await settled()
        await trio.sleep(100)
        assert client.tree().pending == ()


async def test_a_tree_shows_both_directions_of_a_question() -> None:
    server = Server("asks")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", FORM)).action

    async def elicitation(question: Any) -> ElicitResult:
        await trio.sleep(5)
        return ElicitResult("decline")

    async with connected_pair(server, era="legacy", elicitation=elicitation) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "ask")
            await trio.sleep(2)
            ours, [theirs] = client.tree(), server.tree().sessions
            assert [each.method for each in ours.pending] == ["tools/call"]
            assert [each.method for each in theirs.calls] == ["tools/call"]
            assert [(each.method, each.age) for each in theirs.pending] == [("elicitation/create", 2)]
            assert [(each.method, each.age) for each in ours.calls] == [("elicitation/create", 2)]


async def test_the_limits_show_what_runs_and_what_waits() -> None:
    witness = Witness(limits=Limits(max_in_flight=2, max_waiting=1))
    async with legacy_client(witness.server) as peer:
        assert witness.server.tree().limiter.inside == 0
        for id in range(4):
            await peer.send(call(id, "hang"))
        await settled()
        tree = witness.server.tree()
        [session] = tree.sessions
        assert [(each.id, each.state) for each in session.calls] == [
            (0, "running"),
            (1, "running"),
            (2, "waiting"),
        ]
        assert session.counters.refused == 1
        assert (tree.limiter.inside, tree.limiter.waiting, tree.limiter.refused) == (2, 0, 0)
        for id in range(3):
            await peer.send(cancelled(id))
        await settled()
        assert witness.server.tree().limiter.inside == 0


async def test_a_server_says_whether_it_serves() -> None:
    server = Server("s")
    assert "<ServerRuntime 's' not serving sessions=0>" in repr(server)
    async with connected_pair(server), connected_pair(server):
        assert "<ServerRuntime 's' serving sessions=2>" in repr(server)
        tree = server.tree()
        assert tree.name == "s"
        assert sorted(session.name for session in tree.sessions) == ["s#1", "s#2"]
    assert "<ServerRuntime 's' not serving sessions=0>" in repr(server)


async def test_a_client_says_how_it_is() -> None:
    channel, peer = faulty_pair()
    client = Client(Dials([channel]), era="legacy")
    assert repr(client) == "<Client 'Dials' not connected>"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet, peer)
        async with client:
            assert repr(client) == "<Client 'Dials' connected>"
            assert client.tree().state == "open"
            assert client.tree().name == "client#1"
            await settled()
            await peer.channel.aclose()
            await settled()
            assert repr(client) == "<Client 'Dials' ended>"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("stdio:/usr/bin/env python server.py --token s3cret", "stdio:env"),
        (["/opt/my server", "--token=s3cret"], "stdio:my server"),
        ("https://me:s3cret@example.org/mcp?key=s3cret#s3cret", "https://example.org/mcp"),
        ("ws://127.0.0.1:1/ws?token=s3cret", "ws://127.0.0.1:1/ws"),
        ("unix:///run/a@b", "unix:///run/a@b"),
        ("memory:name", "memory:name"),
    ],
)
def test_the_look_at_a_client_shows_no_secrets(target: Any, name: str) -> None:
    assert repr(Client(target)) == f"<Client {name!r} not connected>"


async def test_looking_changes_nothing_and_costs_no_waiting() -> None:
    witness = Witness()
    async with connected_pair(witness.server) as client:
        assert client.tree() == client.tree()
        assert witness.server.tree() == witness.server.tree()


# -- Who owns a server's life: stopping, cancelling, lifespans that fail ---------------------------------


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
            assert [message["id"] for message in await arrived(peer, within=100)] == [1, 2]
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
