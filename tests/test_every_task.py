"""What the crash of each kind of task costs, held against `mcp_actors.supervision.task_kinds.TASKS`.

A server serves every binding at once, each with a session that has a call in flight and one that is idle. Every task
below `Server.serve` has a row in the table, and so has every task of a client. Then one task after the other is made
to raise where it waits, in a server or a client of its own, and what fails is compared with what the row promises.

``python -m tests.test_every_task`` prints what was promised and what was observed as a table.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, McpError, Server
from mcp_actors.abc import FrameChannel, ServerHandler
from mcp_actors.abc.framing import LineChannel
from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.task_kinds import CALL_WORKER, IN_PROCESS_SERVER, SESSION, TASKS
from mcp_actors.types import ElicitResult
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream
from tests.transports.crashes import captured_logs
from tests.transports.lines import until

pytestmark = [pytest.mark.slow, pytest.mark.long]
CRASHES: dict[str, Callable[[], BaseException]] = {
    "Exception": lambda: ValueError("injected"),
    "SystemExit": lambda: SystemExit(3),
}
EACH_CRASH = pytest.mark.parametrize("crash", CRASHES)
# A crash costs the same wherever a kind of task waits and whatever it raised, so each kind has one `SystemExit`.
EVERY_CRASH = os.environ.get("MCP_EVERY_CRASH") == "1"
PATIENCE = 180  # seconds for one server and all of its clients
HELD = 60  # seconds for a call in flight, which waits until all clients are there, and for the crash

CHILD = """
import trio
from mcp_actors import Server
server = Server("child")
gone = trio.lowlevel.RunVar("go")

@server.tool
async def hold() -> str:
    go = trio.Event()
    gone.set(go)
    await go.wait()
    return "held"

@server.tool
async def echo() -> str:
    return "echo"

@server.tool
async def release() -> str:
    gone.get().set()
    return "released"

server.run()
"""


# -- tasks --------------------------------------------------------------------------------------------------------


def tasks_below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from tasks_below(child)


def row_of(task: trio.lowlevel.Task) -> TaskKind:
    """The row of the table that a task's name begins with."""
    found = [each for each in TASKS if task.name == each.name or task.name.startswith(f"{each.name} ")]
    assert len(found) == 1, f"the task {task.name!r} has {len(found)} rows"
    return found[0]


def transport_of(task: trio.lowlevel.Task) -> str:
    """The transport in whose nurseries a task is, or ``"server"`` for what serves all of them."""
    above: trio.lowlevel.Task | None = task
    while above is not None:
        if above.name.startswith("transport <"):
            return above.name.removeprefix("transport <").partition(" ")[0].rstrip(":")
        above = above.parent_nursery.parent_task if above.parent_nursery is not None else None
    return "server"


@attrs.frozen(order=True)
class Spot:
    """A kind of task of one transport, and the function in which it waits."""

    row: str
    transport: str
    waits_in: str


def spot_of(task: trio.lowlevel.Task) -> Spot:
    names = [
        frame.f_code.co_qualname
        for frame, _ in task.iter_await_frames()
        if "/trio/" not in frame.f_code.co_filename
    ]
    # A session contains what is raised in it, whatever task it runs in.
    row = SESSION if "Session.run" in names else row_of(task)
    return Spot(row.name, transport_of(task), names[-1])


def inject(task: trio.lowlevel.Task, error: BaseException) -> None:
    """Has what a task waits for raise, in the way in which Trio raises `trio.Cancelled` there."""

    def raise_it() -> NoReturn:
        raise error

    task._attempt_abort(raise_it)  # type: ignore[attr-defined]


# -- a server on every binding --------------------------------------------------------------------------------------


