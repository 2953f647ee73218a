"""What goes wrong, and what each era's client is told about it: never more than it may know."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
import trio
import trio.testing
from msgspec import Meta
from structlog.testing import capture_logs

from mcp_actors import Client, Context, ResourceNotFound, RpcError, Server, ToolError
from mcp_actors._server.failures import MAX_GROUP, MAX_TEXT
from mcp_actors.abc import ConnectionHandler, FrameChannel
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import raw_client
from mcp_actors.types import CallToolResult, ElicitResult
from mcp_transports.memory import MemoryTransport
from tests.scripted_peers import EVERY, MODERN, ask, begin, call, fail, scripted


class Secret(Exception):
    """Its text must not reach anybody."""


MASKED = "{}: failed; the server's operator finds the reason under the reference [0-9a-f]{{8}}"


def make_server(mask_errors: bool | None = None) -> Server:
    server = Server("s", mask_errors=mask_errors)

    @server.tool
    async def book(city: str, days: Annotated[int, Meta(ge=1, le=14)] = 3) -> str:
        """Books."""
        return city * days

    @server.tool
    async def crash() -> str:
        """Crashes."""
        raise Secret("the password is swordfish")

    @server.tool
    async def refuse() -> str:
        """Fails in a way the model may know."""
        raise ToolError("no rooms left")

    @server.tool
    async def numbered() -> str:
        """Fails in a way of its own."""
        raise RpcError(1234, "mine", {"a": 1})

    @server.tool
    async def unspeakable() -> object:
        """Returns what JSON cannot say."""
        return {"socket": object()}

    @server.tool
    async def not_a_number() -> float:
        """Returns what JSON cannot say."""
        return float("nan")

    @server.tool(inline=True)
    def crash_inline() -> str:
        """Crashes on the spot."""
        raise Secret("the password is swordfish")

    server.add_resource("x://crash", crash, name="crash")
    server.add_resource(
        "x://{name}", lambda name: (_ for _ in ()).throw(ResourceNotFound(f"x://{name}")), name="n"
    )
    server.add_prompt(crash, name="crash")

    @server.prompt
    async def greet(name: str) -> str:
        """Greets."""
        return name

    return server


@pytest.mark.parametrize("version", EVERY)
class TestEachRevision:
    async def test_params_of_the_wrong_form(self, version: str) -> None:
        """One row for each method; every wrong form of its params stands with the method in ``server/``."""
        rows: list[tuple[str, Any]] = [
            ("tools/call", {"name": "unknown"}),
            ("resources/read", {}),
            ("prompts/get", {"name": "greet"}),
            ("tools/list", {"cursor": "nonsense"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"}}),
        ]
        if version != MODERN:
            rows += [
                ("logging/setLevel", {}),
                ("logging/setLevel", {"level": "loud"}),
                ("logging/setLevel", {"level": []}),
            ]
            rows += [("resources/subscribe", {}), ("resources/subscribe", {"uri": 1})]
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for id, (method, params) in enumerate(rows):
                error = (await ask(peer, version, f"r{id}", method, params))["error"]
                assert error["code"] == -32602, (method, params)

    async def test_wrong_arguments_reach_the_model_and_name_the_argument(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            rows: list[tuple[dict[str, Any], str]] = [
                ({}, "city"),
                ({"city": "x", "days": 0}, "days"),
                ({"city": "x", "day": 3}, "day"),
            ]
            for id, (arguments, culprit) in enumerate(rows):
                result = (await call(peer, version, f"r{id}", "book", **arguments))["result"]
                assert result["isError"] is True
                assert culprit in result["content"][0]["text"], arguments
                assert "structuredContent" not in result

    @pytest.mark.parametrize("name", ["crash", "crash_inline", "unspeakable", "not_a_number"])
    async def test_a_crash_that_is_masked_names_the_tool_alone(self, version: str, name: str) -> None:
        async with raw_client(make_server(mask_errors=True)) as peer:
            await begin(peer, version)
            result = (await call(peer, version, 1, name))["result"]
            assert result["isError"] is True
            [block] = result["content"]
            assert re.fullmatch(MASKED.format(name), block["text"])
            assert "result" in await call(peer, version, 2, "book", city="x")  # the session lives

    async def test_a_crash_elsewhere_that_is_masked_names_what_was_asked_for(self, version: str) -> None:
        async with raw_client(make_server(mask_errors=True)) as peer:
            await begin(peer, version)
            for method, params in (
                ("resources/read", {"uri": "x://crash"}),
                ("prompts/get", {"name": "crash"}),
            ):
                error = (await ask(peer, version, method, method, params))["error"]
                assert error["code"] == -32603
                assert re.fullmatch(MASKED.format("(resource x://crash|prompt crash)"), error["message"])

    async def test_failures_on_purpose(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            result = (await call(peer, version, 1, "refuse"))["result"]
            assert result["isError"] is True
            assert result["content"] == [{"type": "text", "text": "no rooms left"}]
            error = (await call(peer, version, 2, "numbered"))["error"]
            assert error == {"code": 1234, "message": "mine", "data": {"a": 1}}

    async def test_a_resource_that_is_not_there(self, version: str) -> None:
        code = -32602 if version == MODERN else -32002
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for id, uri in enumerate(("y://unknown", "x://gone")):
                error = (await ask(peer, version, id, "resources/read", {"uri": uri}))["error"]
                assert error["code"] == code
                assert error["data"] == {"uri": uri}
            if version != MODERN:
                error = (await ask(peer, version, 9, "resources/subscribe", {"uri": "y://unknown"}))["error"]
                assert (error["code"], error["data"]) == (-32002, {"uri": "y://unknown"})

    async def test_the_client_has_one_exception_for_it(self, version: str) -> None:
        async with Client(make_server(), era=version) as client:
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource("y://unknown")
            assert missing.value.data == {"uri": "y://unknown"}

    @pytest.mark.parametrize(
        "method", ["acme/unknown", "tasks/get", "tasks/list", "notifications/initialized"]
    )
    async def test_unknown_methods(self, version: str, method: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            assert (await ask(peer, version, 1, method))["error"]["code"] == -32601


@pytest.mark.parametrize("code", [-32002, -32602])
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_a_client_takes_either_code_for_not_found(version: str, code: int) -> None:
    async with scripted(version) as (client, peer):
        found: list[BaseException] = []

        async def read() -> None:
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource("x://a")
            found.append(missing.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await fail(peer, await peer.receive(), code, {"uri": "x://a"})
        assert len(found) == 1


async def test_other_invalid_params_are_no_missing_resource() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(RpcError) as refused:
                await client.read_resource("x://a")
            assert not isinstance(refused.value, ResourceNotFound)

        nursery.start_soon(read)
        await fail(peer, await peer.receive(), -32602, {"uri": "x://other"})


@pytest.mark.parametrize("version", EVERY)
async def test_a_tool_error_raised_in_the_tools_own_nursery_reaches_the_model(version: str) -> None:
    server = Server("s")

    async def fails() -> None:
        raise ToolError("no rooms left")

    @server.tool
    async def book() -> str:
        """Works in parallel."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await trio.sleep_forever()
        return ""

    async with Client(server, era=version) as client:
        result = await client.call_tool("book")
    assert result.is_error
    assert [block.text for block in result.content] == ["no rooms left"]  # type: ignore[union-attr]


