"""``ctx.once`` under repetition, loss, cancellation and change of node: an effect never happens twice for one call.

Each run has a seed. ``MCP_ACTORS_ONCE=100000`` makes so many calls instead of some hundred, and prints their ends.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
import trio

from mcp_actors import Context, Server
from mcp_actors.abc import SharedState
from mcp_actors.shared import MemoryShared
from mcp_actors.testing import ScriptedPeer, raw_client
from tests.messages import modern_meta, notification, request
from tests.server.asking import ALL, FORM, KEY, accept

CALLS = int(os.environ.get("MCP_ACTORS_ONCE", "300"))
AT_ONCE = 50
# The state in memory keeps effects for a day, and has room for those of some ten thousand calls.
CALLS_OF_A_WORLD = 1_000


class World:
    """Nodes with one tool, the effects that happened, and clients that do what networks and hosts do."""

    def __init__(self, seed: int, shared: SharedState) -> None:
        self.random = random.Random(seed)
        self.effects: Counter[tuple[str, str]] = Counter()
        self.ends: Counter[str] = Counter()
        self.servers = [self.node(shared) for _ in range(2)]

    def node(self, shared: SharedState) -> Server:
        server = Server("bank", state_key=KEY, shared=shared, mask_errors=False)

        @server.tool
        async def transfer(name: str, steps: str, ctx: Context) -> str:
            # The function takes a name that only this call has, and steps: `e` is an effect, `q` a question.
            made = []
            for number, step in enumerate(steps):
                if step == "q":
                    await ctx.elicit("and?", FORM, key=f"q{number}")
                else:
                    made.append(await ctx.once(f"e{number}", self.effect, name, f"e{number}", step))
            return " ".join(made)

        return server

    async def effect(self, name: str, effect: str, step: str) -> str:
        self.effects[name, effect] += 1
        if step == "w":
            await trio.sleep(1)
        return f"{effect}{'x' * 5000 if step == 'l' else ''}"

    async def run(self, calls: int) -> None:
        """Makes so many calls, some at the same time."""
        limit = trio.CapacityLimiter(AT_ONCE)
        async with (
            raw_client(self.servers[0]) as one,
            raw_client(self.servers[1]) as two,
            trio.open_nursery() as readers,
        ):
            peers = [Calls(one), Calls(two)]
            for each in peers:
                readers.start_soon(each.run)

            async def limited(number: int) -> None:
                async with limit:
                    await self.call(peers, number)

            async with trio.open_nursery() as nursery:
                for number in range(calls):
                    nursery.start_soon(limited, number)
            readers.cancel_scope.cancel()

    async def call(self, peers: list[Calls], number: int) -> None:
        """Makes one call to its end, and repeats, cancels and loses what it likes."""
        name, draw = f"call-{number}", self.random
        steps = "".join(draw.choice("eeqqwl") for _ in range(draw.randint(1, 6)))
        arguments = {"name": name, "steps": steps}
        known: list[dict[str, Any]] = []
        params: dict[str, Any] = {"name": "transfer", "arguments": arguments}
        for _ in range(20):
            answer = await self.send(peers, {**params, "_meta": modern_meta(ALL)}, may_lose=bool(known))
            if answer is None:
                # It was lost or cancelled: the same retry again.
                continue
            result = answer.get("result")
            if result is None:
                self.ends[answer["error"]["data"]["reason"]] += 1
                assert answer["error"]["code"] == 409, answer
                return
            if result["resultType"] == "complete":
                self.ends["answered"] += 1
                text = result["content"][0]["text"].replace("x", "").split()
                wanted = [f"e{index}" for index, step in enumerate(steps) if step != "q"]
                assert text == wanted, (steps, result)
                assert [self.effects[name, each] for each in wanted] == [1] * len(wanted), steps
                return
            retry = {
                "inputResponses": {key: accept("a") for key in result["inputRequests"]},
                "requestState": result["requestState"],
            }
            known.append(retry)
            # An old state comes again now and then.
            params = {
                "name": "transfer",
                "arguments": arguments,
                **(draw.choice(known) if draw.random() < 0.2 else retry),
            }
        self.ends["given up"] += 1

    async def send(self, peers: list[Calls], params: dict[str, Any], may_lose: bool) -> Any:
        """Sends one request to any node; a retry perhaps twice, to both, or cancelled in the middle."""
        draw, answers = self.random, list[Any]()
        times = 2 if may_lose and draw.random() < 0.3 else 1
        cancels = may_lose and draw.random() < 0.05

        async def once(peer: Calls) -> None:
            answers.append(await peer.request(params, draw.random() if cancels else None))

        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(once, draw.choice(peers))
        if may_lose and draw.random() < 0.1:
            return None
        found = [each for each in answers if each is not None]
        return draw.choice(found) if found else None


class Calls:
    """Requests at the same time on one scripted connection."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self._peer = peer
        self._last = 0
        self._waiting: dict[int, tuple[trio.Event, list[Any]]] = {}

    async def run(self) -> None:
        while True:
            message = await self._peer.receive()
            found = self._waiting.pop(message.get("id"), None)
            if found is not None:
                found[1].append(message)
                found[0].set()

    async def request(self, params: dict[str, Any], cancel_after: float | None) -> Any:
        self._last = id = self._last + 1
        event, answers = self._waiting[id] = trio.Event(), list[Any]()
        await self._peer.send(request(id, "tools/call", params))
        with trio.move_on_after(1000 if cancel_after is None else cancel_after):
            await event.wait()
            return answers[0]
        self._waiting.pop(id, None)
        await self._peer.send(notification("notifications/cancelled", requestId=id, _meta=params["_meta"]))
        return None


@pytest.mark.parametrize("seed", range(3))
async def test_no_effect_happens_twice_and_none_is_lost(seed: int, autojump_clock: Any) -> None:
    ends: Counter[str] = Counter()
    effects = 0
    for first in range(0, CALLS // 3, CALLS_OF_A_WORLD):
        world = World(seed * CALLS + first, MemoryShared())
        await world.run(min(CALLS_OF_A_WORLD, CALLS // 3 - first))
        assert max(world.effects.values()) == 1
        ends += world.ends
        effects += len(world.effects)
    print(f"seed {seed}: {dict(ends)}, {effects} effects")
    # A cancellation in the middle of an effect is the only reason for an outcome that is not known.
    assert ends["answered"] > 0.8 * CALLS / 3
    assert ends["given up"] == 0
