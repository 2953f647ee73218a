"""The cells of the table in ``docs/embedding.md``: programs of every kind, each of which ends in a call.

A program serves as many cells as it can: the first one that is asked for runs it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import trio
from interop.installation import Peers
from interop.servers import free_port

from mcp_actors import Client, McpError
from mcp_actors.types import ElicitResult

from .cells import CELLS, COLUMNS, PAGE, ROWS, with_table
from .conftest import PROGRAMS
from .endings import PATIENCE, Prepared, Program
from .test_notebook import run_notebook

CLIENTS = {"asyncio-client": "asyncio", "sync-client": "sync", "threads": "threads"}
USES = ("cancellation", "progress", "elicitation")
EXPECTED = {"cancellation": True, "progress": [1, 2, 3], "elicitation": "accept Ada"}


@dataclass
class Seen:
    """All that is known of a program that has ended."""

    program: Program
    facts: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    """Whether the server of its last call was told that it is cancelled, or the client of it that there is no answer."""

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


# -- clients -------------------------------------------------------------------------------------------------------------


def run_client(prepared: Prepared, kind: str, ending: str, record: Path) -> Seen:
    program = prepared.start(str(PROGRAMS / "clients.py"), kind, ending, str(record))
    if ending == "Ctrl-C":
        program.wait_for('"waits"')
        program.interrupt()
    program.end()
    messages = written(record)
    calls = {each["id"] for each in messages if each.get("method") == "tools/call"}
    taken_back = {
        each["params"]["requestId"] for each in messages if each.get("method") == "notifications/cancelled"
    }
    last = [each["id"] for each in messages if each.get("method") == "tools/call"][-1]
    assert taken_back <= calls
    assert_gone(messages[0]["pid"])
    return Seen(program, program.facts, last in taken_back)


def written(record: Path) -> list[dict[str, Any]]:
    """What the server over stdio has written down, which ends with its own end."""
    limit = time.monotonic() + PATIENCE
    while '"end"' not in record.read_text():
        assert time.monotonic() < limit, "the server was left behind, or killed"
        time.sleep(0.01)
    return [json.loads(line) for line in record.read_text().splitlines()]


def assert_gone(pid: int) -> None:
    limit = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < limit, "a child was left behind"
        time.sleep(0.01)


# -- servers -------------------------------------------------------------------------------------------------------------


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


async def until_state(client: Client, **wanted: int) -> None:
    while not wanted.items() <= json.loads((await client.call_tool("state")).text).items():  # noqa: ASYNC110
        await trio.sleep(0.02)


async def answer(params: object) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


# -- the cells -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "column"), [cell for cell in CELLS if cell[0] != "notebook"], ids=lambda each: each.replace(" ", "-")
)
def test_cell(run: Run, peers: Peers, row: str, column: str) -> None:
    seen = run(row, column)
    print(row, column, seen.program.code, seen.cancelled, seen.facts, seen.output)
    assert seen.program.left == []