async def test_what_a_failing_handler_had_in_its_hands_is_not_written_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server("s")

    @server.tool
    async def crash() -> str:
        """Crashes."""
        password = "swordfish".upper()
        raise RuntimeError(len(password))

    async with Client(server) as client:
        assert (await client.call_tool("crash")).is_error
    assert "SWORDFISH" not in capsys.readouterr().err


# -- Who sees what of a failure: each row of the first table of ``docs/reference/failures.md`` ---------------------

ERAS = ["legacy", "modern"]
TABLE = Path(__file__).parent.parent.parent / "docs" / "reference" / "failures.md"
TESTS = Path(__file__).parent.parent
# What happens -> what shows it, for what is not shown by a row of this file.
ELSEWHERE = {
    "the [process](../how-to/isolate.md#what-ends-a-process) of an isolated tool ends": (
        "server/test_isolation.py",
        "test_the_end_of_a_process_costs_its_call_alone",
    ),
    "the module of an isolated tool cannot be imported in a process, or no process can be started": (
        "server/test_isolation.py",
        "test_a_module_that_cannot_be_imported_fails_the_calls_of_its_functions_alone",
    ),
    "a call with a key has other arguments than the first one with it": (
        "server/test_idempotency.py",
        "test_a_key_belongs_to_one_request",
    ),
    "a call with a key was cancelled, or its process has ended": (
        "server/test_idempotency.py",
        "test_what_its_caller_has_cancelled_is_cancelled",
    ),
    "the answer to a call with a key cannot be kept": (
        "server/test_idempotency.py",
        "test_without_the_shared_state_nothing_is_begun",
    ),
    "the [deadline](../how-to/deadlines.md) of the call is over": (
        "server/test_deadlines.py",
        "test_a_function_sees_its_deadline_and_is_stopped_at_it",
    ),
    "the engine itself fails": (
        "server/test_failures.py",
        "test_a_defect_of_the_engine_says_nothing_to_the_client",
    ),
    "the client has cancelled the call": (
        "server/test_failures.py",
        "test_a_call_that_was_cancelled_says_nothing",
    ),
    "the shared state cannot be reached, and the call needs it": (
        "cluster/test_three_nodes.py",
        "test_what_needs_redis_is_refused_while_it_is_away_and_the_rest_goes_on",
    ),
    "a task fails, in any of these ways": ("tasks/test_both_dialects.py", "test_how_a_failure_is_called"),
    "the process that ran a task has ended": ("tasks/test_node.py", "test_tasks_of_a_node_that_is_gone"),
}