class PipesTransport:
    """The one connection of a server at standard input and output, over two pipes: both its sides."""

    def __init__(self) -> None:
        self._to_server, self._to_client = os.pipe(), os.pipe()

    def __repr__(self) -> str:
        return "<PipesTransport >"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with self._channel(self._to_server[0], self._to_client[1], "stdio") as channel:
            task_status.started("pipes:")
            await handler(channel)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with self._channel(self._to_client[0], self._to_server[1], "pipes") as channel:
            yield channel

    def _channel(self, incoming: int, outgoing: int, peer: str) -> LineChannel:
        return LineChannel(DescriptorReceiveStream(incoming), DescriptorSendStream(outgoing), peer=peer)


class OnlyHttpSse(httpx2.AsyncHTTPTransport):
    """Answers a POST to the path of HTTP+SSE as an old server does, whose refusal is no JSON-RPC."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST" and request.url.path == "/sse":
            return httpx2.Response(405)
        return await super().handle_async_request(request)


@attrs.define(eq=False)
class Slot:
    """One client, what became of its call in flight, and whether it still gets answers."""

    name: str
    client: Client
    tool: str
    """What it calls and waits for; empty for an idle session."""
    outcome: str = ""
    ready: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    leave: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        async with self.client:
            # It leaves an idle worker behind in its session.
            assert await answer_to(self.client, "echo") == "echo"
            self.ready.set()
            if self.tool:
                self.outcome = await answer_to(self.client, self.tool, HELD)
                self.ended.set()
            await self.leave.wait()


async def answer_to(client: Client, tool: str, seconds: float = 10) -> str:
    """What a tool returns, or the name of what its call raised."""
    try:
        result = await client.call_tool(tool, timeout=seconds)
    except McpError as error:
        return type(error).__name__
    return "tool error" if result.is_error else result.content[0].text  # type: ignore[union-attr]


class Everything:
    """A server on all bindings, with its clients."""

    def __init__(self) -> None:
        self.server = server = Server("everything")
        self.go = trio.Event()
        self.holding = 0
        self.task: trio.lowlevel.Task | None = None
        self.failure: BaseException | None = None
        self.served = trio.Event()
        self.slots: list[Slot] = []
        self.urls: dict[str, tuple[Any, str]] = {}

        @server.tool
        async def hold() -> str:
            self.holding += 1
            await self.go.wait()
            return "held"

        @server.tool
        async def echo() -> str:
            await trio.lowlevel.checkpoint()
            return "echo"

        @server.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("well?", {"type": "object", "properties": {}})).action + "ed"

    async def answer(self, params: object) -> ElicitResult:
        self.holding += 1
        await self.go.wait()
        return ElicitResult("accept")

    async def serve(self, *targets: Any, task_status: trio.TaskStatus[Any]) -> None:
        self.task = trio.lowlevel.current_task()
        try:
            await self.server.serve(*targets, task_status=task_status)
        except (Exception, SystemExit) as error:
            self.failure = error
        self.served.set()

    @asynccontextmanager
    async def open(self, folder: str) -> AsyncIterator[None]:
        pipes = PipesTransport()
        targets = [
            "memory:everything",
            f"unix:{folder}/s{id(self)}",
            "tcp://127.0.0.1:0",
            "http://127.0.0.1:0/mcp",
            "ws://127.0.0.1:0/",
        ]
        with trio.fail_after(PATIENCE):
            async with httpx2.AsyncClient(transport=OnlyHttpSse()) as sse, trio.open_nursery() as nursery:
                memory, unix, tcp, http, ws, _ = await nursery.start(self.serve, *targets, pipes)
                self.urls = {
                    "memory": (memory, "auto"),
                    "Unix": (unix, "auto"),
                    "TCP": (tcp, "legacy"),
                    "HTTP session": (http, "legacy"),
                    "HTTP exchange": (http, "modern"),
                    "HTTP+SSE": (
                        HttpClientTransport(http.removesuffix("/mcp") + "/sse", client=sse),
                        "legacy",
                    ),
                    "WebSocket legacy": (ws, "legacy"),
                    "WebSocket modern": (ws, "modern"),
                }
                for name, (url, era) in self.urls.items():
                    self.slots += [
                        Slot(f"{name}, busy", Client(url, era=era), "hold"),
                        Slot(f"{name}, idle", Client(url, era=era), ""),
                    ]
                self.slots.append(Slot("stdio, busy", Client(pipes, era="modern"), "hold"))
                asked = Client(tcp, era="legacy", elicitation=self.answer)
                self.slots.append(Slot("TCP, asked", asked, "ask"))
                for slot in self.slots:
                    nursery.start_soon(slot.run)
                for slot in self.slots:
                    await slot.ready.wait()
                await until(lambda: self.holding == sum(bool(each.tool) for each in self.slots))
                # Connections have a writer from when messages come together, which one alone does not need.
                async with trio.open_nursery() as together:
                    for slot in self.slots:
                        for _ in range(10):
                            together.start_soon(slot.client.call_tool, "echo")
                yield
                for slot in self.slots:
                    slot.leave.set()
                self.go.set()
                self.server.stop()

    def tasks(self) -> list[trio.lowlevel.Task]:
        assert self.task is not None
        return list(tasks_below(self.task))

    def find(self, spot: Spot) -> trio.lowlevel.Task | None:
        return next((each for each in self.tasks() if spot_of(each) == spot), None)


@attrs.frozen
class Observation:
    """What the crash of one task cost."""

    spot: Spot
    row: TaskKind
    crash: str
    failed: tuple[str, ...]
    """The sessions whose call in flight failed."""
    dead: tuple[str, ...]
    """The sessions that get no answers any more."""
    refused: tuple[str, ...]
    """The bindings on which no new connection could be made."""
    is_running: bool
    """Whether a task of this name is there afterwards."""
    events: tuple[str, ...]
    """The log's errors about a task."""
    ended: str = ""
    """What ended the server, if it ended."""

    def complaints(self) -> list[str]:
        """Returns in what the row's promise was not kept."""
        hit, cost = {*self.failed, *self.dead}, self.row.cost
        found = []
        if cost == "server":
            return [] if self.ended else ["the server goes on"]
        # What the code of its own server raises, whoever leaves the block of a client gets to see.
        if self.ended and self.row is not IN_PROCESS_SERVER:
            found.append(f"the server ended: {self.ended}")
        if cost == "nothing" and hit:
            found.append(f"it cost {sorted(hit)}")
        if cost == "call" and self.dead:
            found.append(f"it cost more than calls: {self.dead}")
        if len(hit) > 1:
            found.append(f"it cost several: {sorted(hit)}")
        if self.refused:
            found.append(f"no new connection: {self.refused}")
        if self.row.restarted and not self.is_running:
            found.append("it was not started again")
        if len(self.events) != 1:
            found.append(f"the log has {len(self.events)} lines: {self.events}")
        return [f"{self.spot} ({self.crash}): {each}" for each in found]

    def line(self) -> str:
        cost = self.ended or ", ".join(sorted({*self.failed, *self.dead})) or "nothing"
        again = "again" if self.row.restarted and self.is_running else ""
        where = f"{self.spot.transport}: {self.spot.waits_in}"
        return (
            f"| {self.row.name} | {where} | {self.row.supervisor} | {self.row.cost} | {self.crash} "
            f"| {cost} | {again} |"
        )


