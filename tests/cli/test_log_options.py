"""``--log-level``, ``--log-format`` and ``--access-log`` of serve, gateway and bridge, with and without workers."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server, ToolError
from mcp_actors.supervision import access_log as access
from mcp_actors.supervision import logging as own
from mcp_actors.telemetry.combined import AccessLog
from mcp_transports.http.server import HttpServerTransport
from tests.cli.conftest import LIMIT, Started

SERVER = """
import logging
from mcp_actors import Context, Server
server = Server("logs")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

@server.tool
async def fail(ctx: Context) -> str:
    ctx.logger.info("about to fail")
    logging.getLogger("a.library").warning("a line of %s", "a library")
    raise ValueError("bad \\x1b[31m thing")

@server.resource("note://{+text}")
async def note(text: str) -> str:
    return text
"""
PROGRAM = """
import sys
sys.stderr.write("a child's own line\\n")
from {module} import server
server.run()
"""


@pytest.fixture
def served(tmp_path: Path) -> Path:
    (tmp_path / "logs.py").write_text(SERVER)
    (tmp_path / "child.py").write_text(PROGRAM.format(module="logs"))
    return tmp_path / "logs.py"


@asynccontextmanager
async def running(started: Started, *words: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Runs a command that serves at a free port; yields the URL, and a list that has all lines at the end."""
    lines: list[str] = []
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with started(*words, limit=LIMIT, **options) as process:
        assert process.stderr is not None
        while "serving" not in (line := await trio.to_thread.run_sync(process.stderr.readline)):
            assert line, lines
            lines.append(line.removesuffix("\n"))
        lines.append(line.removesuffix("\n"))
        yield (json.loads(line)["at"] if line.startswith("{") else line.split()[-1]), lines
        process.send_signal(signal.SIGTERM)
        rest = await trio.to_thread.run_sync(process.stderr.read)
        assert process.wait() == 0
        lines += rest.splitlines()


async def use(url: str, prefix: str = "") -> None:
    async with Client(url, era="modern") as client:
        assert (await client.call_tool(f"{prefix}add", {"a": 1, "b": 2})).text == "3"
        assert (await client.call_tool(f"{prefix}fail")).is_error


JSON = ("--log-format", "json", "--log-level", "info", "--access-log")


