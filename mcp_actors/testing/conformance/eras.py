"""Checks of a whole server and a whole client over the binding, in both eras.

Some of them prove containment: what one peer does, or what happens to it, costs that peer alone and leaves nothing
behind.
"""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from mcp_actors.client import Client
from mcp_actors.errors import McpError
from mcp_actors.testing.conformance.cancelling import InterruptingTransport
from mcp_actors.testing.conformance.rules import (
    CALLS,
    CANCELLED_CALL,
    CANCELLED_RECEIVE,
    CHANGES,
    ISOLATION,
    NO_TASK_LEFT,
    NOTHING_KEPT,
    PROGRESS,
    QUESTIONS,
    SERVER_GONE,
    Check,
    RuleBroken,
    expect,
)
from mcp_actors.testing.conformance.serving import no_task_is_left, system_tasks
from mcp_actors.testing.conformance.subject import (
    CHANGING,
    TransportUnderTest,
    Witness,
    connected_client,
    echo,
    make_server,
    text_of,
)

__all__ = ["checks_of_containment", "checks_of_era"]


# -- containment ---------------------------------------------------------------------------------------

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
    """Calls with large arguments are answered and cancelled while Python's garbage collector is off."""

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
    """A subscription is left and entered again at once, several times: each of them receives a change."""
    async with connected_client(tested, era) as (client, server, _):
        for number in range(4):
            with tested.soon(CHANGES, f"subscription {number + 1} to the same resource received nothing"):
                async with client.listen(uris=(CHANGING,)) as events:
                    server.resource_updated(CHANGING)
                    event = await anext(events)
            expect(
                (event.kind, event.uri) == ("resource_updated", CHANGING),
                CHANGES,
                f"the client received {event}",
            )


def checks_of_containment(era: str) -> tuple[Check, ...]:
    """The same checks for a client that speaks ``era``."""
    return (
        Check(calls_fail_when_the_server_ends, SERVER_GONE, "eras", era=era),
        Check(ended_calls_keep_nothing, NOTHING_KEPT, "eras", era=era),
        Check(visitors_end_nothing, ISOLATION, "eras", needs="connections", era=era),
        Check(subscriptions_can_be_entered_again, CHANGES, "eras", era=era),
    )


# -- one client ----------------------------------------------------------------------------------------

# Of one client under load.
LOAD_TASKS, LOAD_CALLS = 8, 12


def _note(seen: list[float], report: Any) -> None:
    seen.append(report.progress)


def _whole(seen: list[float]) -> list[float]:
    """Returns what the tool has reported: what the engine reports for a tool that is silent is never a whole number."""
    return [number for number in seen if number == round(number)]


async def calls_are_answered(tested: TransportUnderTest, era: str) -> None:
    """Lists, calls and reads, with small and large arguments and answers."""
    async with connected_client(tested, era) as (client, _, _):
        with tested.soon(CALLS, "a call was not answered"):
            names = {tool.name async for tool in client.tools()}
            expect("echo" in names, CALLS, f"the tools are {sorted(names)}")
            for text in ("", "é漢\U0001f9ed", "line\nline", "x" * 100_000, "é" * 50_000):
                await echo(client, text)
            contents = (await client.read_resource(CHANGING)).contents
            expect(len(contents) == 1, CALLS, f"a resource came with {len(contents)} contents")


async def progress_comes_before_the_answer(tested: TransportUnderTest, era: str) -> None:
    """A call that reports its progress thirty times, as fast as it can."""
    async with connected_client(tested, era) as (client, _, _):
        seen: list[float] = []
        with tested.soon(PROGRESS, "a call with progress was not answered"):
            await client.call_tool("count", {"upto": 30}, on_progress=partial(_note, seen))
        expect(_whole(seen) == list(range(1, 31)), PROGRESS, f"when the answer came, there had been {seen}")


async def silent_calls_are_reported_for(tested: TransportUnderTest, era: str) -> None:
    """A silent call: the server's engine reports for it, so that its client knows that it is alive."""
    heard = trio.Event()
    async with connected_client(tested, era) as (client, _, _), trio.open_nursery() as nursery:

        async def wait() -> None:
            await client.call_tool("wait", on_progress=lambda report: heard.set())

        nursery.start_soon(wait)
        with tested.soon(PROGRESS, "nothing was reported for a call that says nothing"):
            await heard.wait()
        nursery.cancel_scope.cancel()


async def cancellation_reaches_the_handler(tested: TransportUnderTest, era: str) -> None:
    """Two calls wait; one is cancelled. Its handler ends, the other goes on, and so does the connection."""
    async with connected_client(tested, era) as (client, _, witness), trio.open_nursery() as nursery:
        doomed = trio.CancelScope()

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                await client.call_tool("wait")

        nursery.start_soon(call, trio.CancelScope())
        nursery.start_soon(call, doomed)
        with tested.soon(CALLS, "two calls at once did not both begin"):
            await witness.saw(waiting=2)
        doomed.cancel()
        with tested.soon(CANCELLED_CALL, "the handler of a cancelled call goes on"):
            await witness.saw(cancelled=1)
            await echo(client, "still here")
        expect(witness.cancelled == 1, CANCELLED_CALL, "the other call was cancelled too")
        nursery.cancel_scope.cancel()


