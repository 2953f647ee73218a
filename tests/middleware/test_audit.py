"""`Timing` and `AuditLog`: how long calls take, and who called what."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors import Client, Context, Server
from mcp_actors._actors.event_bus import EventBus
from mcp_actors.errors import RpcError, ToolError
from mcp_actors.middleware import AuditEntry, AuditLog, Durations, RateLimit, Timing, timing
from mcp_actors.middleware import audit as audit_module
from mcp_actors.types import ElicitResult, SubscriptionFilter
from tests.telemetry.spans import Traced

from .callers import served

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def make_server(*middleware: Any) -> Server:
    server = Server("s")
    for each in middleware:
        server.middleware(each)

    @server.tool
    async def wait(seconds: float, ctx: Context) -> str:
        """Waits."""
        await trio.sleep(seconds)
        return "waited"

    @server.tool
    async def fail(how: str) -> str:
        """Fails."""
        if how == "tool":
            raise ToolError("no")
        if how == "code":
            raise RpcError(77, "no")
        raise KeyError("broken")

    @server.tool
    async def ask(ctx: Context) -> str:
        """Asks."""
        return (await ctx.elicit("Name?", FORM, key="name")).action

    @server.notification("acme/event")
    async def event(n: int) -> None:
        """Takes it."""

    @server.resource("x://{name}", name="some")
    async def some(name: str) -> str:
        return "text"

    return server


# -- times -----------------------------------------------------------------------------------------------------------


async def test_each_tool_has_a_row(autojump_clock: Any) -> None:
    times = Timing()
    async with Client(make_server(times)) as client:
        for seconds in (0.1, 0.1, 0.1, 2.0):
            await client.call_tool("wait", {"seconds": seconds})
        await client.call_tool("fail", {"how": "tool"})
        await client.list_tools()
        await client.read_resource("x://1")
        await client.read_resource("x://2")
    row = times.rows["tools/call", "wait"]
    assert (row.count, row.failed, row.total) == (4, 0, pytest.approx(2.3))
    assert 0.1 <= row.quantile(0.5) <= 0.12
    assert row.quantile(0.99) == row.largest == pytest.approx(2.0)
    assert times.rows["tools/call", "fail"].failed == 1
    assert times.rows["resources/read", ""].count == 2
    assert "tools/call" in str(times)
    assert "2000.0 ms" in str(times)


async def test_names_that_clients_make_up_have_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Timing()
    server = make_server(times)
    async with Client(server) as client:
        for number in range(5):
            with pytest.raises(RpcError):
                await client.call_tool(f"made up {number}")
        assert times.rows["tools/call", ""].failed == 5
        monkeypatch.setattr(timing, "MAX_ROWS", 1)
        for number in range(5):
            server.add_tool(lambda: "x", name=f"t{number}", description="A tool.")
            await client.call_tool(f"t{number}")
    assert times.rows["other", ""].count >= 5
    assert ("tools/call", "t0") not in times.rows


async def test_a_client_measures_its_calls_too(autojump_clock: Any) -> None:
    times = Timing()
    async with Client(make_server(), middleware=[times]) as client:
        await client.call_tool("wait", {"seconds": 1.5})
    assert times.rows["tools/call", "wait"].largest == pytest.approx(1.5)


@given(values=st.lists(st.floats(1e-7, 1e5), min_size=1, max_size=50), share=st.floats(0.01, 1))
def test_a_quantile_is_at_most_a_fifth_too_large(values: list[float], share: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value)
    rank = next(n for n in range(1, len(values) + 1) if n >= share * len(values))
    exact = sorted(values)[rank - 1]
    if 2**-15 < exact < 2**12:
        assert exact <= durations.quantile(share) <= exact * 1.25
    else:
        assert durations.quantile(share) <= max(values)


# -- the audit log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_entry_says_who_called_what_and_how_it_ended(era: str, autojump_clock: Any) -> None:
    entries: list[AuditEntry] = []
    async with (
        served(make_server(AuditLog(entries.append))) as at,
        at.client("ann", era=era, elicitation=_answered) as ann,
    ):
        await ann.call_tool("wait", {"seconds": 2})
        await ann.call_tool("fail", {"how": "tool"})
        with pytest.raises(RpcError):
            await ann.call_tool("fail", {"how": "code"})
        await ann.call_tool("fail", {"how": "crash"})
        await ann.read_resource("x://1")
        with trio.move_on_after(1):
            await ann.call_tool("wait", {"seconds": 100})
        await ann.call_tool("ask")
        await ann.notify("acme/event", {"n": 1})
        await trio.sleep(1)
    calls = [entry for entry in entries if entry.method != "server/discover"]
    endings = [(entry.target, entry.ending) for entry in calls]
    asked = [("ask", "replaced by questions")] if era == "modern" else []
    assert endings == [
        ("wait", "answered"), ("fail", "tool error"), ("fail", "error 77"), ("fail", "failed"), ("x://1", "answered"),
        ("wait", "cancelled"), *asked, ("ask", "answered"), (None, "answered"),
    ]  # fmt: skip
    assert {entry.principal for entry in calls} == {"ann"}
    first = calls[0]
    assert (first.method, first.arguments, first.seconds) == (
        "tools/call",
        {"seconds": "***"},
        pytest.approx(2),
    )
    assert first.size is not None
    assert first.size > 20


async def _answered(question: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "x"})


async def test_by_default_it_is_a_line_of_the_log_without_values() -> None:
    with structlog.testing.capture_logs() as logs:
        async with Client(make_server(AuditLog())) as client:
            await client.call_tool("wait", {"seconds": 0})
    (line,) = [line for line in logs if line.get("event") == "audit" and line["method"] == "tools/call"]
    assert line["arguments"] == {"seconds": "***"}
    assert "principal" not in line


async def test_it_sees_what_later_middleware_refuses_and_arguments_may_be_shown(autojump_clock: Any) -> None:
    entries: list[AuditEntry] = []
    log = AuditLog(entries.append, arguments=lambda arguments: {"seconds": arguments["seconds"]})
    async with Client(make_server(log, RateLimit(1)), era="legacy") as client:
        await client.call_tool("wait", {"seconds": 0})
        with pytest.raises(RpcError):
            await client.call_tool("wait", {"seconds": 0})
    assert [(entry.ending, entry.arguments) for entry in entries] == [
        ("answered", {"seconds": 0}),
        ("error 429", {"seconds": 0}),
    ]


async def test_a_log_that_fails_costs_its_entry_alone() -> None:
    def broken(entry: AuditEntry) -> None:
        raise OSError("disk full")

    with structlog.testing.capture_logs() as logs:
        async with Client(make_server(AuditLog(broken))) as client:
            assert (await client.call_tool("wait", {"seconds": 0})).text == "waited"
    assert any(line["event"] == "an audit entry could not be written" for line in logs)


async def test_what_a_client_makes_up_is_cut() -> None:
    entries: list[AuditEntry] = []
    async with Client(make_server(AuditLog(entries.append)), era="legacy") as client:
        with pytest.raises(RpcError):
            await client.call_tool("n" * 5000, {f"{n:03}" * 500: n for n in range(100)})
    (entry,) = entries
    assert entry.target == "n" * 200
    assert len(entry.arguments) == 32
    assert max(map(len, entry.arguments)) == 100


async def _never_awaited(entry: AuditEntry) -> None:
    """A function that nobody would await."""


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"x://ann:{SECRET}@host/a", "x://***@host/a"),
        (f"x://{SECRET}@evil@host/a?key={SECRET}#{SECRET}", "x://***@host/a?***#***"),
        (f"x://host/a?token={SECRET}", "x://host/a?***"),
        (f"x:a#{SECRET}\n?{SECRET}", "x:a#***"),
        (f"x://host?{SECRET}\n{SECRET}", "x://host?***"),
        ("x://host/a@b", "x://host/a@b"),
    ],
)
async def test_what_may_be_a_secret_in_a_uri_is_not_written(uri: str, shown: str) -> None:
    entries: list[AuditEntry] = []
    server = make_server(AuditLog(entries.append))
    async with Client(server, era="legacy") as client:
        with pytest.raises(RpcError):
            await client.read_resource(uri)
    assert [entry.target for entry in entries] == [shown]
    assert SECRET not in repr(entries)


async def test_no_value_of_a_call_is_written_however_it_ends() -> None:
    with structlog.testing.capture_logs() as logs:
        server = make_server(AuditLog(arguments=lambda arguments: {"seconds": int(arguments["seconds"])}))
        async with Client(server, era="legacy") as client:
            for arguments in ({"seconds": SECRET}, {"how": SECRET}, {"seconds": {SECRET: SECRET}}):
                with contextlib.suppress(RpcError):
                    await client.call_tool("wait", arguments)
            await client.request("resources/templates/list", {"cursor": None, "_meta": {"token": SECRET}})
    lines = [line for line in logs if line["event"] == "audit"]
    assert [line["arguments"] for line in lines[:3]] == [
        {"seconds": "***"},
        {"how": "***"},
        {"seconds": "***"},
    ]
    assert sum("arguments of an audit entry are masked" in line["event"] for line in logs) >= 3
    ours = [line for line in logs if "audit" in line["event"]]
    assert SECRET not in repr(ours)


async def test_a_sink_that_blocks_holds_no_call_up_and_what_is_lost_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_module, "MAX_WAITING", 3)
    written: list[AuditEntry] = []
    go_on, broken = threading.Event(), threading.Event()

    def slow(entry: AuditEntry) -> None:
        go_on.wait(60)
        if broken.is_set():
            raise OSError("disk full")
        written.append(entry)

    audit = AuditLog(slow, in_thread=True)
    with structlog.testing.capture_logs() as logs:
        async with Client(make_server(audit), era="legacy") as client:
            for _ in range(10):
                await client.call_tool("wait", {"seconds": 0})
            assert not written
            go_on.set()
            assert await trio.to_thread.run_sync(audit.flush, 60)
            assert len(written) + audit.lost == 10
            assert audit.lost >= 6
            broken.set()
            lost = audit.lost
            await client.call_tool("wait", {"seconds": 0})
            assert await trio.to_thread.run_sync(audit.flush, 60)
    assert audit.lost == lost + 1
    (line,) = [line for line in logs if line["event"] == "an audit entry could not be written"]
    assert line["reason"] == "too many wait to be written"


async def test_what_waits_for_a_sink_is_bounded_by_its_weight_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_WAITING_BYTES", 100_000)
    go_on, began, written = threading.Event(), threading.Event(), list[int]()

    def slow(entry: AuditEntry) -> None:
        began.set()
        go_on.wait(60)
        written.append(len(entry.arguments.get("text", "")))

    audit = AuditLog(slow, arguments=dict, in_thread=True)
    server = Server("s")
    server.middleware(audit)
    server.add_tool(lambda text: "", name="t", description="A tool.")
    async with Client(server, era="legacy") as client:
        await client.call_tool("t", {"text": ""})
        assert await trio.to_thread.run_sync(began.wait, 60)
        # The first two are taken, with 60,000 characters and 10,000 more; the third would be too heavy.
        for characters in (60_000, 10_000, 50_000):
            await client.call_tool("t", {"text": "x" * characters})
        assert audit.lost == 1
        go_on.set()
        assert await trio.to_thread.run_sync(audit.flush, 60)
        # Where nothing waits, none is too heavy: a client must not keep its call out of the log by its size.
        await client.call_tool("t", {"text": "x" * 200_000})
        assert await trio.to_thread.run_sync(audit.flush, 60)
    assert (audit.lost, [each for each in written if each]) == (1, [60_000, 10_000, 200_000])


def test_a_program_that_has_not_configured_its_log_finds_the_entries_on_standard_error() -> None:
    program = """