def about(lines: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of the access log, and the others; each line has to be an object."""
    assert [each for each in lines if not each.startswith("{")] == []
    found = [json.loads(each) for each in lines]
    assert all({"timestamp", "level", "event"} <= each.keys() for each in found)
    # Lines of children as well can be sorted among the others.
    assert all(re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{6}Z", each["timestamp"]) for each in found)
    return [each for each in found if each["event"] == "access"], [
        each for each in found if each["event"] != "access"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
async def test_serve_with_and_without_workers(
    started: Started, served: Path, workers: tuple[str, ...]
) -> None:
    words = ("serve", str(served), "--listen", "http://127.0.0.1:0/mcp", *workers, *JSON)
    async with running(started, *words) as (url, lines):
        await use(url)
    calls, others = about(lines)
    added, failed = [each for each in calls if each.get("method") == "tools/call"]
    assert {
        name: added[name] for name in ("http", "path", "status", "target", "ending", "session", "level")
    } == {
        "http": "POST",
        "path": "/mcp",
        "status": 200,
        "target": "add",
        "ending": "answered",
        "session": "logs",
        "level": "info",
    }
    assert added["seconds"] > 0
    assert added["peer"].startswith("127.0.0.1:")
    assert (failed["target"], failed["ending"], failed["status"]) == ("fail", "tool_error", 200)
    (failure,) = [each for each in others if each["event"] == "handler failed"]
    assert failure["level"] == "error"
    assert failure["exception"].startswith("Traceback (most recent call last):\n")
    assert failure["exception"].endswith("ValueError: bad \x1b[31m thing")
    assert [each["level"] for each in others if each["event"] == "about to fail"] == ["info"]
    (library,) = [each for each in others if each["event"] == "a line of a library"]
    assert (library["level"], library["logger"]) == ("warning", "a.library")
    # A worker says which one it is.
    assert {"worker" in each for each in [*calls, failure, library]} == {bool(workers)}


@pytest.mark.slow
async def test_gateway(started: Started, served: Path, tmp_path: Path) -> None:
    child = {"command": sys.executable, "args": [str(tmp_path / "child.py")]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"a": child}}))
    words = ("gateway", str(tmp_path / "servers.json"), "--listen", "http://127.0.0.1:0/mcp", *JSON)
    async with running(started, *words) as (url, lines):
        await use(url, "a_")
    calls, others = about(lines)
    assert [each["target"] for each in calls if each.get("method") == "tools/call"] == ["a_add", "a_fail"]
    assert [each["level"] for each in others if each["event"] == "a: a child's own line"] == ["info"]


@pytest.mark.slow
async def test_bridge(started: Started, served: Path, tmp_path: Path) -> None:
    words = ("bridge", f"stdio:{sys.executable} {tmp_path / 'child.py'}", "tcp://127.0.0.1:0", *JSON)
    async with running(started, *words) as (url, lines):
        await use(url)
    calls, _ = about(lines)
    # There is no request of HTTP here, and each call has a line of its own.
    assert [(each["target"], each["ending"]) for each in calls if each["method"] == "tools/call"] == [
        ("add", "answered"),
        ("fail", "tool_error"),
    ]
    assert all({"peer", "seconds", "bytes"} <= each.keys() and "http" not in each for each in calls)


@pytest.mark.slow
async def test_lines_for_people_and_no_more_than_asked_for(started: Started, served: Path) -> None:
    words = (
        "serve",
        str(served),
        "--listen",
        "http://127.0.0.1:0/mcp",
        "--log-level",
        "critical",
        "--access-log",
    )
    async with running(started, *words) as (url, lines):
        await use(url)
        async with Client(url, era="modern") as client:
            await client.read_resource("note://user:word@host/a?token=b#c")
    first, *rest = lines
    assert first == f"serving http://127.0.0.1:0/mcp at {url}"
    assert all("[access] peer=127.0.0.1:" in each for each in rest)
    assert "word" not in "".join(rest)
    assert "token" not in "".join(rest)
    assert [each for each in rest if " target=note://***@host/a?***#*** " in each]


# -- within this process -------------------------------------------------------------------------------------------


class Kept:
    """In the place of what writes to standard error."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def msg(self, line: str, *, can_wait: bool = False) -> None:
        self._lines.append(line)

    debug = info = warning = error = critical = msg

    def flush(self, seconds: float) -> None:
        """Has written everything."""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines that are written; the log is as before at the end."""
    lines: list[str] = []
    monkeypatch.setattr(own, "_stderr", Kept(lines))
    monkeypatch.setattr(own, "_settings", own._LogSettings())
    own._unconfigured.cache_clear()
    before = logging.getLogger().level
    yield lines
    own._unconfigured.cache_clear()
    access.access_log.is_on = False
    root = logging.getLogger()
    for each in [each for each in root.handlers if isinstance(each, own._StandardHandler)]:
        root.removeHandler(each)
    root.setLevel(before)


NASTY = "a\x1b]0;title\x07 b\u202e\n\ud800c"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_is_two_or_moves_a_terminal(form: Any, written: list[str]) -> None:
    own.configure_log("info", form)
    own.write_line("access", {"target": NASTY, "nothing": None, "empty": ""})
    own.log.info("said", what=NASTY)
    own.write_to_stderr("raw")
    for each in written:
        assert not [character for character in each if not character.isprintable()]
    if form == "json":
        assert [json.loads(each).get("target") or json.loads(each).get("what") for each in written] == [
            NASTY,
            NASTY,
            None,
        ]
        assert json.loads(written[2])["event"] == "raw"
    else:
        assert '\\x1b]0;title\\x07 b\\u202e\\n\\ud800c"' in written[0]
        assert 'empty=""' in written[0]
        assert written[2] == "raw"


def test_a_line_of_json_stays_one_whatever_its_length(written: list[str]) -> None:
    own.configure_log(None, "json")
    try:
        raise ValueError("x" * 200_000)
    except ValueError as error:
        own.log.error("failed", exc_info=error, left=float("inf"), what=object(), many=["y" * 50_000] * 9)
    own.log.info("not written at the usual level")
    (line,) = map(json.loads, written)
    assert len(written[0]) <= own.LINE_CHARACTERS
    assert line["exception"].startswith("Traceback")
    assert (line["event"], line["left"]) == ("failed", "inf")


def test_options_of_an_operator_are_obeyed_whatever_the_program_configures(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import structlog

    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    own.configure_log("warning", "json")
    own.log.warning("obeyed")
    assert json.loads(written[0])["event"] == "obeyed"


async def raw(port: int, text: bytes) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(text)
        await stream.receive_some()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(LIMIT):
        while not condition():  # noqa: ASYNC110 - lines come when both ends of a request are known
            await trio.sleep(0.01)


async def test_every_request_has_one_line(written: list[str], nursery: trio.Nursery) -> None:
    own.configure_log(None, "json")
    access.access_log.is_on = True
    server, begun = Server("one", telemetry=AccessLog()), list[str]()

    @server.tool
    async def hold() -> None:
        begun.append("hold")
        await trio.sleep_forever()

    @server.tool
    async def no() -> None:
        raise ToolError("no")

    (url,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp"))
    port = int(url.split(":")[2].partition("/")[0])
    for number, text in enumerate(
        (
            b"GARBAGE\r\n\r\n",
            b"GET /nowhere?token=secret HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
            b"POST /mcp HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n",
        ),
        1,
    ):
        await raw(port, text)
        await until(lambda number=number: len(written) == number)  # type: ignore[misc]
    for number, era in enumerate(("modern", "legacy"), 1):
        async with Client(url, era=era) as client, trio.open_nursery() as calls:  # type: ignore[arg-type]
            await client.call_tool("no")
            calls.start_soon(client.call_tool, "hold")
            await until(lambda number=number: len(begun) == number)  # type: ignore[misc]
            calls.cancel_scope.cancel()
        await until(lambda number=number: sum('"cancelled"' in each for each in written) == number)  # type: ignore[misc]
    await until(lambda: sum("DELETE" in each for each in written) == 1)
    nursery.cancel_scope.cancel()
    lines = [json.loads(each) for each in written]
    shown = [
        tuple(
            str(each[name])
            for name in ("http", "status", "path", "method", "target", "ending")
            if name in each
        )
        for each in lines
        if each["event"] == "access"
    ]
    assert shown[:3] == [("400",), ("GET", "404", "/nowhere"), ("POST", "403", "/mcp")]
    assert "secret" not in "".join(written)
    post = ("POST", "200", "/mcp")
    assert shown.count((*post, "tools/call", "no", "tool_error")) == 2
    assert sum(each[-3:] == ("tools/call", "hold", "cancelled") for each in shown) == 2
    assert (*post, "initialize", "answered") in shown
    assert ("DELETE", "200", "/mcp") in shown
    sessions = {each["session"] for each in lines if "session" in each}
    # The name of a session, and never its id.
    assert sessions == {"one", "one#1"}


async def test_a_websocket_has_a_line_and_each_call_over_it(
    written: list[str], nursery: trio.Nursery
) -> None:
    access.access_log.is_on = True
    server = Server("two", telemetry=AccessLog())

    @server.tool
    async def yes() -> str:
        return "yes"

    (url,) = await nursery.start(server.serve, "ws://127.0.0.1:0/ws")
    async with Client(url, era="legacy") as client:
        await client.call_tool("yes")
    nursery.cancel_scope.cancel()
    assert [each for each in written if " http=GET path=/ws status=101 " in each]
    (line,) = [each for each in written if " method=tools/call target=yes ending=answered " in each]
    assert " http=" not in line


def test_a_log_that_is_not_read_costs_lines_and_says_how_many(written: list[str]) -> None:
    """What is dropped is said as an object, too."""
    own.configure_log(None, "json")
    line = own.raw_line("7 log lines were dropped: standard error is not read")
    assert json.loads(line)["event"].startswith("7 log lines")


def test_many_lines_are_written_in_one_piece() -> None:
    ours, theirs = socket.socketpair()
    writer = own.StderrWriter()
    with ours, theirs, theirs.makefile("r") as reader:
        stream = ours.makefile("w")
        before, sys.stderr = sys.stderr, stream
        try:
            for number in range(500):
                writer.msg(f"line {number}")
            writer.flush(LIMIT)
        finally:
            sys.stderr = before
            stream.close()
        ours.close()
        assert reader.read().splitlines() == [f"line {number}" for number in range(500)]
