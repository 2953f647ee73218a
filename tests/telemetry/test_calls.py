"""Telemetry is given each call of both directions once, with its ending, and costs calls nothing when it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, Context, Limits, Server
from mcp_actors._actors.beats import Beats
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors.abc.framing import LineChannel
from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
    current_call,
)
from mcp_actors.errors import (
    INTERNAL_ERROR,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    McpError,
    RpcError,
    SessionExpired,
    ToolError,
)
from mcp_actors.supervision.logging import log
from mcp_actors.telemetry import Metrics, Together
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitResult
from tests.actors.peers import LEGACY, Serves, call, faulty_pair

from .recorder import Recorder

LEGACY_CALLS, MODERN = "2025-11-25", "2026-07-28"
ERAS = pytest.mark.parametrize("era", [LEGACY_CALLS, MODERN])


def serving(telemetry: Telemetry | None, **options: Any) -> Server:
    server = Server("observed", telemetry=telemetry, **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        await trio.sleep(2)
        return a + b

    @server.tool(inline=True)
    def add_inline(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def fail(how: str) -> str:
        if how == "rpc":
            raise RpcError(-32050, "no such thing")
        raise ToolError("not today")

    @server.tool
    async def hang() -> str:
        await trio.sleep_forever()
        return "never"

    return server


Case = tuple[str, str, dict[str, Any], tuple[str, int | None, float]]
CASES: list[Case] = [
    ("a result", "add", {"a": 1, "b": 2}, ("answered", None, 2.0)),
    ("a result without a task", "add_inline", {"a": 1, "b": 2}, ("answered", None, 0.0)),
    ("an error of the tool", "fail", {"how": "tool"}, ("tool_error", None, 0.0)),
    ("arguments that do not fit", "add", {"a": "x"}, ("tool_error", None, 0.0)),
    ("an error of the protocol", "fail", {"how": "rpc"}, ("error", -32050, 0.0)),
    ("an unknown tool", "nobody", {}, ("error", -32602, 0.0)),
]


@ERAS
@pytest.mark.parametrize(
    ("tool", "arguments", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
async def test_both_sides_are_given_the_ending(
    tool: str,
    arguments: dict[str, Any],
    expected: tuple[str, int | None, float],
    era: str,
    autojump_clock: object,
) -> None:
    here, there = Recorder(), Recorder()
    async with Client(serving(there), era=era, telemetry=here) as client:
        with suppress(RpcError):
            await client.call_tool(tool, arguments)
    for direction, recorder in (("in", there), ("out", here)):
        ((request, ending),) = recorder.of(direction, "tools/call")
        assert (ending.kind, ending.code, ending.seconds) == expected
        assert (request.target, request.version) == (tool, era)
        assert request.is_registered == (direction == "in" and tool != "nobody")
    assert there.entered == 0


@ERAS
async def test_a_cancelled_call(era: str, autojump_clock: object) -> None:
    here, there = Recorder(), Recorder()
    async with Client(serving(there), era=era, telemetry=here) as client:
        with trio.move_on_after(3):
            await client.call_tool("hang")
        await trio.sleep(1)
        (seen,) = there.of("in", "tools/call")
        assert (seen[1].kind, seen[1].seconds) == ("cancelled", 3)
        (seen,) = here.of("out", "tools/call")
        assert (seen[1].kind, seen[1].seconds) == ("cancelled", 3)


@ERAS
async def test_a_call_that_times_out(era: str, autojump_clock: object) -> None:
    here, there = Recorder(), Recorder()
    async with Client(serving(there), era=era, telemetry=here) as client:
        with pytest.raises(CallTimeout):
            await client.call_tool("hang", timeout=4, cap=4)
        await trio.sleep(1)
    (seen,) = here.of("out", "tools/call")
    assert (seen[1].kind, seen[1].seconds) == ("timeout", 4)
    (seen,) = there.of("in", "tools/call")
    assert seen[1].kind == "cancelled"


@ERAS
async def test_a_call_whose_connection_is_lost(era: str, autojump_clock: object) -> None:
    here, there = Recorder(), Recorder()
    server = serving(there)

    async def call(client: Client) -> None:
        with pytest.raises(ConnectionLost):
            await client.call_tool("hang")

    async with Client(server, era=era, telemetry=here) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call, client)
        await trio.sleep(1)
        await client.aclose()
    (seen,) = here.of("out", "tools/call")
    assert seen[1].kind == "lost"
    (seen,) = there.of("in", "tools/call")
    assert seen[1].kind == "lost"


async def test_a_call_that_waits_and_one_that_is_refused(autojump_clock: object) -> None:
    there = Recorder()
    server = serving(there, limits=Limits(max_in_flight=1, max_waiting=1, max_wait=10))
    refusals: list[int] = []

    async def call() -> None:
        try:
            await client.call_tool("add", {"a": 1, "b": 2})
        except RpcError as error:
            refusals.append(error.code)

    async with Client(server, era=LEGACY_CALLS) as client, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
    endings = [ending for _, ending in there.of("in", "tools/call")]
    assert sorted((each.kind, each.seconds, each.waited) for each in endings) == [
        ("answered", 2, 0),
        ("answered", 4, 2),
        ("error", 0, 0),
    ]
    assert refusals == [each.code for each in endings if each.kind == "error"]
    assert server.telemetry is there
    assert there.begun == len(there.calls)


async def test_a_question_ends_a_stateless_call_and_is_a_request_in_a_session(autojump_clock: object) -> None:
    async def answer(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ada"})

    for era, expected in ((LEGACY_CALLS, ["answered"]), (MODERN, ["input_required", "answered"])):
        here, there = Recorder(), Recorder()
        server = Server("asks", telemetry=there)

        @server.tool
        async def greet(ctx: Context) -> str:
            answer = await ctx.elicit(
                "Who are you?", {"type": "object", "properties": {"name": {"type": "string"}}}
            )
            return f"Hello {answer}"

        async with Client(server, era=era, telemetry=here, elicitation=answer) as client:
            await client.call_tool("greet")
        assert [ending.kind for _, ending in there.of("in", "tools/call")] == expected
        assert [ending.kind for _, ending in here.of("out", "tools/call")] == expected
        asked = [] if era == MODERN else ["answered"]
        assert [ending.kind for _, ending in there.of("out", "elicitation/create")] == asked
        assert [ending.kind for _, ending in here.of("in", "elicitation/create")] == asked


@ERAS
async def test_a_function_knows_its_call_and_the_log_does_too(era: str) -> None:
    there = Recorder()
    server = Server("observed", telemetry=there)
    found: list[ObservedRequest] = []

    def look() -> None:
        current = current_call.get()
        assert current is not None
        found.append(current[0])
        log.warning("a line of the call")

    @server.tool
    async def looks() -> None:
        look()
        await trio.lowlevel.checkpoint()
        look()

    @server.tool(inline=True)
    def looks_inline() -> None:
        look()

    @server.tool
    def looks_in_a_thread() -> None:
        look()

    with capture_logs() as lines:
        async with Client(server, era=era) as client:
            for tool in ("looks", "looks_inline", "looks_in_a_thread"):
                await client.call_tool(tool)
        log.warning("a line of nobody")
    assert [request.target for request in found] == ["looks", "looks", "looks_inline", "looks_in_a_thread"]
    *of_calls, of_nobody = [line for line in lines if line["event"].startswith("a line of")]
    assert [(line["session"], line["trace_id"]) for line in of_calls] == [("observed#1", "a-trace")] * 4
    assert "trace_id" not in of_nobody
    assert current_call.get() is None


async def test_a_notification_that_a_function_takes() -> None:
    there = Recorder()
    server = Server("observed", telemetry=there)
    taken = trio.Event()

    @server.notification("notifications/custom")
    async def take() -> None:
        taken.set()

    async with Client(server, era=LEGACY_CALLS) as client:
        await client.notify("notifications/custom", {})
        await taken.wait()
        await trio.testing.wait_all_tasks_blocked()
    ((request, ending),) = there.of("in", "notifications/custom")
    assert (request.id, ending.kind) == (None, "answered")


class Broken(Telemetry):
    """Fails in every method that it is called by."""

    def __init__(self, when: str) -> None:
        self.when = when

    def _fail(self, when: str) -> None:
        if when == self.when:
            raise RuntimeError(f"broken: {when}")

    def inbound(self, request: ObservedRequest) -> Observation:
        self._fail("inbound")
        broken = self

        class Fails(Observation):
            def enter(self) -> None:
                broken._fail("enter")

            def leave(self) -> None:
                broken._fail("leave")

            def ended(self, ending: object) -> None:
                broken._fail("ended")

        return Fails()

    def outbound(self, request: ObservedRequest) -> None:
        self._fail("outbound")

    def session_began(self, side: str) -> None:
        self._fail("session_began")

    def session_ended(self, session: ObservedSession) -> None:
        self._fail("session_ended")

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        self._fail("served")
        return lambda: self._fail("unserved")


MOMENTS = [
    "inbound",
    "enter",
    "leave",
    "ended",
    "outbound",
    "session_began",
    "session_ended",
    "served",
    "unserved",
]


@pytest.mark.parametrize("when", MOMENTS)
async def test_telemetry_that_fails_costs_nothing(when: str, autojump_clock: object) -> None:
    telemetry = Broken(when)
    with capture_logs() as lines:
        async with Client(serving(telemetry), telemetry=telemetry) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
            assert (await client.call_tool("add_inline", {"a": 1, "b": 2})).structured_content == 3
    assert {line["event"] for line in lines} == {"telemetry failed"}


async def test_members_are_added_to_meta_where_the_program_has_none() -> None:
    there, here = Recorder(), Recorder({"traceparent": "ours", "baggage": "ours"})
    async with Client(serving(there), era=MODERN, telemetry=here) as client:
        await client.call_tool("add_inline", {"a": 1, "b": 2}, meta={"baggage": "the program's"})
    ((request, _),) = there.of("in", "tools/call")
    assert (request.meta["traceparent"], request.meta["baggage"]) == ("ours", "the program's")


async def test_sessions_and_servers() -> None:
    there, here = Recorder(), Recorder()
    server = serving(there)
    async with Client(server, era=LEGACY_CALLS, telemetry=here):
        assert there.sessions == ["server"]
        assert here.sessions == ["client"]
        (statistics,) = there.servers
        assert len(statistics().sessions) == 1
    assert there.servers == []
    for recorder, side in ((there, "server"), (here, "client")):
        ended = recorder.sessions[1]
        assert isinstance(ended, ObservedSession)
        assert (ended.side, ended.version, ended.is_broken) == (side, LEGACY_CALLS, False)


async def test_without_telemetry_calls_are_plain() -> None:
    kinds: list[type] = []
    server = Server("plain")

    @server.tool
    async def kind(ctx: Context) -> None:
        kinds.append(type(ctx.call))

    async with Client(server) as client:
        await client.call_tool("kind")
    assert kinds == [InboundCall]


@pytest.mark.parametrize("make", [lambda: Server("x", telemetry=1), lambda: Client(["true"], telemetry=1)])  # type: ignore[arg-type]
def test_what_is_no_telemetry_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"telemetry is an object of mcp_actors\.telemetry, not 1"):
        make()


async def test_another_telemetry_counts_from_the_next_serve_on() -> None:
    first, second = Recorder(), Recorder()
    server = serving(first)
    async with Client(server) as client:
        server.telemetry = second
        await client.call_tool("add_inline", {"a": 1, "b": 2})
    async with Client(server) as client:
        await client.call_tool("add_inline", {"a": 1, "b": 2})
    assert [len(each.of("in", "tools/call")) for each in (first, second)] == [1, 1]
    assert [len(each.sessions) for each in (first, second)] == [2, 2]


async def test_a_client_that_cannot_connect_has_no_session() -> None:
    here = Recorder()
    with pytest.raises(ConnectFailed):
        async with Client("tcp://127.0.0.1:9", telemetry=here):
            pass
    assert here.sessions == []


class Entered(Telemetry, Observation):
    """Counts how often the observers of calls are entered and left."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def inbound(self, request: ObservedRequest) -> Observation | None:
        return self if request.method == "tools/call" else None

    def enter(self) -> None:
        self.entered.append("in")

    def leave(self) -> None:
        self.entered.append("out")