def loud(logs: list[Any], row: TaskKind) -> tuple[str, ...]:
    """The errors in the log, without those of tools that lost their client."""
    return tuple(
        str(each["event"])
        for each in logs
        if each["log_level"] == "error" and (each["event"] != "handler failed" or row is CALL_WORKER)
    )


async def crash_of_servers_task(spot: Spot, crash: str, folder: str) -> Observation | None:
    """Returns ``None`` if no task waits there this time, as with one that was about to end."""
    everything = Everything()
    with captured_logs() as logs:
        async with everything.open(folder):
            task = everything.find(spot)
            if task is None:
                return None
            row, name = next(each for each in TASKS if each.name == spot.row), task.name
            inject(task, CRASHES[crash]())
            await until(lambda: everything.served.is_set() or bool(loud(logs, row)) or row.cost == "call")
            if row.cost != "server":
                await trio.testing.wait_all_tasks_blocked()
            everything.go.set()
            for slot in everything.slots:
                if slot.tool:
                    await slot.ended.wait()
            # A client makes a request that was refused again, for as long as its call may take.
            asked = [] if everything.served.is_set() else everything.slots
            dead = [each.name for each in asked if await answer_to(each.client, "echo") != "echo"]
            refused = []
            if not everything.served.is_set():
                for binding, (url, era) in everything.urls.items():
                    try:
                        async with Client(url, era=era) as client:
                            assert await answer_to(client, "echo") == "echo"
                    except McpError:
                        refused.append(binding)
            failed = [
                each.name
                for each in everything.slots
                if each.tool and each.outcome not in ("held", "accepted")
            ]
            is_running = any(each.name == name for each in everything.tasks())
            ended = ""
            if everything.served.is_set():
                ended = f"serve() raised {everything.failure!r}"
            events = loud(logs, row)
    return Observation(
        spot, row, crash, tuple(failed), tuple(dead), tuple(refused), is_running, events, ended
    )


