"""Cancellation tried at every step of a call: after the first step of any task, after the second, and so on.

Whatever the moment, these hold: a request is answered at most once; the peer is told exactly once iff it was asked
and had not answered; no frame is torn; nothing is left in any table; the session goes on working.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Limits, Server
from mcp_actors.abc import Frame
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitResult
from tests.messages import CAPABILITIES

from .peers import (
    LEGACY,
    TEXT,
    Dials,
    Serves,
    arrived,
    call,
    cancelled,
    greet,
    greet_modern,
    modern_call,
    progressed,
    reply,
    settled,
)
from .witness import Witness

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
# More steps than any of these calls has; reaching it means that a loop below would never have ended.
TOO_MANY = 500


class Steps(trio.abc.Instrument):
    """Calls ``then`` after ``count`` steps of any task."""

    def __init__(self, count: int, then: Callable[[], object]) -> None:
        self.left = count
        self._then = then

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._then()

    def __enter__(self) -> Steps:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        trio.lowlevel.remove_instrument(self)


class Wiretap(trio.abc.SendStream):
    """Keeps all bytes that went through, whole or not, in pieces so small that every write has many steps."""

    def __init__(self, inner: trio.abc.SendStream, piece: int = 64) -> None:
        self._inner = inner
        self._piece = piece
        self.bytes = bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        for start in range(0, len(data), self._piece):
            piece = bytes(data[start : start + self._piece])
            await self._inner.send_all(piece)
            self.bytes += piece

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def messages(self) -> list[Any]:
        """All lines, decoded: a torn one would not be JSON."""
        assert self.bytes.endswith(b"\n")
        return [json.loads(line) for line in self.bytes.splitlines()]


class Line:
    """Two ends of a byte stream, tapped on the way from ``near`` to ``far``."""

    def __init__(self) -> None:
        near, far = trio.testing.memory_stream_pair()
        self.tap = Wiretap(near)
        self.near = LineChannel(near, self.tap)
        self.peer = ScriptedPeer(LineChannel(far, far))


async def every_step(attempt: Callable[[int], Awaitable[bool]]) -> int:
    """Repeats ``attempt(n)`` with growing ``n`` until it says that the call had ended before its n-th step."""
    for count in range(1, TOO_MANY):
        if await attempt(count):
            return count
    raise AssertionError("the call never ends")


# -- given up by the caller ------------------------------------------------------------------------------------------


async def serve_one(peer: ScriptedPeer, answered: list[Any]) -> None:
    """A server that reports, then answers, each with its steps between."""
    while True:
        try:
            asked = await peer.receive()
        except trio.EndOfChannel:
            return
        if asked.get("method") != "tools/call":
            continue
        token = asked["params"]["_meta"]["progressToken"]
        for number in range(3):
            await peer.send(progressed(token, number))
            await trio.lowlevel.checkpoint()
        await peer.send(reply(asked, TEXT))
        answered.append(asked["id"])


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("callback", [False, True])
async def test_a_caller_gives_up_at_every_step(era: str, callback: bool) -> None:
    async def on_progress(progress: Any) -> None:
        await trio.lowlevel.checkpoint()

    gave_up = 0

    async def attempt(count: int) -> bool:
        nonlocal gave_up
        line = Line()
        answered: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greet if era == "legacy" else greet_modern, line.peer)
            async with Client(Dials([line.near]), era=era) as client:
                await settled()
                nursery.start_soon(serve_one, line.peer, answered)
                await settled()
                before = len(line.tap.messages())
                with trio.CancelScope() as scope, Steps(count, scope.cancel) as steps:
                    await client.call_tool("any", on_progress=on_progress if callback else None)
                await settled()
                assert client.tree().pending == ()
                messages = line.tap.messages()[before:]
                asked = [message for message in messages if "id" in message]
                told = [message for message in messages if "id" not in message]
                if not scope.cancelled_caught:
                    assert len(asked) == 1
                    assert told == []
                else:
                    gave_up += 1
                    # Told exactly if asked, unless the answer had arrived: then it would be late for nobody.
                    ids = [each["id"] for each in asked]
                    late = client.tree().counters.late
                    assert len(ids) <= 1
                    assert [each["params"]["requestId"] for each in told] == (ids if late else [])
                result = await client.call_tool("any")
                assert result.content[0].text == "done"  # type: ignore[union-attr]
            nursery.cancel_scope.cancel()
        return steps.left > 0

    steps = await every_step(attempt)
    assert gave_up >= 3
    assert steps > 5


# -- cancelled by the client while the server works ------------------------------------------------------------------


@pytest.fixture
def worker() -> Server:
    server = Server("worker", limits=Limits(max_in_flight=2))

    @server.tool
    async def work(ctx: Context) -> str:
        try:
            await ctx.progress(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.checkpoint)
            await ctx.log("warning", "half")
            await ctx.progress(2)
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
        return "worked"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", FORM)).action

    return server


async def test_a_call_is_cancelled_at_every_step_of_the_server(worker: Server) -> None:
    silent = answered = 0

    async def attempt(count: int) -> bool:
        nonlocal silent, answered
        line = Line()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, Serves(line.near))
            await line.peer.initialize(LEGACY)
            await settled()
            [session] = worker._runtime._sessions
            with Steps(count, lambda: session.dispatcher._cancelled({"requestId": 1})) as steps:
                await line.peer.send(call(1, "work", token="t"))
                # An answer behind a report waits for a pong that this peer never sends.
                messages = await arrived(line.peer, within=1)
            replies = [message for message in messages if message.get("id") == 1 and "method" not in message]
            counters = session.dispatcher.counters
            # Either the cancellation came in time and there is no answer, or it did not and there is one.
            assert len(replies) == 1 - counters.cancelled
            silent += counters.cancelled
            answered += len(replies)
            line.tap.messages()
            tree = worker.tree()
            assert (tree.sessions[0].calls, tree.sessions[0].pending) == ((), ())
            assert (tree.limiter.inside, tree.limiter.waiting) == (0, 0)
            again = await line.peer.request(1, "tools/call", {"name": "work"})
            assert again["result"]["content"][0]["text"] == "worked"
            nursery.cancel_scope.cancel()
        return steps.left > 0

    await every_step(attempt)
    assert silent >= 5
    assert answered >= 3


async def test_a_call_that_is_cancelled_in_the_same_read_never_begins() -> None:
    witness = Witness()
    line = Line()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(line.near))
        await line.peer.initialize(LEGACY)
        both = [Frame(json.dumps(message).encode()) for message in (call(1, "hang"), cancelled(1))]
        await line.peer.channel.send_many(both)
        assert await arrived(line.peer, within=1000) == []
        assert witness.begun == []
        assert witness.server.tree().sessions[0].calls == ()
        nursery.cancel_scope.cancel()


async def test_a_call_that_asks_is_cancelled_at_every_step(worker: Server) -> None:
    withdrawn = 0

    async def answer(peer: ScriptedPeer, messages: list[Any]) -> None:
        while True:
            message = await peer.receive()
            messages.append(message)
            if message.get("method") == "elicitation/create":
                await trio.lowlevel.checkpoint()
                await peer.send(reply(message, {"action": "decline"}))

    async def attempt(count: int) -> bool:
        nonlocal withdrawn
        line = Line()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, Serves(line.near))
            await line.peer.initialize(LEGACY, {"elicitation": {}})
            messages: list[Any] = []
            nursery.start_soon(answer, line.peer, messages)
            await settled()
            [session] = worker._runtime._sessions
            with Steps(count, lambda: session.dispatcher._cancelled({"requestId": 1})) as steps:
                await line.peer.send(call(1, "ask"))
                await settled()
            asked = [each["id"] for each in messages if each.get("method") == "elicitation/create"]
            told = [each["params"]["requestId"] for each in messages if "id" not in each]
            replies = [each for each in messages if each.get("id") == 1 and "method" not in each]
            assert len(asked) <= 1
            assert len(replies) <= 1 - session.dispatcher.counters.cancelled
            # Withdrawn exactly once if it was asked and not answered, never if it was not asked.
            assert told in ([], asked)
            withdrawn += len(told)
            [tree] = worker.tree().sessions
            assert (tree.calls, tree.pending) == ((), ())
            nursery.cancel_scope.cancel()
        return steps.left > 0

    await every_step(attempt)
    assert withdrawn >= 2


# -- both sides are the engine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("tool", ["work", "ask"])
async def test_both_sides_agree_whenever_a_call_is_given_up(worker: Server, era: str, tool: str) -> None:
    async def elicitation(question: Any) -> ElicitResult:
        await trio.lowlevel.checkpoint()
        return ElicitResult("decline")

    async def attempt(count: int) -> bool:
        async with Client(worker, era=era, elicitation=elicitation) as client:
            await settled()
            with trio.CancelScope() as scope, Steps(count, scope.cancel) as steps:
                await client.call_tool(tool, on_progress=lambda progress: None)
            await settled()
            [served] = worker.tree().sessions
            ours = client.tree()
            assert (served.calls, served.pending, ours.calls, ours.pending) == ((), (), (), ())
            result = await client.call_tool(tool)
            assert result.content[0].text in ("worked", "decline")  # type: ignore[union-attr]
        assert worker.tree().sessions == ()
        return steps.left > 0

    assert await every_step(attempt) > 5


# -- the life of a connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_a_client_is_cancelled_at_every_step_of_its_life(worker: Server, era: str) -> None:
    baseline = trio.lowlevel.current_statistics().tasks_living

    async def attempt(count: int) -> bool:
        with trio.CancelScope() as scope, Steps(count, scope.cancel) as steps:
            async with Client(worker, era=era) as client:
                await client.call_tool("work")
        await settled()
        assert worker.tree().sessions == ()
        assert worker.tree().limiter.inside == 0
        assert trio.lowlevel.current_statistics().tasks_living == baseline
        return steps.left > 0

    assert await every_step(attempt) > 20


async def test_a_call_that_ends_by_asking_is_cancelled_at_every_step(worker: Server) -> None:
    """Stateless: the question is the call's result, so it is an answer like any other."""
    asked = 0

    async def attempt(count: int) -> bool:
        nonlocal asked
        line = Line()
        message = modern_call(1, "ask")
        message["params"]["_meta"][CAPABILITIES] = {"elicitation": {}}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, Serves(line.near))
            await line.peer.request("p", "ping")
            [session] = worker._runtime._sessions
            with Steps(count, lambda: session.dispatcher._cancelled({"requestId": 1})) as steps:
                await line.peer.send(message)
                replies = await arrived(line.peer)
            assert len(replies) == 1 - session.dispatcher.counters.cancelled
            asked += sum(each["result"]["resultType"] == "input_required" for each in replies)
            assert worker.tree().limiter.inside == 0
            nursery.cancel_scope.cancel()
        return steps.left > 0

    await every_step(attempt)
    assert asked >= 2


async def test_a_waiting_call_is_cancelled_at_every_step(worker: Server) -> None:
    async def attempt(count: int) -> bool:
        line = Line()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, Serves(line.near))
            await line.peer.initialize(LEGACY)
            await settled()
            [session] = worker._runtime._sessions
            with Steps(count, lambda: session.dispatcher._cancelled({"requestId": 4})) as steps:
                for id in (1, 2, 3, 4, 5):
                    await line.peer.send(call(id, "work"))
                messages = await arrived(line.peer)
            answered = sorted(message["id"] for message in messages if "id" in message)
            assert answered == ([1, 2, 3, 5] if session.dispatcher.counters.cancelled else [1, 2, 3, 4, 5])
            await line.peer.send(cancelled(4))
            await settled()
            limiter = worker.tree().limiter
            assert (limiter.inside, limiter.waiting) == (0, 0)
            assert (
                repr(session.dispatcher.limiters.limiters[0])
                == "<ConcurrencyLimiter connection 0/2 waiting=0>"
            )
            nursery.cancel_scope.cancel()
        return steps.left > 0

    assert await every_step(attempt) > 10