@ERAS
@pytest.mark.parametrize(("tool", "times"), [("add", 1), ("add_inline", 1), ("nobody", 0)])
async def test_an_observer_is_entered_where_the_function_runs(
    era: str, tool: str, times: int, autojump_clock: trio.testing.MockClock
) -> None:
    telemetry = Entered()
    async with Client(serving(telemetry), era=era) as client:
        with suppress(RpcError):
            await client.call_tool(tool, {"a": 1, "b": 2})
    assert telemetry.entered == ["in", "out"] * times


async def test_lines_of_a_function_have_the_trace_without_a_configured_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorder = Recorder()
    server = Server("observed", telemetry=recorder)

    @server.tool
    async def speaks(ctx: Context) -> None:
        ctx.logger.warning("a line")

    async with Client(server) as client:
        await client.call_tool("speaks")
    (line,) = capsys.readouterr().err.splitlines()
    assert "session=observed#1 trace_id=a-trace" in line


# -- Endings that are rare: of answers that are too long, of defects of the engine, and of what was raised here ---

OUT = 'mcp_actors_connection_bytes_total{direction="out"}'


def repeating(telemetry: Recorder | Metrics) -> Server:
    server = Server("repeating", telemetry=telemetry)

    @server.tool
    async def repeat(times: int) -> str:
        return "x" * times

    return server


