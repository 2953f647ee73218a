"""A call that is born late behaves like one that is born at once: the same conversations, in four ways.

Each conversation is made from a number, and is held with each kind of birth: as the product does, with the first step a
turn after its reader's, and with every call born before its first step, in both. What a peer and an operator can see is
compared: the answers byte by byte, the notifications, counters, limits and calls at each pause, the order in which
functions begin, the lines of the log, and what is left at the end.

``MCP_ACTORS_CONVERSATIONS=20000 pytest tests/actors/test_late_birth.py`` holds more of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Limits, Server, ToolError
from mcp_actors._actors import eager
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.abc.telemetry import CallEnding, Observation, ObservedRequest, Telemetry
from tests.messages import (
    INITIALIZED,
    LEGACY_VERSIONS,
    Message,
    call,
    cancelled,
    initialize,
    modern_meta,
    notification,
    request,
)

from .peers import Serves

pytestmark = pytest.mark.slow

CONVERSATIONS = int(os.environ.get("MCP_ACTORS_CONVERSATIONS", "200"))
PARTS = 10
"""The conversations are divided among so many tests."""
LONG = 6000
LONGEST = 4000
"""Bytes of the longest message of the peer, which the answer of ``long`` exceeds."""


# -- the server, which notes what begins --------------------


class Noted(Telemetry):
    """Notes how each call ended."""

    def __init__(self) -> None:
        self.endings: Counter[Any] = Counter()

    def inbound(self, request: ObservedRequest) -> Observation:
        noted = self

        class Ended(Observation):
            def ended(self, ending: CallEnding) -> None:
                # A call that goes on to the end of its session is cancelled by that, or has lost it before.
                kind = "cancelled" if ending.kind == "lost" else ending.kind
                noted.endings[request.id, request.method, kind, ending.code] += 1

        return Ended()


async def _middleware(ctx: Context, call_next: Callable[..., Any]) -> Any:
    result = await call_next()
    if ctx.params.get("arguments") == {"late": True}:
        await trio.lowlevel.checkpoint()
    return result


class Place:
    """The server of one conversation, with everything that its functions do."""

    def __init__(self, chance: random.Random, alone: bool) -> None:
        self.begun: list[str] = []
        self.begun_inline: list[str] = []
        few = alone and chance.random() < 0.5
        limits = Limits(
            max_in_flight=chance.choice([1, 2, 3]) if few else 1024,
            max_waiting=chance.choice([0, 1]) if few else 1024,
            max_wait=chance.choice([0.5, 30]),
            outbox=chance.choice([1, 2, 1024]),
            idle_tasks=chance.choice([0, 1, 64]),
        )
        self.blocks = alone and not few and limits.outbox > 2
        self.noted = Noted() if chance.random() < 0.2 else None
        self.server = Server("s", limits=limits, telemetry=self.noted, state_key=bytes(32))
        if chance.random() < 0.3:
            self.server.middleware(_middleware)
        self._add_tools()
        self._add_others()

    def _add_tools(self) -> None:
        tool, begun = self.server.tool, self.begun

        @tool
        async def fast(a: int = 0) -> int:
            begun.append(f"fast {a}")
            return a

        @tool(inline=True)
        def inline(a: int = 0) -> int:
            self.begun_inline.append(f"inline {a}")
            if a == 7:
                raise ToolError("seven")
            return a

        @tool
        async def once(a: int = 0) -> str:
            begun.append(f"once {a}")
            await trio.lowlevel.checkpoint()
            return f"after {a}"

        @tool
        async def nap(seconds: float = 1.0) -> str:
            begun.append(f"nap {seconds}")
            await trio.sleep(seconds)
            return "woken"

        @tool
        async def fails(how: str = "value", late: bool = False) -> str:
            begun.append(f"fails {how}")
            if late:
                await trio.lowlevel.checkpoint()
            raise {"value": ValueError, "tool": ToolError, "exit": SystemExit, "group": _group}[how]("no")

        @tool
        async def unsendable() -> object:
            begun.append("unsendable")
            return object()

        @tool
        async def long() -> str:
            begun.append("long")
            return "x" * LONG

        @tool
        async def speaks(ctx: Context, reports: int = 1) -> str:
            begun.append("speaks")
            for number in range(reports):
                await ctx.progress(number + 1, 3, "on")
            await ctx.log("warning", f"{ctx.request_id}")
            return f"{ctx.method} {ctx.meta.get('progressToken')}"

        @tool
        async def asks(ctx: Context) -> str:
            begun.append("asks")
            return (await ctx.elicit("how many?", {"type": "object", "properties": {}})).action

        @tool
        async def left_open(what: str = "scope") -> str:
            begun.append(f"left {what}")
            if what == "scope":
                trio.CancelScope().__enter__()
            else:
                await trio.open_nursery().__aenter__()
            return "left"

        @tool
        async def counts(ctx: Context) -> int:
            begun.append("counts")
            session = ctx.session
            if session is None:
                return -1
            found = session.get(list)
            found.append(1)
            return len(found)

    def _add_others(self) -> None:
        begun = self.begun

        @self.server.resource("r://static")
        async def static() -> str:
            begun.append("static")
            return "text"

        @self.server.resource("r://late/{name}")
        async def late(name: str) -> str:
            begun.append(f"late {name}")
            await trio.lowlevel.checkpoint()
            return name

        @self.server.prompt
        async def prompt(about: str = "x") -> str:
            begun.append("prompt")
            return about

        @self.server.completion(prompt="prompt", argument="about")
        async def completed(value: str) -> list[str]:
            begun.append("completed")
            return [value + "s"]


def _group(text: str) -> BaseException:
    return ExceptionGroup(text, [ValueError(text), KeyError(text)])


# -- the peer: what it sends, and a channel that shows what it gets --------------------


class Wire(FrameChannel):
    """Brings bursts when the test says so, and keeps what is sent; it takes nothing while it is blocked."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.takes = trio.Event()
        self.takes.set()
        self._give, self._bursts = trio.open_memory_channel[list[Frame]](math.inf)

    def burst(self, messages: list[bytes]) -> None:
        self._give.send_nowait([Frame(data) for data in messages])

    def end(self) -> None:
        self._give.close()

    @property
    def max_message_bytes(self) -> int:
        return LONGEST

    async def receive(self) -> Frame:
        raise AssertionError("frames are received as bursts")

    async def receive_many(self) -> list[Frame]:
        return await self._bursts.receive()

    async def send(self, value: Frame) -> None:
        await self.takes.wait()
        self.sent.append(value.data)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