async def spots_of_server(folder: str) -> list[Spot]:
    everything = Everything()
    async with everything.open(folder):
        await trio.testing.wait_all_tasks_blocked()
        return sorted({spot_of(each) for each in everything.tasks()})


async def crashes_at(
    spots: list[Spot],
    crash: str,
    crash_at: Callable[[Spot, str, str], Awaitable[Observation | None]],
    folder: str,
) -> list[Observation]:
    """What crashes cost at each of these places, or for `SystemExit` at one of each kind of task."""
    found: list[Observation] = []
    for spot in spots:
        # No task may wait at the first place of its kind this time: then it is the next one.
        if EVERY_CRASH or crash == "Exception" or spot.row not in {each.spot.row for each in found}:
            observation = await crash_at(spot, crash, folder)
            found += [] if observation is None else [observation]
    return found


@EACH_CRASH
async def test_a_crash_in_a_server_costs_what_the_table_says(crash: str, tmp_path: Any) -> None:
    folder = str(tmp_path)
    observed = await crashes_at(await spots_of_server(folder), crash, crash_of_servers_task, folder)
    assert [each for one in observed for each in one.complaints()] == []
    # Were none of these there, the test would not see what it is for.
    assert {each.row.name for each in observed} >= {
        "beats", "drain", "link", "call", "clock", "poller", "ticker", "accept", "connection", "session", "transport"
    }  # fmt: skip


# -- a client on each binding ---------------------------------------------------------------------------------------

BINDINGS = {
    "in process": "auto",
    "stdio": "legacy",
    "TCP": "legacy",
    "Unix": "modern",
    "HTTP session": "legacy",
    "HTTP exchange": "modern",
    "HTTP+SSE": "legacy",
    "WebSocket": "legacy",
}


class OneClient:
    """A client with a call in flight, which runs in a task of its own, and its server."""

    def __init__(self, binding: str) -> None:
        self.binding = binding
        self.everything = Everything()
        self.task: trio.lowlevel.Task | None = None
        self.slot: Slot | None = None
        self.failure: BaseException | None = None
        self.left = trio.Event()

    @asynccontextmanager
    async def open(self, folder: str) -> AsyncIterator[Slot]:
        everything = self.everything
        url = {
            "TCP": "tcp://127.0.0.1:0",
            "Unix": f"unix:{folder}/c{id(self)}",
            "WebSocket": "ws://127.0.0.1:0/",
        }
        with trio.fail_after(PATIENCE):
            async with httpx2.AsyncClient(transport=OnlyHttpSse()) as sse, trio.open_nursery() as nursery:
                target: Any = everything.server
                if self.binding == "stdio":
                    target = StdioClientTransport([sys.executable, "-c", CHILD], grace=0.2, kill_after=0.2)
                elif self.binding != "in process":
                    [target] = await nursery.start(
                        everything.serve, url.get(self.binding, "http://127.0.0.1:0/mcp")
                    )
                    if self.binding == "HTTP+SSE":
                        target = HttpClientTransport(target.removesuffix("/mcp") + "/sse", client=sse)
                client = Client(target, era=BINDINGS[self.binding], on_change=lambda kind, uri: None)
                slot = self.slot = Slot(self.binding, client, "hold")
                nursery.start_soon(self._run, slot)
                await slot.ready.wait()
                if self.binding != "stdio":
                    await until(lambda: everything.holding == 1)
                await trio.testing.wait_all_tasks_blocked()
                yield slot
                slot.leave.set()
                everything.go.set()
                await self.left.wait()
                nursery.cancel_scope.cancel()

    async def _run(self, slot: Slot) -> None:
        self.task = trio.lowlevel.current_task()
        try:
            await slot.run()
        except BaseException as error:
            self.failure = error
        self.left.set()

    def tasks(self) -> list[trio.lowlevel.Task]:
        """The client's tasks, without those of the server that runs in them."""
        assert self.task is not None
        return [each for each in tasks_below(self.task) if not within_server(each)]

    async def release(self) -> None:
        """Lets the call in flight end, in whichever process it runs."""
        assert self.slot is not None
        self.everything.go.set()
        if self.binding == "stdio":
            await answer_to(self.slot.client, "release")