async def test_an_answer_that_is_too_long_is_an_error() -> None:
    there = Recorder()
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=50_000) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeating(there).serve, Serves(near))
        peer = ScriptedPeer(far)
        await peer.initialize(LEGACY)
        await peer.send(call(1, "repeat", times=60_000))
        assert (await peer.receive())["error"]["code"] == INTERNAL_ERROR
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ((_, ending),) = there.of("in", "tools/call")
    assert (ending.kind, ending.code) == ("error", INTERNAL_ERROR)


async def test_a_call_that_a_defect_of_the_engine_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    there = Recorder()
    monkeypatch.setattr(Beats, "watch", broken)
    async with Client(repeating(there)) as client:
        with pytest.raises(RpcError, match="internal error"):
            await client.call_tool("repeat", {"times": 1}, on_progress=lambda progress: None)
    ((_, ending),) = there.of("in", "tools/call")
    assert (ending.kind, ending.code) == ("error", INTERNAL_ERROR)


RAISED: list[tuple[McpError, str, str | None]] = [
    (SessionExpired("the session is gone"), "lost", "the session is gone"),
    (ConnectionLost("the connection ended"), "lost", "the connection ended"),
    (CallTimeout("custom/method", "idle", 3), "timeout", str(CallTimeout("custom/method", "idle", 3))),
    (RpcError(-32000, "no " * 1000), "error", ("no " * 1000)[:256]),
    (McpError("something else " * 1000), "error", "McpError"),
]