TOOLS: list[tuple[str, dict[str, Any]]] = [
    *[("fast", {"a": number}) for number in range(4)],
    ("fast", {"a": "x"}),
    ("fast", {"b": 1}),
    ("fast", {"late": True}),
    *[("inline", {"a": number}) for number in (1, 7)],
    *[("once", {"a": number}) for number in range(3)],
    *[("nap", {"seconds": seconds}) for seconds in (0, 1, 50)],
    *[
        ("fails", {"how": how, "late": late})
        for how in ("value", "tool", "exit", "group")
        for late in (False, True)
    ],
    ("unsendable", {}),
    ("long", {}),
    *[("speaks", {"reports": number}) for number in (0, 2)],
    *[("asks", {})] * 3,
    *[("left_open", {"what": what}) for what in ("scope", "nursery")],
    ("counts", {}),
    ("unknown", {}),
]
DECLARED = {"elicitation": {"form": {}, "url": {}}}
PROMPT = {"type": "ref/prompt", "name": "prompt"}
OTHERS: list[tuple[str, Any]] = [
    ("ping", {}),
    ("tools/list", {}),
    ("tools/list", {"cursor": "?"}),
    ("resources/list", {}),
    ("resources/read", {"uri": "r://static"}),
    ("resources/read", {"uri": "r://late/a"}),
    ("resources/read", {"uri": "r://none"}),
    ("prompts/get", {"name": "prompt", "arguments": {"about": "y"}}),
    ("prompts/get", {"name": "none"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": {"name": "about", "value": "a"}},
    ),
    ("logging/setLevel", {"level": "debug"}),
    ("tools/call", {"arguments": {}}),
    ("tools/call", {"name": "fast", "arguments": []}),
    ("tools/call", []),
    ("no/method", {}),
    ("server/discover", {}),
]
MALFORMED = [
    b"{",
    b"[]",
    b"[1]",
    b'{"jsonrpc":"2.0","id":1,"id":1,"method":"ping","params":{}}',
    b'{"id":1,"method":"ping"}',
]


def _message(chance: random.Random, modern: bool, ids: list[Any], before: list[Any], alone: bool) -> bytes:
    kind = chance.random()
    if kind < 0.03:
        return chance.choice(MALFORMED)
    if kind < 0.13 and before:
        return json.dumps(cancelled(chance.choice([*before[-4:], "none"]), reason="enough")).encode()
    if kind < 0.15:
        return json.dumps(notification("notifications/roots/list_changed")).encode()
    id = (
        chance.choice(before[-3:])
        if alone and before and chance.random() < 0.06
        else chance.choice([len(ids) + 1, f"n{len(ids)}"])
    )
    ids.append(id)
    message: Message
    if chance.random() < 0.75:
        name, arguments = chance.choice(TOOLS)
        message = call(id, name, token=chance.choice([None, None, f"t{id}"]), **arguments)
    else:
        message = request(id, *deepcopy(chance.choice(OTHERS)))
    params = message["params"]
    if modern and isinstance(params, dict) and chance.random() < 0.97:
        params["_meta"] = {
            **params.get("_meta", {}),
            **modern_meta(DECLARED),
            "io.modelcontextprotocol/logLevel": "info",
        }
    spaced = chance.random() < 0.3
    return json.dumps(message, separators=None if spaced else (",", ":")).encode()


def conversation(chance: random.Random, alone: bool, blocks: bool) -> list[tuple[str, Any]]:
    """Returns the steps of one conversation: bursts, pauses, times in which the peer takes nothing, the end.

    Args:
        alone: Whether each message arrives alone. In a burst a call may be begun before or after the messages behind it
            are looked at. So no peer can know whether a call has left its place, and its id, when the next one comes,
            and whether a cancellation in the same burst comes in time: none of that is part of a burst here.
        blocks: Whether there are times in which the peer takes nothing. If few calls may be in flight, or few frames
            may wait, it is as little known which of them have left their places meanwhile.
    """
    modern = chance.random() < 0.5
    steps: list[tuple[str, Any]] = []
    if not modern and chance.random() < 0.97:
        version = chance.choice(LEGACY_VERSIONS)
        steps.append(
            (
                "send",
                [json.dumps(each).encode() for each in (initialize("i", version, DECLARED), INITIALIZED)],
            )
        )
    ids: list[Any] = []
    for _ in range(chance.randint(1, 6)):
        number = 1 if alone or chance.random() < 0.5 else chance.choice([2, 3, 5, 30])
        before = ids.copy()
        steps.append(("send", [_message(chance, modern, ids, before, alone) for _ in range(number)]))
        step = chance.random()
        if step < 0.15 and blocks:
            steps.append(("block", None))
        elif step < 0.3:
            steps.append(("take", None))
        elif step < 0.5:
            steps.append(("sleep", chance.choice([0.1, 1, 60])))
    return [*steps, ("take", None), ("sleep", 100), ("end", None)]


# -- one conversation, held in one way --------------------


@attrs.define
class Seen:
    """Everything of a conversation that is compared."""

    answers: dict[str, list[bytes]] = attrs.field(factory=dict)
    messages: Counter[bytes] = attrs.field(factory=Counter)
    pauses: list[Any] = attrs.field(factory=list)
    begun: list[str] = attrs.field(factory=list)
    begun_inline: list[str] = attrs.field(factory=list)
    logs: Counter[Any] = attrs.field(factory=Counter)
    endings: Counter[Any] | None = None


def held(number: int, alone: bool) -> Seen:
    """Holds the conversation with this number."""
    seen = Seen()
    clock = MockClock()
    with capture_logs() as logs:
        trio.run(_hold, number, alone, seen, clock, clock=clock)
    for line in logs:
        if line["log_level"] == "debug":
            continue
        error = line.get("exc_info")
        kind = error[0] if isinstance(error, tuple) else type(error)
        said = (line["event"], line["log_level"], line.get("id"), line.get("method"), line.get("tool"), kind)
        seen.logs[said] += 1
    return seen


async def _hold(number: int, alone: bool, seen: Seen, clock: MockClock) -> None:
    chance = random.Random(number)
    place, wire = Place(chance, alone), Wire()
    seen.begun, seen.begun_inline = place.begun, place.begun_inline
    async with trio.open_nursery() as nursery:
        await nursery.start(place.server.serve, Serves(wire))
        for step, value in conversation(chance, alone, place.blocks):
            if step == "send":
                wire.burst(value)
            elif step == "block":
                wire.takes = trio.Event() if wire.takes.is_set() else wire.takes
            elif step == "take":
                wire.takes.set()
            elif step == "sleep":
                await wait_all_tasks_blocked()
                # What is due at different times must not come due together: calls wait for 0.5 or 30 seconds, and sleep
                # for 1 or 50.
                for seconds in (*([0.11] * 12), *([value / 20] * 20)):
                    clock.jump(seconds)
                    await wait_all_tasks_blocked()
            else:
                wire.end()
            await wait_all_tasks_blocked()
            if wire.takes.is_set():
                seen.pauses.append(_paused(place))
        clock.jump(1000)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for data in wire.sent:
        message = json.loads(data)
        if isinstance(message, dict) and "id" in message and "method" not in message:
            # What is sealed for a client is hidden with random bytes, which are as many each time.
            data = re.sub(rb'(?<="requestState":")[^"]+', lambda state: b"s" * len(state[0]), data)
            seen.answers.setdefault(repr(message["id"]), []).append(data)
        elif not isinstance(message, dict) or message.get("params", {}).get("progress", 1) >= 1:
            # How many beats a peer gets that takes nothing for a while depends on when room is found for one.
            seen.messages[data] += 1
    for answers in seen.answers.values():
        answers.sort()
    seen.endings = None if place.noted is None else place.noted.endings


def _paused(place: Place) -> Any:
    tree = place.server.tree()
    sessions = [
        (
            each.state,
            sorted(
                (repr(one.id), one.method, one.target, round(one.age, 6), one.state) for one in each.calls
            ),
            len(each.pending),
            each.counters,
            each.link and (each.link.outbox, each.link.blocked, each.link.frames_in),
        )
        for each in tree.sessions
    ]
    return sessions, tree.limiter, tree.memory


# -- the comparison --------------------


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("alone", [True, False])
def test_a_call_that_is_born_late_is_seen_as_one_that_is_born_at_once(
    alone: bool, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = eager.step
    # What is sealed for a client has the time in it.
    monkeypatch.setattr(time, "time", lambda: 1e9)
    for number in range(part, CONVERSATIONS, PARTS):
        first: Seen | None = None
        for is_eager in (True, False):
            first = first if alone else None
            for born_at_once in (False, True):
                monkeypatch.setattr(InboundCall, "born_at_once", born_at_once)
                monkeypatch.setattr(eager, "step", step if is_eager else None)
                seen = held(number, alone)
                first = first or seen
                for field in attrs.fields(Seen):
                    expected, found = getattr(first, field.name), getattr(seen, field.name)
                    assert found == expected, f"{number=} {born_at_once=} {is_eager=}: {field.name}"
