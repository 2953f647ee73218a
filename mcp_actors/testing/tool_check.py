"""`check_tool`: a tool in virtual time, with a fault at each of its waits, and which of its side effects ran how often.

First the call is made plainly, once in each era, and each point at which its function waits is written down. Then it is
made anew for each kind of fault at each of these points:

===========  ==========================================================  =============================================
kind         what happens while the function waits                       and then
===========  ==========================================================  =============================================
``cancel``   the client cancels the call                                 nothing more
``lose``     its connection is lost, or the answer behind the last wait  the same request is sent again
``repeat``   the same request is sent again, while the first one runs    both run to their ends
``kill``     its process ends: the function is never resumed             the same request is sent to another node
===========  ==========================================================  =============================================

A request is sent again where the protocol allows it: a retry with the answers to questions may always come twice (MCP
2026-07-28, Multi Round-Trip Requests), and the whole call if it has a key, or if the tool says that it may be repeated.
An effect counts when it begins. Those of a process that was killed count up to then.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import math
import os
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Literal, TypeVar

import attrs
import msgspec
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors.client import Client
from mcp_actors.errors import InputRequired, McpError, MissingCapability
from mcp_actors.server import CallNext, Context, Server
from mcp_actors.supervision.containment import one_error
from mcp_actors.supervision.tracebacks import is_users_module
from mcp_actors.types import (
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequest,
    InputResponse,
    ListRootsResult,
    Root,
    TextContent,
)

__all__ = ["Effects", "FaultKind", "ToolFault", "ToolReport", "check_tool"]

FaultKind = Literal["plain", "cancel", "lose", "repeat", "kill"]
"""What is done to a call; ``"plain"`` is nothing."""

MOST_WAITS = 250
"""Waits of one era at which a tool is checked, so that a loop does not take for ever; the report has the number of the
others."""
MOST_ROUNDS = 20
"""Rounds of questions of one call."""
LONGEST_RUN = 3600.0
"""Virtual seconds after which a call that has not ended counts as one without an end."""
SETTLE = 60.0
"""Virtual seconds after the end of a call in which what it has left behind may go on."""
# Virtual seconds for which the first of two equal requests stays where it is, while the second one runs.
_HELD = 1.0
# Modules that wait for threads, programs, sockets and other loops. Virtual time stands still while the tool does.
_OUTSIDE = frozenset(
    {
        "mcp_actors.bridges.asyncio_call",
        "trio._socket",
        "trio._subprocess",
        "trio._threads",
        "trio._unix_pipes",
    }
)
# Real seconds between two looks at that, and after which time goes on all the same: a thread may wait for virtual time.
_LOOK, _PATIENCE = 0.001, 1.0

_ERAS = ("legacy", "modern")

F = TypeVar("F", bound=Callable[..., Any])


@attrs.define(eq=False)
class _PlayedNode:
    """A process that serves, as it is played: effects in its tasks do not count once it is dead."""

    client: Any = None
    is_dead: bool = False


_node: ContextVar[_PlayedNode | None] = ContextVar("node", default=None)


class Effects:
    """A ledger of side effects: what fakes of a tool's dependencies call, or what functions are wrapped in.

    ::

        effects = Effects()

        async def charge(cents: int) -> None:
            effects.note("charge")

    In a call by `check_tool` an effect counts when it is noted; elsewhere, too, and nothing is made of it.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.kept: dict[str, Any] = {}
        """What the fakes keep beyond the end of a process, as a database does: it is empty when a call begins."""

    def __repr__(self) -> str:
        return f"<Effects {dict(self._counts)}>"

    def note(self, name: str) -> None:
        """Counts an effect; allowed in any thread and any loop."""
        node = _node.get()
        if node is None or not node.is_dead:
            self._counts[name] += 1

    def wrap(self, function: F, name: str | None = None) -> F:
        """Returns a function that does the same, and counts each call.

        Args:
            function: A function, async or not.
            name: The name of the effect; by default that of the function.
        """
        noted = name or function.__name__
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **options: Any) -> Any:
                self.note(noted)
                return await function(*args, **options)

            return awaited  # type: ignore[return-value]

        @wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            self.note(noted)
            return function(*args, **options)

        return called  # type: ignore[return-value]

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of times that each effect has happened since `clear`."""
        return dict(self._counts)

    def clear(self) -> None:
        """Forgets what has happened, and what was kept."""
        self._counts.clear()
        self.kept.clear()


_DONE: Mapping[FaultKind, str] = {
    "plain": "in a plain call",
    "cancel": "when the call was cancelled",
    "lose": "when the answer was lost, and the request sent again,",
    "repeat": "when the request was sent twice",
    "kill": "when the process ended, and another one went on,",
}


@attrs.frozen
class ToolFault:
    """Something that went wrong in one run of the call."""

    problem: str
    """A sentence without an end: what went wrong."""
    kind: FaultKind
    """What was done to the call."""
    where: str
    """The wait at which that was done: the file, the line and the function of the user's that waited."""
    era: str
    """The era of the client: ``legacy`` has sessions, ``modern`` has none."""
    effect: str | None = None
    """The effect, ``None`` if the call itself went wrong."""
    times: int = 0
    """How often it ran."""
    expected: int = 0
    """How often it runs in a plain call."""

    def __str__(self) -> str:
        return f"{self.problem} {' '.join(filter(None, (_DONE[self.kind], self.where)))} ({self.era})"