@pytest.mark.parametrize(
    ("error", "kind", "message"), RAISED, ids=[type(each[0]).__name__ for each in RAISED]
)
async def test_what_a_request_raises_is_its_ending(
    error: McpError, kind: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> dict[str, Any]:
        raise error

    here = Recorder()
    async with Client(repeating(Recorder()), telemetry=here) as client:
        monkeypatch.setattr(OutboundCalls, "request", fail)
        with pytest.raises(McpError):
            await client.request("custom/method", {})
        monkeypatch.undo()
    ((_, ending),) = here.of("out", "custom/method")
    assert (ending.kind, ending.message) == (kind, message)


async def test_a_session_whose_connection_breaks_is_told_apart() -> None:
    there = Recorder()
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeating(there).serve, Serves(channel))
        await peer.initialize(LEGACY)
        await trio.testing.wait_all_tasks_blocked()
        channel.snap()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    _, ended = there.sessions
    assert isinstance(ended, ObservedSession)
    assert (ended.side, ended.version, ended.is_broken) == ("server", LEGACY, True)


async def test_bytes_of_connections_that_have_ended_count_still() -> None:
    metrics = Metrics()
    server = repeating(metrics)

    def counted() -> int:
        (line,) = (each for each in metrics.text().splitlines() if each.startswith(OUT))
        return int(line.rpartition(" ")[2])

    async with Client(server):
        before = counted()
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, Serves(LineChannel(ours, ours)))
            far = LineChannel(theirs, theirs)
            peer = ScriptedPeer(far)
            await peer.initialize(LEGACY)
            await peer.send(call(1, "repeat", times=5000))
            await peer.receive()
            await far.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert counted() >= before + 5000
            nursery.cancel_scope.cancel()