import trio
from mcp_actors import Client, Server
from mcp_actors.middleware import AuditLog

server = Server("s")
server.middleware(AuditLog())
server.add_tool(lambda name: name, name="t", description="A tool.")

async def main():
    async with Client(server, era="legacy") as client:
        await client.call_tool("t", {"name": "hunter2"})

trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = done.stderr.splitlines()
    assert json.loads(line.removeprefix("audit "))["arguments"] == {"name": "***"}


def test_what_is_no_function_and_a_class_are_refused_where_they_are_written() -> None:
    nothing: Any = 3
    with pytest.raises(TypeError, match="write and arguments are plain functions"):
        AuditLog(nothing)
    with pytest.raises(TypeError, match="write and arguments are plain functions"):
        AuditLog(_never_awaited)
    a_class: Any = Timing
    with pytest.raises(TypeError, match=r"Timing is a class: give an object of it, Timing\(…\)"):
        Server("x").middleware(a_class)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_uri_is_masked_in_the_live_view_in_telemetry_and_in_the_log_as_well(era: str) -> None:
    of_server, of_client = Traced(), Traced()
    server = Server("masks", telemetry=of_server.telemetry)
    rows: list[str | None] = []

    @server.resource("db://{+rest}")
    async def read(rest: str, ctx: Context) -> str:
        rows.append(ctx.call.statistics().target)
        raise ValueError("no such table")

    uri = f"db://ann:{SECRET}@host/table?token={SECRET}#{SECRET}"
    with structlog.testing.capture_logs() as logs:
        async with Client(server, era=era, telemetry=of_client.telemetry) as client:
            with pytest.raises(RpcError) as caught:
                await client.read_resource(uri)
    assert rows == ["db://***@host/table?***#***"]
    assert SECRET not in str(caught.value)
    assert SECRET not in str([{**each, "exc_info": ""} for each in logs])
    for traced in (of_server, of_client):
        spans = [dict(each.attributes or {}) for each in traced.spans]
        assert any(each.get("mcp.resource.uri") == "db://***@host/table?***#***" for each in spans)
        assert SECRET not in str(spans)


async def test_a_uri_is_masked_where_a_function_for_its_subscribers_fails() -> None:
    server = Server("masks")
    uri = f"db://ann:{SECRET}@host/table?token={SECRET}"
    server.add_resource(uri, lambda: "", name="table")

    def fails(uri: str) -> None:
        raise RuntimeError("no")

    with structlog.testing.capture_logs() as logs:
        async with Client(server, era="legacy") as client:
            server.on_unsubscribe = fails
            await client.subscribe_resource(uri)
    (line,) = [each for each in logs if "on_unsubscribe failed" in each["event"]]
    assert line["uri"] == "db://***@host/table?***"
    bus, other = EventBus(), EventBus(on_first_subscriber=fails)
    bus.subscribe(SubscriptionFilter(resource_subscriptions=[uri]))
    with structlog.testing.capture_logs() as logs:
        bus.report_to(other)
    assert [each["uri"] for each in logs] == ["db://***@host/table?***"]