def within_server(task: trio.lowlevel.Task) -> bool:
    above = task.parent_nursery
    while above is not None:
        if above.parent_task.name.startswith("in-process server"):
            return True
        above = above.parent_task.parent_nursery
    return False


async def spots_of_client(binding: str, folder: str) -> list[Spot]:
    one = OneClient(binding)
    async with one.open(folder):
        spots = sorted({attrs.evolve(spot_of(each), transport=binding) for each in one.tasks()})
        await one.release()
    return spots


async def crash_of_clients_task(spot: Spot, crash: str, folder: str) -> Observation | None:
    """As `crash_of_servers_task`."""
    one = OneClient(spot.transport)
    row = next(each for each in TASKS if each.name == spot.row)
    with captured_logs() as logs:
        async with one.open(folder) as slot:
            waiting = [
                each for each in one.tasks() if attrs.evolve(spot_of(each), transport=spot.transport) == spot
            ]
            if not waiting:
                return None
            task = waiting[0]
            inject(task, CRASHES[crash]())
            await until(lambda: bool(loud(logs, row)))
            await one.release()
            await slot.ended.wait()
            dead = await answer_to(slot.client, "echo") != "echo"
            is_running = task in one.tasks()
            events = loud(logs, row)
    ended = "" if one.failure is None else repr(one.failure)
    failed = slot.outcome != "held"
    # A connection's loss is typed: any other outcome of a call is a wrong answer, or an error that says nothing.
    assert slot.outcome in ("held", "ConnectionLost", "SessionExpired"), slot.outcome
    return Observation(
        spot,
        row,
        crash,
        (f"{spot.transport}: {slot.outcome}",) if failed else (),
        (f"{spot.transport}: {slot.outcome}",) if dead else (),
        (),
        is_running,
        events,
        ended,
    )


@EACH_CRASH
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_crash_in_a_client_costs_what_the_table_says(binding: str, crash: str, tmp_path: Any) -> None:
    folder = str(tmp_path)
    observed = await crashes_at(await spots_of_client(binding, folder), crash, crash_of_clients_task, folder)
    assert [each for one in observed for each in one.complaints()] == []
    assert {each.row.name for each in observed} >= {"client supervisor", "client notifications", "session"}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print("| task | where | supervisor | cost promised | crash | observed | restarted |")
        print("|---|---|---|---|---|---|---|")
        for crash in CRASHES:
            for spot in await spots_of_server(folder):
                report(await crash_of_servers_task(spot, crash, folder))
            for binding in BINDINGS:
                for spot in await spots_of_client(binding, folder):
                    report(await crash_of_clients_task(spot, crash, folder))


def report(one: Observation | None) -> None:
    if one is None:
        return
    print(one.line(), flush=True)
    for each in one.complaints():
        print(f"    !! {each}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    trio.run(main)
