"""Calls with keys under repetition, loss, cancellation, restarts and change of node: nothing happens twice for one key.

Each run has a seed. ``MCP_ACTORS_ONCE=100000`` makes so many calls instead of some hundred, and prints their ends.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from mcp_actors import Context, Server
from mcp_actors.abc import SharedState
from mcp_actors.errors import ConnectFailed, SharedStateUnavailable
from mcp_actors.extensions import KEY
from mcp_actors.server import Limits
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.testing import ScriptedPeer
from mcp_transports.memory import MemoryTransport
from tests.messages import LEGACY, TASKS_DECLARED, cancelled, modern_meta, request, result
from tests.redis_server import RedisServer
from tests.server.asking import ALL, FORM, accept
from tests.server.asking import KEY as STATE_KEY
from tests.server.test_idempotency import two_states

CALLS = int(os.environ.get("MCP_ACTORS_ONCE", "300"))
AT_ONCE = 50
CALLS_OF_A_WORLD = 1_000
DAY = timedelta(hours=24)
ATTEMPTS = 25


class Node:
    """One node: it is served until it `restarts`, and then again."""

    def __init__(self, shared: SharedState, effect: Callable[[str], None], pause: float) -> None:
        self._shared, self._effect, self._pause = shared, effect, pause
        self.transport = MemoryTransport()
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        while True:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.server().serve, self.transport)
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self._pause)

    def restart(self) -> None:
        self._scope.cancel()

    def server(self) -> Server:
        server = Server(
            "bank",
            state_key=STATE_KEY,
            shared=self._shared,
            mask_errors=False,
            limits=Limits(drain_grace=0.05),
        )

        # In no thread: the jumping clock of a test does not wait for one.
        async def effect(name: str) -> None:
            await trio.lowlevel.checkpoint()
            self._effect(name)

        @server.tool(idempotent=DAY)
        async def transfer(name: str, steps: str, ctx: Context) -> str:
            # Behind the last question a plain effect, and one under `once` before each.
            for number, step in enumerate(steps):
                if step == "q":
                    await ctx.once(f"e{number}", effect, f"{name}/{number}")
                    await ctx.elicit("and?", FORM, key=f"q{number}")
                else:
                    await trio.sleep(self._pause)
            self._effect(name)
            await trio.sleep(self._pause if "w" in steps else 0)
            return f"done {name}"

        @server.tool(idempotent=DAY, task="optional")
        async def job(name: str, steps: str) -> str:
            self._effect(name)
            await trio.sleep(self._pause if "w" in steps else 0)
            return f"done {name}"

        return server


class KeyedWorld:
    """Two nodes, the effects that happened, and clients that do what networks and hosts do."""

    def __init__(self, seed: int, shared: tuple[SharedState, SharedState], pause: float) -> None:
        self.random = random.Random(seed)
        self.effects: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._pause = pause
        self.nodes = [Node(each, self._effect, pause) for each in shared]

    def _effect(self, name: str) -> None:
        self.effects[name] += 1

    async def run(self, calls: int, restarts: float) -> None:
        """Makes so many calls, some at the same time, and restarts a node after so many seconds, again and again."""
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nodes:
            for each in self.nodes:
                await nodes.start(each.run)

            async def restart() -> None:
                while True:
                    await trio.sleep(restarts * self.random.random())
                    self.random.choice(self.nodes).restart()
                    self.ends["a node was restarted"] += 1

            async def limited(number: int) -> None:
                async with limit:
                    await KeyedCalls(self, f"call-{number}").run()

            nodes.start_soon(restart)
            async with trio.open_nursery() as nursery:
                for number in range(calls):
                    nursery.start_soon(limited, number)
            nodes.cancel_scope.cancel()
        doubled = {name: number for name, number in self.effects.items() if number > 1}
        assert doubled == {}

    @property
    def pause(self) -> float:
        return self._pause


class KeyedCalls:
    """All that one client does for one key, until it has an answer that is final."""

    def __init__(self, world: KeyedWorld, name: str) -> None:
        self._world, self._name, self._random = world, name, world.random
        self._tool = "job" if self._random.random() < 0.2 else "transfer"
        self._is_modern = self._tool == "job" or self._random.random() < 0.6
        self._steps = "".join(self._random.choice("qwn") for _ in range(self._random.randint(1, 4)))
        self._known: list[dict[str, Any]] = []
        self._answers: list[Any] = []

    async def run(self) -> None:
        retry: dict[str, Any] = {}
        for _ in range(ATTEMPTS):
            answer = await self._attempt(retry)
            if answer is None:
                self._world.ends["lost or cancelled"] += 1
                await trio.sleep(self._random.random() * self._world.pause)
            elif "error" in answer:
                reason = answer["error"]["data"]["reason"]
                self._world.ends[reason] += 1
                if reason == "outcome_unknown":
                    return
                # It stops, or its state is away: nothing was begun, or nobody knows. The key makes both one.
                assert reason in ("stopping", "shared_state_unavailable", "key_conflict"), answer
                await trio.sleep(self._world.pause)
            elif answer["result"].get("resultType") == "input_required":
                retry = {
                    "inputResponses": {key: accept("a") for key in answer["result"]["inputRequests"]},
                    "requestState": answer["result"]["requestState"],
                }
                self._known.append(retry)
                retry = self._random.choice(self._known) if self._random.random() < 0.2 else retry
            else:
                await self._end(answer["result"])
                return
        self._world.ends["given up"] += 1

    async def _end(self, found: dict[str, Any]) -> None:
        world = self._world
        if found.get("resultType") == "task":
            world.ends["answered by a task"] += 1
            # Its node may have been restarted meanwhile.
            await trio.sleep(world.pause)
        else:
            text = found["content"][0]["text"]
            if found.get("isError"):
                # The client of a session had gone when it was asked; the function did nothing behind that.
                world.ends["asked a client that had gone"] += 1
                assert world.effects[self._name] == 0, text
            else:
                world.ends["answered"] += 1
                assert (text, world.effects[self._name]) == (f"done {self._name}", 1)
        if self._random.random() < 0.3:
            # The first round again, at any node: the same answer, or its question while the answer is being kept.
            again = await self._attempt({}, calm=True)
            if again is not None and "result" in again:
                asks = again["result"].get("resultType") == "input_required"
                world.ends["asked the same again" if asks else "the same again"] += 1
                assert asks or again["result"] == found
        if self._random.random() < 0.3:
            other = await self._attempt({}, calm=True, steps=self._steps + "n")
            if other is not None:
                world.ends[f"other arguments: {other['error']['data']['reason']}"] += 1

    async def _attempt(self, retry: dict[str, Any], *, calm: bool = False, steps: str | None = None) -> Any:
        """Sends the call, once or twice, to any node, and perhaps loses or cancels it."""
        draw, answers = self._random, list[Any]()
        times = 1 if calm or draw.random() < 0.7 else 2
        lost = None if calm or draw.random() < 0.7 else draw.random() * 3 * self._world.pause
        arguments = {"name": self._name, "steps": steps or self._steps}

        async def once() -> None:
            node = draw.choice(self._world.nodes)
            try:
                answers.append(await self._ask(node, arguments, retry, lost))
            except (ConnectFailed, trio.BrokenResourceError, trio.EndOfChannel, trio.ClosedResourceError):
                answers.append(None)

        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(once)
        found = [each for each in answers if each is not None]
        return draw.choice(found) if found else None

    async def _ask(
        self, node: Node, arguments: dict[str, Any], retry: dict[str, Any], lost: float | None
    ) -> Any:
        says_so = self._random.random() < 0.3
        meta = {KEY: self._name}
        async with node.transport.connect() as channel:
            peer = ScriptedPeer(channel)
            if self._is_modern:
                declared = TASKS_DECLARED if self._tool == "job" else ALL
                meta = {**modern_meta(declared), **meta}
            else:
                await peer.initialize(LEGACY, ALL)
            await peer.send(
                request(1, "tools/call", {"name": self._tool, "arguments": arguments, "_meta": meta, **retry})
            )
            with trio.move_on_after(1000 * self._world.pause if lost is None else lost):
                while True:
                    message = await peer.receive()
                    if message.get("id") == 1 and "method" not in message:
                        return message
                    if message.get("method") == "elicitation/create":
                        await peer.send(result(message, accept("a")))
            if says_so:
                more = {"_meta": modern_meta()} if self._is_modern else {}
                await peer.send(cancelled(1, **more))
                await trio.lowlevel.checkpoint()
            return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_happens_twice_for_one_key(seed: int, autojump_clock: Any) -> None:
    ends: Counter[str] = Counter()
    effects = 0
    for first in range(0, CALLS // 3, CALLS_OF_A_WORLD):
        shared = MemoryShared()
        world = KeyedWorld(seed * CALLS + first, (shared, shared), pause=1.0)
        await world.run(min(CALLS_OF_A_WORLD, CALLS // 3 - first), restarts=3)
        ends += world.ends
        effects += len(world.effects)
    print(f"seed {seed}: {dict(ends)}, {effects} effects")
    assert ends["answered"] + ends["answered by a task"] > 0.2 * CALLS / 3
    assert ends["given up"] == 0


@pytest.fixture(scope="module")
def redis() -> Any:
    with RedisServer() as server:
        yield server


@pytest.mark.skipif(
    "MCP_ACTORS_ONCE" not in os.environ, reason="in real time a busy machine has held it up for minutes"
)
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_nothing_happens_twice_in_a_state_that_is_shared(
    kind: str, tmp_path: Path, redis: RedisServer
) -> None:
    calls = max(30, min(CALLS // 100, 1000))
    world = KeyedWorld(7, two_states(kind, tmp_path, redis), pause=0.02)
    with trio.fail_after(600):
        await world.run(calls, restarts=1.0)
    print(f"{kind}: {dict(world.ends)}, {len(world.effects)} effects")
    assert world.ends["answered"] > 0


# -- one call, at each of its steps ------------------------------------------------------------------------------------


class Steps:
    """Two nodes with one tool whose first step is its effect."""

    def __init__(self, shared: SharedState | None = None) -> None:
        shared = shared or MemoryShared()
        self.done: list[str] = []
        self.here, self.there = (self._server(shared) for _ in range(2))

    def _server(self, shared: SharedState) -> Server:
        server = Server("steps", shared=shared, limits=Limits(drain_grace=0.05))

        @server.tool(idempotent=DAY)
        async def pay() -> str:
            self.done.append("pay")
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)
            return "paid"

        return server


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[ScriptedPeer, trio.CancelScope]]:
    """A peer of a server, and what ends the `serve` of that."""
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        served = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
            with served:
                await server.serve(transport, task_status=task_status)

        await nursery.start(serve)
        async with transport.connect() as channel:
            yield ScriptedPeer(channel), served
        nursery.cancel_scope.cancel()


PAY = {"name": "pay", "arguments": {}, "_meta": {**modern_meta(), KEY: "a"}}


async def call_again(peer: ScriptedPeer) -> str:
    """Calls with the same key until the state is there; returns the text, or the reason of the error."""
    for id in range(100):
        answer = await peer.request(f"again-{id}", "tools/call", PAY)
        if "result" in answer:
            return str(answer["result"]["content"][0]["text"])
        reason = str(answer["error"]["data"]["reason"])
        if reason != "shared_state_unavailable":
            return reason
        await trio.sleep(1)
    raise AssertionError("the state never came back")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cancelled", "lost", "stopped", "ended"])
async def test_whatever_ends_a_call_at_any_step_its_effect_happens_once(
    way: str, autojump_clock: Any
) -> None:
    ends: Counter[str] = Counter()
    for steps in range(40):
        world = Steps()
        async with connected(world.there) as (other, _):
            async with connected(world.here) as (peer, served):
                await peer.send(request(1, "tools/call", PAY))
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                if way == "cancelled":
                    await peer.send(cancelled(1, _meta=modern_meta()))
                elif way == "lost":
                    await peer.channel.aclose()
                elif way == "stopped":
                    world.here.stop()
                else:
                    served.cancel()
                end = await call_again(other)
        ends[end] += 1
        # Begun by the first call or, where that had not come to it, by the second one.
        assert world.done == ["pay"], (steps, end)
    assert set(ends) <= ({"paid"} if way == "lost" else {"paid", "outcome_unknown"})
    assert sum(ends.values()) == 40


@pytest.mark.slow
@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("seconds", [0, 3, 40])
async def test_a_state_that_is_away_at_any_step_has_nothing_done_twice(
    seconds: float, is_carried_out: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    put, found = MemoryValueStore.put, MemoryValueStore.found
    for step in range(12):
        world, made = Steps(), [0]
        away_until = [0.0]

        def fails(made: list[int] = made, away_until: list[float] = away_until, step: int = step) -> bool:
            made[0] += 1
            if made[0] == step + 1:
                away_until[0] = trio.current_time() + seconds
                return True
            return trio.current_time() < away_until[0]

        def put_or_not(self: MemoryValueStore, *arguments: Any, fails: Any = fails) -> bool:
            if not fails():
                return put(self, *arguments)
            if is_carried_out:
                put(self, *arguments)
            raise SharedStateUnavailable("values", "away")

        async def load_or_not(self: MemoryValueStore, key: str, fails: Any = fails) -> bytes | None:
            await trio.lowlevel.checkpoint()
            if fails():
                raise SharedStateUnavailable("values", "away")
            return found(self, key)

        with monkeypatch.context() as patch:
            patch.setattr(MemoryValueStore, "put", put_or_not)
            patch.setattr(MemoryValueStore, "load", load_or_not)
            async with connected(world.there) as (other, _), connected(world.here) as (peer, _):
                await peer.send(request(1, "tools/call", PAY))
                await trio.testing.wait_all_tasks_blocked()
                ends = [await call_again(each) for each in (other, peer, other)]
        assert world.done == ["pay"], (step, ends)
        assert ends == ["paid"] * 3, (step, ends)