@attrs.frozen
class ToolReport:
    """The findings of `check_tool`."""

    tool: str
    expected: Mapping[str, int]
    """How often each effect happens in a plain call."""
    waits: int
    """Points at which the function waits, of all eras together."""
    runs: int
    """Calls that were made."""
    faults: Sequence[ToolFault]
    """Effects that ran too often, or never although the call has succeeded; and calls without an end."""
    half: Sequence[ToolFault]
    """Effects that never ran in calls that were cut off or failed, while others did. That is for the author to judge: a
    shield or `Context.once` helps, or something that is taken back."""
    skipped: Sequence[str] = ()
    """What was not tried, and why: sentences without an end."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found but what is ``half`` done."""
        return not self.faults

    def __str__(self) -> str:
        lines = [
            f"{self.tool}: {len(self.faults)} faults in {self.runs} calls, at {self.waits} waits; a plain call has "
            f"{', '.join(f'{name}: {times}' for name, times in self.expected.items()) or 'no effects'}"
        ]
        lines += [f"  {each}" for each in self.faults]
        if self.half:
            lines.append("half done:")
            lines += [f"  {each}" for each in self.half]
        if self.skipped:
            lines.append("not tried:")
            lines += [f"  {each}" for each in self.skipped]
        return "\n".join(lines)


@attrs.frozen
class _Plan:
    """One fault: its kind, and the wait of one round at which it happens; 0 is behind the last one."""

    kind: FaultKind
    round: int
    wait: int
    where: str


@attrs.define(eq=False)
class _PlayedRequest:
    """One request of the client, and what came of it."""

    value: Any = None
    done: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class _Ended:
    """The end of one call."""

    counts: Mapping[str, int]
    waits: list[list[str]]
    """Those of each round."""
    value: Any
    """The result or the error; ``None`` if the client has got neither."""
    has_end: bool

    @property
    def succeeded(self) -> bool:
        return isinstance(self.value, CallToolResult) and not self.value.is_error