async def calls_do_not_wait_for_each_other(tested: TransportUnderTest, era: str) -> None:
    """Twenty calls are answered while one waits."""
    async with connected_client(tested, era) as (client, _, witness), trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "wait")
        with tested.soon(CALLS, "calls were not answered while another one waits"):
            await witness.saw(waiting=1)
            async with trio.open_nursery() as calls:
                for number in range(20):
                    calls.start_soon(echo, client, f"number {number}")
        nursery.cancel_scope.cancel()


async def changes_arrive(tested: TransportUnderTest, era: str) -> None:
    """A client listens to a resource and to the tools; both change, and it is notified."""
    async with connected_client(tested, era) as (client, server, _):
        with tested.soon(CHANGES, "a client that listens was not notified"):
            async with client.listen(tools=True, uris=(CHANGING,)) as events:
                server.resource_updated(CHANGING)
                server.remove_tool("count")
                kinds = {(await anext(events)).kind, (await anext(events)).kind}
        expect(kinds == {"resource_updated", "tools"}, CHANGES, f"the client received {sorted(kinds)}")
        with tested.soon(CHANGES, "a call after listening was not answered"):
            await echo(client, "still here")


async def questions_reach_the_client(tested: TransportUnderTest, era: str) -> None:
    """Handlers ask the person at the client; several at once, while other calls go on."""

    async def ask(client: Client, number: int) -> None:
        answer = text_of(await client.call_tool("ask", {"greeting": f"hello {number},"}))
        expect(answer == f"hello {number}, kit", QUESTIONS, f"the answer became {answer!r}")

    async with connected_client(tested, era) as (client, _, _):
        with tested.soon(QUESTIONS, "a call that asks the client was not answered"):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(ask, client, number)
                    nursery.start_soon(echo, client, f"beside {number}")


async def load_changes_nothing(tested: TransportUnderTest, era: str) -> None:
    """Several clients with many calls each: small and large, with progress, some of them cancelled."""
    witness = Witness()
    server = make_server(witness)
    rng = random.Random(20_260_728)

    async def work(client: Client, name: str) -> None:
        for number in range(LOAD_CALLS):
            kind = rng.random()
            if kind < 0.15:
                with trio.move_on_after(rng.random() * 0.02):
                    await client.call_tool("wait")
            elif kind < 0.3:
                seen: list[float] = []
                await client.call_tool("count", {"upto": 9}, on_progress=partial(_note, seen))
                expect(
                    _whole(seen) == list(range(1, 10)),
                    PROGRESS,
                    f"{name}: when the answer came there was {seen}",
                )
            else:
                await echo(client, f"{name}.{number} " * rng.choice((1, 1, 1, 300, 5000)))

    async def run(transport: Any, number: int) -> None:
        async with Client(transport, era=era) as client, trio.open_nursery() as nursery:
            for task in range(LOAD_TASKS):
                nursery.start_soon(work, client, f"client {number} task {task}")

    async with tested.served(server.serve, place=lambda places: places[0]) as transport:
        async with trio.open_nursery() as nursery:
            for number in range(min(4, tested.connections)):
                nursery.start_soon(run, transport, number)


async def calls_survive_cancelled_receives(tested: TransportUnderTest, era: str) -> None:
    """A whole client whose every receive is cancelled again and again, at each checkpoint in turn."""
    server = make_server(Witness())
    seen: list[float] = []

    async def work(client: Client, name: str) -> None:
        for number in range(10):
            await echo(client, f"{name} {number}" * (1 + 2000 * (number % 2)))

    async with tested.served(server.serve, place=lambda places: places[0]) as transport:
        with tested.soon(CANCELLED_RECEIVE, "a call was not answered"):
            async with Client(InterruptingTransport(transport), era=era) as client:
                async with trio.open_nursery() as nursery:
                    for number in range(5):
                        nursery.start_soon(work, client, f"task {number}")
                    await client.call_tool("count", {"upto": 30}, on_progress=partial(_note, seen))
    expect(
        _whole(seen) == list(range(1, 31)), CANCELLED_RECEIVE, f"of the progress from 1 to 30 arrived {seen}"
    )


async def clients_leave_nothing(tested: TransportUnderTest, era: str) -> None:
    """A client leaves in order, another one while a call waits; afterwards no task of theirs is left."""
    before = set(system_tasks())
    witness = Witness()
    server = make_server(witness)
    async with tested.served(server.serve, place=lambda places: places[0]) as transport:
        async with Client(transport, era=era) as client:
            await echo(client, "hello")
        async with trio.open_nursery() as nursery:
            async with Client(transport, era=era) as client:
                nursery.start_soon(client.call_tool, "wait")
                with tested.soon(CALLS, "a call did not begin"):
                    await witness.saw(waiting=1)
                nursery.cancel_scope.cancel()
    await no_task_is_left(before)


def checks_of_era(era: str) -> tuple[Check, ...]:
    """The same checks for a client that speaks ``era``."""
    return tuple(
        Check(run, rule, "eras", era=era)
        for run, rule in (
            (calls_are_answered, CALLS),
            (progress_comes_before_the_answer, PROGRESS),
            (silent_calls_are_reported_for, PROGRESS),
            (cancellation_reaches_the_handler, CANCELLED_CALL),
            (calls_do_not_wait_for_each_other, CALLS),
            (changes_arrive, CHANGES),
            (questions_reach_the_client, QUESTIONS),
            (load_changes_nothing, CALLS),
            (calls_survive_cancelled_receives, CANCELLED_RECEIVE),
            (clients_leave_nothing, NO_TASK_LEFT),
        )
    )
