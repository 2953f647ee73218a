"""Checks that what one peer does, or what becomes of it, costs that peer alone and leaves nothing behind."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors.client import Client
from mcp_actors.errors import McpError
from mcp_actors.testing.conformance.kit_server import CHANGING, Witness, connected_client, echo, make_server
from mcp_actors.testing.conformance.report import Check, RuleBroken, expect
from mcp_actors.testing.conformance.rules import (
    CALLS,
    CANCELLED_CALL,
    CHANGES,
    ISOLATION,
    NOTHING_KEPT,
    SERVER_GONE,
)
from mcp_actors.testing.conformance.subject import TransportUnderTest

__all__ = ["checks_of_containment"]

# Calls with this many characters each; after the first few every buffer and cache has its size.
WARMING, MEASURED, PAYLOAD = 4, 32, 96 * 1024
# Peers that connect and leave without a word.
VISITORS = 20


async def calls_fail_when_the_server_ends(tested: TransportUnderTest, era: str) -> None:
    """The server is cancelled while calls of a client wait for it: each of them fails, with an error of this engine."""
    witness = Witness()
    server = make_server(witness)

    async def fail(client: Client) -> None:
        try:
            await client.call_tool("wait")
        except McpError:
            return
        raise RuleBroken(SERVER_GONE, "a call was answered although its server had ended")

    async with tested.maker() as (transport, client_for), trio.open_nursery() as outer:
        serving = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[tuple[Any, ...]]) -> None:
            with serving:
                await server.serve(transport, task_status=task_status)

        places = await outer.start(serve)
        async with Client(client_for(places[0]), era=era) as client:
            with trio.move_on_after(math.inf) as ending:
                async with trio.open_nursery() as calls:
                    for _ in range(3):
                        calls.start_soon(fail, client)
                    with tested.soon(CALLS, "three calls at once did not all begin"):
                        await witness.saw(waiting=3)
                    serving.cancel(reason="the kit ends the server")
                    ending.deadline = trio.current_time() + tested.patience
            expect(
                not ending.cancelled_caught,
                SERVER_GONE,
                "a call in flight goes on after its server has ended",
            )


async def ended_calls_keep_nothing(tested: TransportUnderTest, era: str) -> None:
    """Calls with large arguments are answered and cancelled while the collector of Python's garbage rests."""

    async def cancelled(client: Client, witness: Witness) -> None:
        waiting = witness.waiting
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait", {"text": "c" * PAYLOAD})
            with tested.soon(CALLS, "a call did not begin"):
                await witness.saw(waiting=waiting + 1)
            nursery.cancel_scope.cancel(reason="the kit cancels the call")
        with tested.soon(CANCELLED_CALL, "the handler of a cancelled call goes on"):
            await witness.saw(cancelled=waiting + 1)

    async def grown(call: Callable[[], Awaitable[None]]) -> int:
        for _ in range(WARMING):
            await call()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(MEASURED):
            await call()
        after, _ = tracemalloc.get_traced_memory()
        return after - before

    collecting, tracing = gc.isenabled(), tracemalloc.is_tracing()
    async with connected_client(tested, era) as (client, _, witness):
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            answered = await grown(lambda: echo(client, "a" * PAYLOAD))
            left = await grown(lambda: cancelled(client, witness))
        finally:
            if not tracing:
                tracemalloc.stop()
            if collecting:
                gc.enable()
    for kind, growth in (("answered", answered), ("cancelled", left)):
        kept = growth // PAYLOAD
        expect(kept < MEASURED // 2, NOTHING_KEPT, f"of {MEASURED} {kind} calls, {kept} keep their arguments")


async def visitors_end_nothing(tested: TransportUnderTest, era: str) -> None:
    """Peers connect and leave at once, also while they are connecting; a client beside them notices nothing."""

    async def visit(transport: object, patience: float) -> None:
        with trio.move_on_after(patience):
            async with transport.connect():  # type: ignore[attr-defined]
                pass

    async with tested.served(make_server(Witness()).serve, place=lambda places: places[0]) as transport:
        async with Client(transport, era=era) as client:
            for number in range(VISITORS):
                with tested.soon(ISOLATION, "a connection that is left at once is not closed"):
                    await visit(transport, 0 if number % 2 else tested.patience)
                with tested.soon(ISOLATION, "a call was not answered beside peers that come and go"):
                    await echo(client, f"beside visitor {number}")


async def subscriptions_can_be_entered_again(tested: TransportUnderTest, era: str) -> None:
    """A subscription is left and entered again at once, several times: each of them is told of a change."""
    async with connected_client(tested, era) as (client, server, _):
        for number in range(4):
            with tested.soon(CHANGES, f"subscription {number + 1} to the same resource was not told"):
                async with client.listen(uris=(CHANGING,)) as events:
                    server.resource_updated(CHANGING)
                    event = await anext(events)
            expect(
                (event.kind, event.uri) == ("resource_updated", CHANGING),
                CHANGES,
                f"the client was told of {event}",
            )


def checks_of_containment(era: str) -> tuple[Check, ...]:
    """The same checks for a client that is told to speak ``era``."""
    return (
        Check(calls_fail_when_the_server_ends, SERVER_GONE, "eras", era=era),
        Check(ended_calls_keep_nothing, NOTHING_KEPT, "eras", era=era),
        Check(visitors_end_nothing, ISOLATION, "eras", needs="connections", era=era),
        Check(subscriptions_can_be_entered_again, CHANGES, "eras", era=era),
    )