async def check_tool(
    server: Server | Callable[[], Server],
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    effects: Effects | Sequence[str],
    key: str | None = None,
    repeatable: bool | None = None,
    elicitation: Callable[[Any], Awaitable[ElicitResult]] | None = None,
    sampling: Callable[[CreateMessageParams], Awaitable[CreateMessageResult]] | None = None,
) -> ToolReport:
    """Makes one call of a tool again and again, cut off, lost, repeated and killed at each of its waits.

    It runs in virtual time, in the loop that is there if that has a `trio.testing.MockClock`, else in one of its own.
    Sessions and the stateless revision are tried. Where a process ends another one goes on with the shared
    state and the key of the first, and with nothing else of it.

    Args:
        server: A function that makes the server as a process does when it begins; it is called for each process of each
            call. What fakes keep for longer belongs into `Effects.kept`. Or a `Server`: it is served again and again,
            with all that it keeps, and its process is not ended while the tool runs.
        tool: The name of the tool.
        arguments: Its arguments.
        effects: The ledger that the fakes of the tool note their effects in, or the names of functions that are
            effects, such as ``"shop.bank.charge"``: they are wrapped while this runs, where that name leads.
        key: Repeats the whole call with this key (`mcp_actors.extensions.Idempotency`).
        repeatable: Whether a client that gets no answer makes the whole call again; by default it does with a ``key``,
            or if the tool has the hint that it is idempotent or read-only.
        elicitation: Answers the tool's questions to a person, as that of a `Client`; by default forms are filled in
            with their defaults, or the first value that fits.
        sampling: Answers its questions to the model; by default with the text ``ok``.

    Returns:
        The report. ``assert report.ok, report`` shows what was found.

    Raises:
        TypeError: ``effects`` or ``server`` is of another kind, or a name leads to something that is not a function.
        ImportError, AttributeError: A name leads nowhere.
        Exception: What connecting raises.
    """
    ledger = effects if isinstance(effects, Effects) else Effects()
    names = () if isinstance(effects, Effects) else effects
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise TypeError('effects is an Effects() or a list of names such as ["shop.charge"]')
    if not isinstance(server, Server) and not callable(server):
        raise TypeError(f"server is a Server or a function that returns one, not {server!r:.80}")
    check = _Check(server, tool, dict(arguments or {}), ledger, key, repeatable, elicitation, sampling)

    async def run() -> ToolReport:
        with ExitStack() as patches:
            for name in names:
                patches.enter_context(_patched(name, ledger))
            return await check.run()

    if isinstance(trio.lowlevel.current_clock(), MockClock):
        return await run()
    return await trio.to_thread.run_sync(lambda: trio.run(run, clock=MockClock()))


@contextmanager
def _patched(path: str, effects: Effects) -> Iterator[None]:
    """Has a function note each call for as long as a block runs."""
    owner, name = _owner_of(path)
    function = getattr(owner, name)
    if not callable(function):
        raise TypeError(f"{path} is not a function, and cannot be an effect")
    setattr(owner, name, effects.wrap(function, path.rpartition(".")[2]))
    try:
        yield
    finally:
        setattr(owner, name, function)


