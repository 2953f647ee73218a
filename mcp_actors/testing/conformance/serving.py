"""Checks of `serve` and of many connections: readiness, isolation, back-pressure, and that nothing is left."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import trio

from mcp_actors.abc import ClientTransport, FrameChannel
from mcp_actors.testing.conformance.rules import (
    ACCEPTING,
    ISOLATION,
    NO_TASK_LEFT,
    PRESSURE,
    SERVE_CANCELLED,
    TURNS,
    Check,
    RuleBroken,
    expect,
)
from mcp_actors.testing.conformance.subject import (
    ENDED,
    ChannelHandler,
    TransportUnderTest,
    compare,
    make_frame,
    make_frames,
    receive_all,
    receive_count,
    send_in_ways,
)

__all__ = ["SERVING", "no_task_is_left", "system_tasks"]


# Small frames that are sent in one go, and how many of them may be received at once.
FLOOD, FLOOD_PART = 4096, 1024


async def echo(channel: FrameChannel) -> None:
    """Sends back what comes until the peer ends."""
    try:
        while True:
            await channel.send_many(await channel.receive_many())
    except ENDED:
        pass  # the peer is done


async def connections_are_accepted_once_started(tested: TransportUnderTest) -> None:
    """The first connection is made without giving way after ``started``, and used at once."""
    async with tested.serving(echo) as transport, tested.connected(transport) as client:
        frames = make_frames(3)
        await client.send_many(frames)
        got = await receive_count(client, 3, tested.patience, "echoed on the first connection")
        compare(got, frames, "echoed on the first connection")


async def many_connections_stand_alone(tested: TransportUnderTest) -> None:
    """Many connections at once; one does not read, one is closed half-way; the others receive all their frames."""

    async def exchange(number: int, client: FrameChannel) -> None:
        frames = make_frames(40, f"connection-{number}", sizes=(0, 300))
        who = f"echoed on connection {number} of {tested.connections}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_in_ways, client, frames)
            got = await receive_count(client, len(frames), tested.patience, who)
        compare(got, frames, who)

    async def connect(number: int, transport: ClientTransport) -> None:
        async with tested.connected(transport) as client:
            if number == 1:
                await client.send(make_frame(0))
                return
            await exchange(number, client)

    async with tested.serving(echo) as transport, tested.connected(transport) as stalled:
        async with trio.open_nursery() as stalling:
            stalling.start_soon(_flood, tested, stalled)
            async with trio.open_nursery() as nursery:
                for number in range(max(1, tested.connections - 1)):
                    nursery.start_soon(connect, number, transport)
            stalling.cancel_scope.cancel(reason="the others are done")


async def _flood(tested: TransportUnderTest, channel: FrameChannel) -> None:
    """Sends to a peer that answers as much, and reads nothing: in the end neither side can go on."""
    frame = make_frame(0, 16 * 1024)
    for _ in range(tested.max_buffered // len(frame.data)):
        await channel.send(frame)


async def a_peer_that_does_not_read_is_waited_for(tested: TransportUnderTest) -> None:
    """Each side sends to one that does not read: it must have to wait, and nothing is lost when the peer reads."""
    for to_server in (True, False):
        async with tested.pair() as (client, server):
            sender, receiver = (client, server) if to_server else (server, client)
            await _press(tested, sender, receiver, "client to server" if to_server else "server to client")


async def _press(tested: TransportUnderTest, sender: FrameChannel, receiver: FrameChannel, who: str) -> None:
    size = min(16 * 1024, sender.max_message_bytes or 16 * 1024)
    count = tested.max_buffered // size
    sent = 0

    async def send() -> None:
        nonlocal sent
        for number in range(count):
            await sender.send(make_frame(number, size))
            sent += 1
        raise RuleBroken(PRESSURE, f"{who}: {count * size} bytes were taken, though the peer reads nothing")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        before = -1
        while sent != before:
            before = sent
            await trio.sleep(tested.quiet)
        # Only so many more than were taken, so that the sender is still at it while they are read.
        want = sent
        got = await receive_count(receiver, want, tested.patience, f"{who}, after a long wait")
        nursery.cancel_scope.cancel(reason="the sender was seen to wait")
    compare(got[:want], [make_frame(number, size) for number in range(want)], f"{who}, after a long wait")


async def a_flood_leaves_others_their_turn(tested: TransportUnderTest) -> None:
    """Each side sends very many small frames: they come in parts, and between two of them other tasks go on."""
    async with tested.pair() as (client, server):
        await _receive_flood(tested, client, server, "client to server")
        await _receive_flood(tested, server, client, "server to client")


async def _receive_flood(
    tested: TransportUnderTest, sender: FrameChannel, receiver: FrameChannel, who: str
) -> None:
    parts: list[int] = []
    turns = 0
    other = trio.lowlevel.ParkingLot()

    async def go_on() -> None:
        nonlocal turns
        while True:
            await other.park()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send_many, [make_frame(number) for number in range(FLOOD)])
        await trio.sleep(tested.quiet)
        nursery.start_soon(go_on)
        with tested.soon(TURNS, f"{who}: of {FLOOD} small frames only some were received"):
            while sum(parts) < FLOOD:
                other.unpark_all()
                parts.append(len(await receiver.receive_many()))
        nursery.cancel_scope.cancel(reason="all of the flood was received")
    expect(max(parts) <= FLOOD_PART, TURNS, f"{who}: {max(parts)} frames were received at once")
    # Trio runs tasks in a random order, so that a turn may be missed now and then.
    expect(
        turns >= len(parts) // 4 - 1, TURNS, f"{who}: another task had {turns} turns in {len(parts)} parts"
    )


async def cancelled_serve_closes_everything(tested: TransportUnderTest) -> None:
    """``serve`` is cancelled while connections are open: handlers end, the clients notice, it returns."""
    running = 0

    async def handle(channel: FrameChannel) -> None:
        nonlocal running
        running += 1
        try:
            await echo(channel)
        finally:
            running -= 1

    count = min(3, tested.connections)
    async with tested.maker() as (server, client_for), trio.open_nursery() as outer:
        serving, stopped = trio.CancelScope(), trio.Event()

        async def serve(*, task_status: trio.TaskStatus[object]) -> None:
            with serving:
                await server.serve(ChannelHandler(handle), task_status=task_status)
            stopped.set()

        transport = client_for(await outer.start(serve))
        clients = [trio.Event() for _ in range(count)]

        async def connect(ready: trio.Event) -> None:
            async with tested.connected(transport) as client:
                await client.send(make_frame(0))
                await receive_count(client, 1, tested.patience, "echoed before serve was cancelled")
                ready.set()
                await stopped.wait()
                with tested.soon(SERVE_CANCELLED, "a client did not notice that serve was cancelled"):
                    await receive_all(client)

        for ready in clients:
            outer.start_soon(connect, ready)
        for ready in clients:
            await ready.wait()
        serving.cancel(reason="the kit ends serve")
        with tested.soon(SERVE_CANCELLED, "serve did not return"):
            await stopped.wait()
        expect(not running, SERVE_CANCELLED, f"{running} of {count} handlers still ran when serve returned")


async def nothing_is_left_behind(tested: TransportUnderTest) -> None:
    """Connections are used, left and cancelled; afterwards no task is left of them."""
    before = set(system_tasks())
    async with tested.serving(echo) as transport:
        for _ in range(2):
            async with tested.connected(transport) as client:
                await client.send(make_frame(0))
                await receive_count(client, 1, tested.patience, "echoed")
        with trio.move_on_after(tested.quiet):
            async with tested.connected(transport) as client:
                await client.receive_many()
    await no_task_is_left(before)


async def no_task_is_left(before: set[trio.lowlevel.Task]) -> None:
    """Raises `RuleBroken` if there are system tasks that were not there before."""
    for _ in range(20):
        await trio.lowlevel.checkpoint()
    left = [repr(task.name) for task in set(system_tasks()) - before]
    expect(not left, NO_TASK_LEFT, f"system tasks that still run: {', '.join(left)}")
    # A resource that was forgotten warns when it is collected: it should do so here, and not in another test.
    gc.collect()


def system_tasks() -> Iterator[trio.lowlevel.Task]:
    """The tasks of this run without a parent nursery, started with `trio.lowlevel.spawn_system_task`."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    above = set()
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None:
        above.add(task)
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    for nursery in root.child_nurseries:
        yield from (task for task in nursery.child_tasks if task not in above)


SERVING = (
    Check(connections_are_accepted_once_started, ACCEPTING),
    Check(many_connections_stand_alone, ISOLATION, needs="connections"),
    Check(a_peer_that_does_not_read_is_waited_for, PRESSURE),
    Check(a_flood_leaves_others_their_turn, TURNS),
    Check(cancelled_serve_closes_everything, SERVE_CANCELLED),
    Check(nothing_is_left_behind, NO_TASK_LEFT),
)