class Socket:
    """Has no form in JSON."""


def make_server_failures(mask_errors: bool | None = None) -> Server:
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
MASKED_FAILURES = f": failed; the server's operator finds the reason under the reference {REFERENCE}"

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
        f"forecast{MASKED_FAILURES}",
        mask_errors=True,
    ),
    Row(
        "any of these, and errors are masked",
        lambda client: client.get_prompt("greet", {"name": "Ada"}),
        f"prompt greet{MASKED_FAILURES}",
        code=-32603,
        mask_errors=True,
    ),
]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
async def test_each_row(row: Row, era: str, autojump_clock: trio.testing.MockClock) -> None:
    with capture_logs() as logs:
        async with Client(make_server_failures(row.mask_errors), era=era) as client:
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
        async with Client(make_server_failures(), era=era) as client:
            with trio.move_on_after(1) as scope:
                await client.call_tool("waits")
            assert scope.cancelled_caught
            await trio.sleep(1)
    assert [each for each in logs if each["log_level"] in ("warning", "error")] == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_defect_of_the_engine_says_nothing_to_the_client(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server_failures()
    with capture_logs() as logs:
        async with Client(server, era=era) as client:
            # What a defect looks like: an attribute that the engine relies on is gone.
            monkeypatch.setitem(server.tools.by_key, "takes", object())
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
            await nursery.start(make_server_failures(mask_errors).serve, transport)
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
        async with Client(make_server_failures()) as client:
            assert (await client.call_tool("slow")).is_error
    assert [each["seconds"] for each in logs if each.get("tool") == "slow"] == [5]


async def test_a_function_written_in_c_is_named_too() -> None:
    server = Server("failing")
    server.add_tool(int.from_bytes, name="parse")
    async with Client(server) as client:
        text, _ = await outcome(client.call_tool("parse", {"bytes": "x"}))
    assert text == "parse: TypeError: cannot convert 'str' object to bytes"


async def test_a_method_that_a_nursery_of_the_user_has_started_fails_for_the_user() -> None:
    """Its task has frames of the engine's alone, and it is no defect of the engine."""
    server = Server("failing", mask_errors=False)

    @server.tool
    async def starts(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.once, "", print)

    with capture_logs() as logs:
        async with Client(server) as client:
            text, _ = await outcome(client.call_tool("starts"))
    assert text == "starts: TypeError: ctx.once takes a name of 1 to 200 characters, and then a function"
    (line,) = [each for each in logs if each["event"] == "handler failed"]
    assert line["tool"] == "starts"


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_question_that_cannot_be_sent_fails_for_the_user(era: str) -> None:
    server = Server("failing", mask_errors=False)

    @server.tool
    async def ask(ctx: Context) -> None:
        await ctx.elicit("half \ud800 a pair", {"type": "object", "properties": {}})

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with Client(server, era=era, elicitation=person) as client:
        text, _ = await outcome(client.call_tool("ask"))
    assert text.startswith("ask: ")
    assert "message has half of a surrogate pair at position 5" in text


async def test_texts_have_a_bound_and_are_readable() -> None:
    server = Server("failing")

    @server.tool
    async def long() -> None:
        raise ValueError("x" * 10 * MAX_TEXT)

    @server.tool
    async def surrogate() -> None:
        raise ValueError("half \ud800 a pair")

    @server.tool
    async def refused() -> None:
        raise RpcError(1234, "half \ud800 a pair", {"a": "\ud800"})

    @server.tool
    async def silent() -> None:
        raise trio.TooSlowError

    async with Client(server) as client:
        with pytest.raises(RpcError, match=r"half \? a pair \(code 1234\)"):
            await client.call_tool("refused")
        text, _ = await outcome(client.call_tool("long"))
        assert len(text) == len("long: ") + MAX_TEXT
        assert (await outcome(client.call_tool("surrogate")))[0] == "surrogate: ValueError: half ? a pair"
        assert (await outcome(client.call_tool("silent")))[0] == "silent: TooSlowError"