def _owner_of(path: str) -> tuple[Any, str]:
    """Returns the module or class that a dotted name is in, and its last part."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Only where that module itself is not there: an import inside of it may fail, too.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for each in parts[length:-1]:
            owner = getattr(owner, each)
        return owner, parts[-1]
    raise ModuleNotFoundError(f"{path!r}: write the module and the function, such as shop.charge")


class _Check:
    """All runs of one `check_tool`, whose arguments it has."""

    def __init__(
        self,
        server: Server | Callable[[], Server],
        tool: str,
        arguments: dict[str, Any],
        effects: Effects,
        key: str | None,
        repeatable: bool | None,
        elicitation: Callable[[Any], Awaitable[ElicitResult]] | None,
        sampling: Callable[[CreateMessageParams], Awaitable[CreateMessageResult]] | None,
    ) -> None:
        self._server = server
        self.tool = tool
        self.arguments = arguments
        self.effects = effects
        self.key = key
        self.repeatable = repeatable
        self.elicitation = elicitation or _filled_in
        self.sampling = sampling or _said_ok
        self.is_task = False
        """Whether the tool runs as a task only, with a stateless client too."""
        self._faults: dict[str, ToolFault] = {}
        self._half: dict[str, ToolFault] = {}
        self._expected: Mapping[str, int] | None = None
        self._skipped: list[str] = []
        self._runs = 0

    async def run(self) -> ToolReport:
        waits = 0
        for era in _ERAS:
            plain = _Plan("plain", 0, 0, "")
            ended = await self._make(era, plain)
            if isinstance(ended.value, MissingCapability):
                self.is_task = True
                ended = await self._make(era, plain)
            if self._expected is None:
                self._expected = ended.counts
            self._judge(ended, plain, era)
            points = [
                (round, wait, where)
                for round, found in enumerate(ended.waits, 1)
                for wait, where in (*enumerate(found, 1), (0, "behind its last wait"))
            ]
            waits += len(points) - len(ended.waits)
            if len(points) > MOST_WAITS:
                self._skipped.append(
                    f"{len(points) - MOST_WAITS} of its waits with {era}: there are too many"
                )
            for round, wait, where in points[:MOST_WAITS] if ended.succeeded else ():
                for kind in self._kinds(era, round, wait):
                    plan = _Plan(kind, round, wait, where)
                    self._judge(await self._make(era, plan), plan, era)
        assert self._expected is not None
        if self.repeatable and isinstance(self._server, Server):
            self._skipped.append("the end of the process at a wait: give a function that makes the server")
        faults, half = tuple(self._faults.values()), tuple(self._half.values())
        return ToolReport(self.tool, self._expected, waits, self._runs, faults, half, tuple(self._skipped))

    def _kinds(self, era: str, round: int, wait: int) -> list[FaultKind]:
        """The faults that say something at a point."""
        kinds: list[FaultKind] = ["cancel"] if wait else ["kill"]
        if self.may_be_sent_again(era, round):
            kinds += ["lose", "repeat"]
            if wait and not isinstance(self._server, Server):
                kinds.append("kill")
        return kinds

    def may_be_sent_again(self, era: str, round: int) -> bool:
        """Whether a client may send the request of a round twice: a retry, or a whole call that may be repeated."""
        return self.repeatable is True or (era == _ERAS[-1] and round > 1)

    async def _make(self, era: str, plan: _Plan) -> _Ended:
        """Makes the call once, in a world of its own."""
        self._runs += 1
        self.effects.clear()
        watch = _Watch(self.tool)
        with one_error(), ExitStack() as served:
            async with trio.open_nursery() as nursery:
                world = _World(self, era, watch, nursery, served)
                nursery.start_soon(world.end_in_time)
                nursery.start_soon(world.let_time_pass)
                value = await world.call(plan)
                ended = _Ended(self.effects.counts, watch.waits, value, not world.is_late)
                world.end()
        return ended

    @contextmanager
    def server(self, watch: _Watch, first: Server | None) -> Iterator[Server]:
        """A server for a process, with middleware; where it is not the first, it goes on with what that has shared."""
        server = self._server if isinstance(self._server, Server) else self._server()
        if not isinstance(server, Server):
            raise TypeError(f"the function that makes the server returned {server!r:.80}")
        if first is not None and first is not server:
            server.shared = first.shared
            runtime = server._runtime
            key = first._runtime._config.state_key
            runtime._config = msgspec.structs.replace(runtime._config, state_key=key)
        before = server._features.middleware
        if watch.through not in before:
            server.middleware(watch.through)
        try:
            yield server
        finally:
            server._features.middleware = before

    def _judge(self, ended: _Ended, plan: _Plan, era: str) -> None:
        where = f"at {plan.where}" if plan.wait else plan.where
        if not ended.has_end:
            self._found(ToolFault("the call has no end", plan.kind, where, era))
            return
        if plan.kind == "plain" and not ended.succeeded:
            text = ended.value.text if isinstance(ended.value, CallToolResult) else ended.value
            self._found(ToolFault(f"the call fails ({text!s:.300})", plan.kind, where, era))
            return
        expected = self._expected or {}
        for name in sorted({*expected, *ended.counts}):
            times, wanted = ended.counts.get(name, 0), expected.get(name, 0)
            if times == wanted:
                continue
            how = "never ran" if not times else f"ran {times} times in place of {wanted},"
            fault = ToolFault(f"{name} {how}", plan.kind, where, era, name, times, wanted)
            if times > wanted or ended.succeeded:
                self._found(fault)
            elif ended.counts:
                self._half.setdefault(str(fault), fault)

    def _found(self, fault: ToolFault) -> None:
        self._faults.setdefault(str(fault), fault)


class _World:
    """One call: its nodes, its client, and what happens to them.

    Args:
        nursery: Owns the nodes and the requests; it ends with the call.
        served: Is left when the call is over, with all that its servers have entered.
    """

    def __init__(
        self, check: _Check, era: str, watch: _Watch, nursery: trio.Nursery, served: ExitStack
    ) -> None:
        self._check = check
        self._served = served
        self._server: Server | None = None
        self._era = era
        self._watch = watch
        self._nursery = nursery
        self._call = trio.CancelScope()
        self._nodes: list[_PlayedNode] = []
        self.is_late = False

    async def end_in_time(self) -> None:
        """Ends a call that takes too long."""
        await trio.sleep(LONGEST_RUN)
        self.is_late = True
        self._call.cancel(reason="the call has no end")

    async def let_time_pass(self) -> None:
        """Moves virtual time to the next deadline whenever nothing else can happen."""
        patience, clock = _PATIENCE, trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        while True:
            await wait_all_tasks_blocked()
            left = trio.lowlevel.current_statistics().seconds_to_next_deadline
            if patience > 0 and self._watch.waits_outside():
                patience -= _LOOK
                time.sleep(_LOOK)  # noqa: ASYNC251  nothing else can happen, and the clock must not jump
            elif left < math.inf:
                patience = _PATIENCE
                clock.jump(max(left, 0.0))

    def end(self) -> None:
        """Ends everything that is left; its effects do not count."""
        for each in self._nodes:
            each.is_dead = True
        self._watch.release()
        self._nursery.cancel_scope.cancel(reason="the call is over")

    async def call(self, plan: _Plan) -> Any:
        """Makes the call, and lets what it has left behind go on; returns the result or the error, if there is one."""
        value = None
        with self._call:
            node = await self._begin_node()
            await self._read_hints(node)
            value = await self._rounds(node, plan)
            await trio.sleep(SETTLE)
        return value

    async def _begin_node(self) -> _PlayedNode:
        node: _PlayedNode = await self._nursery.start(self._serve)
        return node

    async def _serve(self, task_status: trio.TaskStatus[_PlayedNode]) -> None:
        check = self._check
        node = _PlayedNode()
        self._nodes.append(node)
        _node.set(node)
        server = self._served.enter_context(check.server(self._watch, self._server))
        self._server = self._server or server
        async with Client(
            server,
            era=self._era,
            timeout=math.inf,
            cap=math.inf,
            # The rounds of a stateless call are made here, one by one, and those of a task by the client.
            answer_input=self._era == _ERAS[0] or check.is_task,
            tasks=self._era == _ERAS[0] or check.is_task,
            elicitation=check.elicitation,
            sampling=check.sampling,
            roots=[_ROOT],
        ) as node.client:
            task_status.started(node)
            await trio.sleep_forever()

    async def _read_hints(self, node: _PlayedNode) -> None:
        check = self._check
        if check.repeatable is None:
            listed = [each async for each in node.client.tools() if each.name == check.tool]
            hints = listed[0].annotations if listed else None
            said = hints is not None and (hints.idempotent_hint or hints.read_only_hint)
            check.repeatable = check.key is not None or bool(said)

    async def _rounds(self, node: _PlayedNode, plan: _Plan) -> Any:
        answers: Mapping[str, InputResponse] | None = None
        state: str | None = None
        for round in range(1, MOST_ROUNDS + 1):
            value, node = await self._round(node, plan, round, answers, state)
            if not isinstance(value, InputRequired):
                return value
            answers = {name: await self._answer(each) for name, each in value.requests.items()}
            state = value.state
        return McpError(f"it still asks after {MOST_ROUNDS} rounds")

    async def _answer(self, question: InputRequest) -> InputResponse:
        if isinstance(question, ElicitFormParams | ElicitUrlParams):
            return await self._check.elicitation(question)
        if isinstance(question, CreateMessageParams):
            return await self._check.sampling(question)
        return ListRootsResult([_ROOT])

    async def _round(
        self,
        node: _PlayedNode,
        plan: _Plan,
        round: int,
        answers: Mapping[str, InputResponse] | None,
        state: str | None,
    ) -> tuple[Any, _PlayedNode]:
        """Sends the request of one round, with its fault; returns what came of it, and the node that goes on."""

        def send(to: _PlayedNode) -> _PlayedRequest:
            request = _PlayedRequest()
            self._nursery.start_soon(self._send, to, request, answers, state)
            return request

        watch, is_faulty = self._watch, plan.kind != "plain" and plan.round == round
        hit = watch.begin(plan.kind if is_faulty else "plain", plan.wait)
        first = send(node)
        async with trio.open_nursery() as nursery:
            for each in (hit, first.done):
                nursery.start_soon(_ends, each, nursery.cancel_scope)
        if not is_faulty or (plan.wait and not hit.is_set()):
            return first.value, node
        may_be_sent_again = self._check.may_be_sent_again(self._era, round)
        if plan.kind == "cancel":
            first.scope.cancel(reason="the client cancels the call")
            return None, node
        if plan.kind == "kill":
            node.is_dead = True
            assert self._server is not None
            self._server._runtime.lose_claims()
            node = await self._begin_node()
            if not plan.wait:
                return first.value, node
        elif plan.kind == "lose" and plan.wait:
            # A call that outlives its connection goes on.
            with trio.move_on_after(SETTLE):
                await watch.over.wait()
        if not may_be_sent_again:
            return None, node
        second = send(node)
        if plan.kind == "repeat":
            with trio.move_on_after(_HELD):
                await second.done.wait()
            watch.release()
            await first.done.wait()
        await second.done.wait()
        if plan.kind == "repeat" and _is_error(second.value) and not _is_error(first.value):
            return first.value, node
        return second.value, node

    async def _send(
        self,
        node: _PlayedNode,
        request: _PlayedRequest,
        answers: Mapping[str, InputResponse] | None,
        state: str | None,
    ) -> None:
        check = self._check
        with request.scope:
            try:
                request.value = await node.client.call_tool(
                    check.tool, check.arguments, answers=answers, state=state, key=check.key
                )
            except McpError as error:
                # `InputRequired` is one of them.
                request.value = error
            request.done.set()


def _is_error(value: Any) -> bool:
    return isinstance(value, McpError) and not isinstance(value, InputRequired)


async def _ends(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="the other one has happened")


class _Watch:
    """Middleware, inside of all other, that counts the waits of a tool's function, and holds it at one of them.

    Args:
        tool: The name of the tool.
    """

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self.waits: list[list[str]] = []
        """Where the function waited, of each request of `begin`."""
        # The tasks of its calls, with what each of them steps through by hand, if it does.
        self._tasks: dict[trio.lowlevel.Task, Any] = {}
        self.over = trio.Event()
        """The function at which something was to happen has ended."""
        self._kind: FaultKind = "plain"
        self._wait = 0
        self._hit = trio.Event()
        self._gate = trio.Event()
        self._has_begun = True

    def begin(self, kind: FaultKind, wait: int) -> trio.Event:
        """The next request that arrives is the first of a round; returns the event of its reaching a wait."""
        self._kind, self._wait, self._has_begun = kind, wait, False
        self._hit, self.over = trio.Event(), trio.Event()
        return self._hit

    def release(self) -> None:
        """Lets what is held go on, now and later."""
        self._gate.set()

    async def through(self, ctx: Context, call_next: CallNext) -> Any:
        """See `Server.middleware`."""
        if ctx.method != "tools/call" or ctx.params.get("name") != self._tool:
            return await call_next()
        task = trio.lowlevel.current_task()
        self._tasks[task] = None
        try:
            if self._has_begun:
                return await call_next()
            self._has_begun = True
            self.waits.append([])
            self._tasks[task] = call = call_next()
            try:
                return await self._stepped(ctx, call, self.waits[-1])
            finally:
                self.over.set()
        finally:
            del self._tasks[task]

    def waits_outside(self) -> bool:
        """Whether the function, or a task of it, waits for something that takes real time."""
        tasks = list(self._tasks)
        while tasks:
            task = tasks.pop()
            awaited = self._tasks.get(task) or task.coro
            if any(frame.f_globals.get("__name__") in _OUTSIDE for frame in _frames_of(awaited)):
                return True
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        return False

    @types.coroutine
    def _stepped(self, ctx: Context, call: Awaitable[Any], found: list[str]) -> Generator[Any, Any, Any]:
        """Awaits a call, and sees each of its waits."""
        steps = call.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            try:
                trap = step(value)
            except StopIteration as done:
                return done.value
            found.append(_place_of(call))
            is_here = self._kind != "plain" and len(found) == self._wait
            if is_here:
                self._hit.set()
                if self._kind in ("cancel", "lose"):
                    # A function that outlives its request has a call of its own, to which this does nothing.
                    ctx.call.cancel("cut off by check_tool")
            try:
                value, step = (yield trap), steps.send
            except BaseException as error:
                value, step = error, steps.throw
            if is_here and self._kind in ("repeat", "kill"):
                # What it waited for has come, and Trio has nothing more to do with this wait.
                task = trio.lowlevel.current_task()
                self._tasks[task] = gate = _opened(self._gate)
                yield from gate.__await__()
                self._tasks[task] = call


async def _opened(gate: trio.Event) -> None:
    with trio.CancelScope(shield=True):
        await gate.wait()


def _place_of(call: Awaitable[Any]) -> str:
    """Returns the user's line that waits, the innermost one."""
    place = "a wait of the engine"
    for frame in _frames_of(call):
        module = frame.f_globals.get("__name__", "")
        if is_users_module(module) and module != __name__:
            code = frame.f_code
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            name = os.path.basename(code.co_filename)
            place = f"{name}:{frame.f_lineno} in {code.co_name}, `{text}`"
    return place


