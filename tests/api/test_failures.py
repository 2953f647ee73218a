"""Who sees what of a failure: each row of the first table of ``docs/failures.md``."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, Context, RpcError, Server, ToolError
from mcp_actors._server.failures import MAX_GROUP, MAX_TEXT
from mcp_actors.abc import ConnectionHandler, FrameChannel
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import CallToolResult
from mcp_transports.memory import MemoryTransport

ERAS = ["legacy", "modern"]
TABLE = Path(__file__).parent.parent.parent / "docs" / "failures.md"
TESTS = Path(__file__).parent.parent
# What happens -> what shows it, for what is not shown by a row of this file.
ELSEWHERE = {
    "the engine itself fails": (
        "api/test_failures.py",
        "test_a_defect_of_the_engine_says_nothing_to_the_client",
    ),
    "the client has cancelled the call": (
        "api/test_failures.py",
        "test_a_call_that_was_cancelled_says_nothing",
    ),
    "the shared state cannot be reached, and the call needs it": (
        "cluster/test_redis_away.py",
        "test_what_needs_redis_is_refused_while_it_is_away_and_the_rest_goes_on",
    ),
    "a task fails, in any of these ways": ("tasks/test_both_dialects.py", "test_how_a_failure_is_called"),
    "the process that ran a task has ended": ("tasks/test_recovery.py", "test_tasks_of_a_node_that_is_gone"),
}


class Socket:
    """Has no form in JSON."""


def make_server(mask_errors: bool | None = None) -> Server:
    server = Server("failing", mask_errors=mask_errors)

    @server.tool
    async def refuses() -> str:
        raise ToolError("no rooms left")

    @server.tool
    async def takes(days: int) -> str:
        return str(days)

    @server.tool
    async def numbered() -> str:
        raise RpcError(1234, "mine")

    @server.tool
    async def forecast() -> float:
        return 1 / 0

    @server.tool
    async def several() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_GROUP + 2):
                nursery.start_soon(raises, ValueError(f"number {number}"))

    @server.tool
    async def returns() -> Any:
        return Socket()

    @server.tool(timeout=5)
    async def slow() -> None:
        await trio.sleep(100)

    @server.tool
    async def waits() -> None:
        await trio.sleep(100)

    @server.prompt
    async def greet(name: str) -> str:
        raise KeyError(name)

    @server.resource("db://books")
    async def books() -> str:
        raise OSError("disk full")

    @server.method("my/method")
    async def my_method(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        raise KeyError("Ada")

    return server


class Authenticating(MemoryTransport):
    """Every client of it is Ada."""

    async def serve(
        self, handler: ConnectionHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def as_ada(channel: FrameChannel, principal: Principal | None = None) -> None:
            await handler(channel, Principal("Ada"))

        await super().serve(as_ada, task_status=task_status)


async def raises(error: Exception) -> None:
    raise error


@attrs.frozen
class Row:
    """A call that fails, the text that is sent, as a pattern, and the levels of the lines in the log."""

    what: str
    ask: Callable[[Client], Any]
    text: str
    logged: tuple[str, ...] = ("error",)
    code: int | None = None
    mask_errors: bool | None = None


def tool(name: str, **arguments: Any) -> Callable[[Client], Any]:
    return lambda client: client.call_tool(name, arguments)


REFERENCE = "(?P<reference>[0-9a-f]{8})"
MASKED = f": failed; the server's operator finds the reason under the reference {REFERENCE}"

ROWS = [
    Row("a tool raises `ToolError`", tool("refuses"), "no rooms left", (), mask_errors=True),
    Row("the arguments of a tool do not fit", tool("takes", days="x"), ".*days: expected integer.*", ()),
    Row("a function raises `RpcError`", tool("numbered"), "mine", (), 1234, mask_errors=True),
    Row("a tool raises anything else", tool("forecast"), "forecast: ZeroDivisionError: division by zero"),
    Row(
        "a tool raises several exceptions in a group",
        tool("several"),
        f"several: (ValueError: number [0-9]; ){{{MAX_GROUP}}}and 2 more",
    ),
    Row(
        "a tool returns what cannot be sent",
        tool("returns"),
        "returns: it returned what cannot be sent: Socket has no form in JSON.*",
    ),
    Row(
        "a tool takes longer than its `timeout=`",
        tool("slow"),
        "slow: stopped, because it may take no longer than 5 s",
        ("warning",),
        mask_errors=True,
    ),
    Row(
        "a prompt raises anything else",
        lambda client: client.get_prompt("greet", {"name": "Ada"}),
        "prompt greet: KeyError: 'Ada'",
        code=-32603,
    ),
    Row(
        "a resource raises anything else",
        lambda client: client.read_resource("db://books"),
        "resource db://books: OSError: disk full",
        code=-32603,
    ),
    Row(
        "a method of your own or a completion raises anything else",
        lambda client: client.request("my/method", {}),
        "my/method: KeyError: 'Ada'",
        code=-32603,
    ),
    Row(
        "any of these, and errors are masked",
        tool("forecast"),
        f"forecast{MASKED}",
        mask_errors=True,
    ),
    Row(
        "any of these, and errors are masked",
        lambda client: client.get_prompt("greet", {"name": "Ada"}),
        f"prompt greet{MASKED}",
        code=-32603,
        mask_errors=True,
    ),
]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
async def test_each_row(row: Row, era: str, autojump_clock: trio.testing.MockClock) -> None:
    with capture_logs() as logs:
        async with Client(make_server(row.mask_errors), era=era) as client:
            text, code = await outcome(row.ask(client))
    assert code == row.code
    found = re.fullmatch(row.text, text)
    assert found, text
    lines = [each for each in logs if each["log_level"] in ("warning", "error")]
    assert tuple(each["log_level"] for each in lines) == row.logged
    if "reference" in found.groupdict():
        assert lines[0]["reference"] == found["reference"]


async def outcome(asked: Any) -> tuple[str, int | None]:
    try:
        result: CallToolResult = await asked
    except RpcError as error:
        return error.message, error.code
    assert result.is_error
    [block] = result.content
    return block.text, None  # type: ignore[union-attr]


def test_every_row_of_the_page_is_tested() -> None:
    page = TABLE.read_text().partition("\n## A call that fails\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert set(rows[1:]) == {row.what for row in ROWS} | ELSEWHERE.keys()
    for path, test in ELSEWHERE.values():
        assert f"def {test}(" in (TESTS / path).read_text()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_was_cancelled_says_nothing(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    with capture_logs() as logs:
        async with Client(make_server(), era=era) as client:
            with trio.move_on_after(1) as scope:
                await client.call_tool("waits")
            assert scope.cancelled_caught
            await trio.sleep(1)
    assert [each for each in logs if each["log_level"] in ("warning", "error")] == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_defect_of_the_engine_says_nothing_to_the_client(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    # What a defect looks like: an attribute that the engine relies on is gone.
    monkeypatch.setitem(server.tools.by_key, "takes", object())
    with capture_logs() as logs:
        async with Client(server, era=era) as client:
            with pytest.raises(RpcError, match=r"^internal error"):
                await client.call_tool("takes", {"days": 1})
    [line] = [each for each in logs if each["event"] == "handler failed"]
    assert isinstance(line["exc_info"], AttributeError)


@pytest.mark.parametrize(("mask_errors", "masked"), [(None, True), (True, True), (False, False)])
async def test_by_default_only_authenticated_clients_get_masked_texts(
    mask_errors: bool | None, masked: bool
) -> None:
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            transport = Authenticating()
            await nursery.start(make_server(mask_errors).serve, transport)
            async with Client(transport) as client:
                text, _ = await outcome(client.call_tool("forecast"))
            nursery.cancel_scope.cancel()
    assert ("ZeroDivisionError" not in text) == masked
    [line] = [each for each in logs if each["event"] == "handler failed"]
    assert (line["tool"], line["principal"]) == ("forecast", "Ada")


@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
async def test_the_operator_sees_whose_call_it_was_and_the_users_frames_first(kind: str) -> None:
    server = Server("failing")

    def deeper() -> None:
        raise LookupError("deep")

    async def after_a_checkpoint() -> None:
        await trio.lowlevel.checkpoint()
        deeper()

    def at_once() -> None:
        deeper()

    server.add_tool(after_a_checkpoint if kind == "async" else at_once, name="fails", inline=kind == "inline")
    with capture_logs() as logs:
        async with Client(server, era="legacy") as client:
            await client.call_tool("fails")
            [session] = server.tree().sessions
    [line] = [each for each in logs if each["event"] == "handler failed"]
    assert (line["tool"], line["session"]) == ("fails", session.name)
    assert line["principal"] is None
    assert re.fullmatch("[0-9a-f]{8}", line["reference"])
    frames = traceback.extract_tb(line["exc_info"][2])
    assert [each.name for each in frames] == [
        "after_a_checkpoint" if kind == "async" else "at_once",
        "deeper",
    ]


async def test_the_operator_sees_how_long_it_took(autojump_clock: trio.testing.MockClock) -> None:
    with capture_logs() as logs:
        async with Client(make_server()) as client:
            assert (await client.call_tool("slow")).is_error
    assert [each["seconds"] for each in logs if each.get("tool") == "slow"] == [5]


async def test_a_function_written_in_c_is_named_too() -> None:
    server = Server("failing")
    server.add_tool(int.from_bytes, name="parse")
    async with Client(server) as client:
        text, _ = await outcome(client.call_tool("parse", {"bytes": "x"}))
    assert text == "parse: TypeError: cannot convert 'str' object to bytes"


async def test_texts_have_a_bound_and_are_readable() -> None:
    server = Server("failing")

    @server.tool
    async def long() -> None:
        raise ValueError("x" * 10 * MAX_TEXT)

    @server.tool
    async def surrogate() -> None:
        raise ValueError("half \ud800 a pair")

    @server.tool
    async def silent() -> None:
        raise trio.TooSlowError

    async with Client(server) as client:
        text, _ = await outcome(client.call_tool("long"))
        assert len(text) == len("long: ") + MAX_TEXT
        assert (await outcome(client.call_tool("surrogate")))[0] == "surrogate: ValueError: half ? a pair"
        assert (await outcome(client.call_tool("silent")))[0] == "silent: TooSlowError"