# -- Hooks of telemetry that fail, or are written carelessly, cost neither calls nor lines of the log ----


class Speechless(Observation):
    def log_members(self) -> Mapping[str, Any]:
        raise RuntimeError("no words")


class SpeechlessTelemetry(Telemetry):
    def inbound(self, request: ObservedRequest) -> Observation:
        return Speechless()


class WithoutMeta(OutboundObservation):
    """Has an initializer of its own, and leaves that of its class out."""

    def __init__(self, ended: list[str]) -> None:
        self.endings = ended

    def ended(self, ending: CallEnding) -> None:
        self.endings.append(ending.kind)


class Careless(Telemetry):
    """Returns what `made` makes, for requests of this side."""

    def __init__(self, made: OutboundObservation) -> None:
        self._made = made

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        return self._made


def serving_failing_hooks(telemetry: Telemetry | None = None) -> Server:
    server = Server("failing hooks", telemetry=telemetry)

    @server.tool
    async def say() -> str:
        log.warning("said")
        return "ok"

    return server


async def test_a_line_is_written_without_the_members_of_an_observer_that_fails() -> None:
    several = Together(SpeechlessTelemetry(), Recorder())
    for telemetry, trace in ((SpeechlessTelemetry(), None), (several, "a-trace")):
        with capture_logs() as lines:
            async with Client(serving_failing_hooks(telemetry)) as client:
                await client.call_tool("say")
        (line,) = (each for each in lines if each["event"] == "said")
        assert line["session"]
        assert line.get("trace_id") == trace
        # The failure is no line of its own: to write that, the observer would be asked again.
        assert not [each for each in lines if each["event"] == "telemetry failed"]


async def test_a_request_is_sent_without_members_that_are_none() -> None:
    ended: list[str] = []
    odd = OutboundObservation([("a", "b")])  # type: ignore[arg-type]
    for made in (WithoutMeta(ended), odd):
        async with Client(serving_failing_hooks(), telemetry=Careless(made)) as client:
            assert (await client.call_tool("say")).content
    assert set(ended) == {"answered"}


async def test_a_server_that_is_served_twice_is_counted_once() -> None:
    metrics = Metrics()
    server = serving_failing_hooks(metrics)
    async with Client(server) as one, Client(server) as other:
        await one.ping()
        await other.ping()
        assert "\nmcp_actors_sessions 2\n" in metrics.text()
    assert "mcp_actors_sessions " not in metrics.text()
