"""The cells of the table in ``docs/how-to/embedding.md``: programs of every kind, each of which ends in a call.

A program serves as many cells as it can: the first one that is asked for runs it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
from interop.installation import Peers
from interop.servers import free_port

from mcp_actors import Client, McpError
from tests.pages import with_table

from .cells import CELLS, PAGE, table
from .conftest import PROGRAMS
from .endings import PATIENCE, Prepared, Program, answer, assert_gone, until_state, written

CLIENTS = {"asyncio-client": "asyncio", "sync-client": "sync", "threads": "threads"}
OWN_LOOPS = ("asyncio-client", "asyncio-tools")
"""Rows whose program closes its own loop without a word, and goes on."""
USES = {"cancellation": True, "progress": [1, 2, 3], "elicitation": "accept Ada"}
"""What is seen of a call, by column."""
FATAL = ("os._exit", "kill -9")


@dataclass
class Seen:
    """All that is known of a program that has ended."""

    program: Program
    facts: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    """Whether the server of its last call has seen it cancelled, or its client has learnt that nobody answers."""

    @property
    def output(self) -> str:
        return self.program.output


Run = Callable[[str, str], Seen]


@pytest.fixture(scope="module")
def prepared(
    peers: Peers, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prepared]:
    command = [str(peers.worlds), str(PROGRAMS / "prepared.py")]
    made = Prepared(command, environment, tmp_path_factory.mktemp("outputs"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def run(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of a row to the end that a column has; one run serves all columns that it can."""

    @cache
    def once(row: str, ending: str) -> Seen:
        if row in CLIENTS:
            return run_client(prepared, CLIENTS[row], ending, tmp_path_factory.mktemp("witness") / "written")
        return run_server(prepared, row, ending)

    def of_cell(row: str, column: str) -> Seen:
        contained = column == "sys.exit" and row not in CLIENTS
        return once(row, "Ctrl-C" if column in USES or contained else column)

    return of_cell


# -- clients -----------------------------------------------------------------------------------------------------------


def run_client(prepared: Prepared, kind: str, ending: str, record: Path) -> Seen:
    program = prepared.start(str(PROGRAMS / "clients.py"), kind, ending, str(record))
    if ending == "Ctrl-C":
        program.wait_for('"waits"')
        program.interrupt()
    program.end()
    messages = written(record)
    slow = [each["id"] for each in messages if is_slow(each)]
    taken_back = {
        each["params"]["requestId"] for each in messages if each.get("method") == "notifications/cancelled"
    }
    assert_gone(messages[0]["pid"])
    facts = program.facts
    if facts.get("cancellation"):
        # These were given up one after the other, or in each of the threads, before those in which the program ends.
        facts["cancellation"] = set(slow[: len(slow) // 2]) <= taken_back
    return Seen(program, facts, slow[-1] in taken_back)


def is_slow(message: dict[str, Any]) -> bool:
    return message.get("method") == "tools/call" and message["params"]["name"] == "slow"


# -- servers -----------------------------------------------------------------------------------------------------------


def run_server(prepared: Prepared, row: str, ending: str) -> Seen:
    port = free_port()
    words = ["asyncio_tools.py"] if row == "asyncio-tools" else ["mounted.py", row]
    program = prepared.start(str(PROGRAMS / words[0]), *words[1:], str(port))
    seen = Seen(program)
    try:
        path = "/mcp" if row == "asyncio-tools" else "/tools/mcp"
        trio.run(use_server, seen, f"http://127.0.0.1:{port}{path}", ending)
    finally:
        program.end()
    seen.facts |= program.facts
    return seen


async def use_server(seen: Seen, url: str, ending: str) -> None:
    with trio.fail_after(PATIENCE):
        await until_it_listens(url)
        async with Client(url, elicitation=answer) as client:
            if ending != "Ctrl-C":
                with suppress(McpError):
                    await client.call_tool("end", {"how": ending})
                    return
                seen.cancelled = True
                return
            await use(seen.facts, client)
            async with Client(url) as other, trio.open_nursery() as nursery:
                nursery.start_soon(lost_call, seen, client)
                await until_state(other, running=2)
                await trio.to_thread.run_sync(seen.program.interrupt)


async def until_it_listens(url: str) -> None:
    port = int(url.split(":")[2].split("/")[0])
    while True:
        try:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            return
        except OSError:
            await trio.sleep(0.02)


async def use(facts: dict[str, Any], client: Client) -> None:
    told: list[float] = []
    await client.call_tool("steps", on_progress=lambda report: told.append(report.progress))
    facts["progress"] = told
    said = (await client.call_tool("ask")).text
    facts["elicitation"] = said.replace("{'name': 'Ada'}", "Ada")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "slow")
        await until_state(client, running=1)
        nursery.cancel_scope.cancel()
    await until_state(client, cancelled=1)
    facts["cancellation"] = True
    failed = await client.call_tool("end", {"how": "sys.exit"})
    facts["sys.exit"] = (failed.is_error, failed.text)


async def lost_call(seen: Seen, client: Client) -> None:
    try:
        await client.call_tool("slow")
    except McpError:
        seen.cancelled = True


# -- the cells ---------------------------------------------------------------------------------------------------------


LEFT_LOOP = {"ended": True, "threads": []}
"""What a program says of itself when its loop is closed: the other side knows, and no thread keeps the program."""


def exit_code(row: str, column: str) -> int:
    if row == "granian":
        return 0 if column == "Ctrl-C" else 1  # of the process that had the worker
    codes = {
        "Ctrl-C": -signal.SIGINT if row in CLIENTS else 0,
        "sys.exit": 3,
        "os._exit": 3,
        "kill -9": -signal.SIGKILL,
    }
    # Two ASGI servers say that their loop was stopped.
    return codes.get(column, 1 if row in ("uvicorn", "hypercorn") else 0)


def assert_clean_end(seen: Seen, row: str, column: str) -> None:
    """Nothing is left, nothing of the inside is shown, and the other side knows."""
    assert seen.program.left == []
    assert seen.program.code == exit_code(row, column), seen.output
    assert "trio" not in seen.program.messages.lower(), seen.output
    # Nobody is left to cancel the call of a client that was killed: its server over stdio sees the end.
    assert seen.cancelled or (row in CLIENTS and column in FATAL)
    if row in CLIENTS and column == "Ctrl-C":
        assert seen.output.endswith("KeyboardInterrupt\n")
    if column == "loop closed" and row in OWN_LOOPS:
        assert seen.facts == LEFT_LOOP


@pytest.mark.parametrize(
    ("row", "column"),
    [cell for cell in CELLS if cell[0] != "notebook"],  # it has a file of its own
    ids=lambda name: name.replace(" ", "-"),
)
def test_cell(run: Run, peers: Peers, row: str, column: str) -> None:
    seen = run(row, column)
    if column in USES:
        assert seen.facts[column] == USES[column]
    elif column == "sys.exit" and row not in CLIENTS:
        # It is the failure of one call, and the server has answered others after it.
        assert seen.facts[column] == (True, "end: SystemExit: 3")
        assert_clean_end(seen, row, "Ctrl-C")
    else:
        assert_clean_end(seen, row, column)


def test_the_threads_have_seen_the_same(run: Run, peers: Peers) -> None:
    assert run("threads", "Ctrl-C").facts["same"]


def test_the_page_has_the_table_as_it_is() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, "worlds", table())