def _frames_of(awaitable: Any) -> Iterator[types.FrameType]:
    """The frames of coroutines that wait for each other, the outermost first."""
    while awaitable is not None:
        for kind, awaited in _KINDS_OF_COROUTINES:
            frame = getattr(awaitable, kind, None)
            if frame is not None:
                yield frame
                awaitable = getattr(awaitable, awaited)
                break
        else:
            return


_KINDS_OF_COROUTINES = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


# -- a client that answers everything ------------------------------------------------------------------------------

_ROOT = Root("file:///")
_TEXTS = {
    "email": "ann@example.com",
    "uri": "https://example.com",
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
}


async def _filled_in(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    if isinstance(question, ElicitUrlParams):
        return ElicitResult("accept")
    fields = question.requested_schema.get("properties", {})
    return ElicitResult("accept", {name: _value_of(field) for name, field in fields.items()})


def _value_of(field: Mapping[str, Any]) -> Any:
    """Returns the default of a field of a form, or the first value that fits."""
    if "default" in field:
        return field["default"]
    choices = field.get("enum") or [each["const"] for each in field.get("oneOf", field.get("anyOf", ()))]
    if choices:
        return choices[0]
    kind = field.get("type")
    if kind == "array":
        return [_value_of(field.get("items", {}))]
    if kind == "boolean":
        return True
    if kind in ("number", "integer"):
        return field.get("minimum", field.get("maximum", 1))
    text = _TEXTS.get(field.get("format", ""), "text")
    return text.ljust(field.get("minLength", 0), "x")[: field.get("maxLength")]


async def _said_ok(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("ok"), "model")
