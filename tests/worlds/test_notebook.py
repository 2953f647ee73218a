"""Jupyter kernels that run notebooks, cell after cell: a row of the table in ``docs/how-to/embedding.md``, and more."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from interop.installation import Peers

from mcp_actors import Client
from tests.postgres_server import PostgresServer

from .cells import CELLS
from .conftest import PROGRAMS, Started
from .endings import assert_gone, lost_call, until_state, value, written

PATIENCE = 120  # seconds; it takes about five

Shown = dict[str, Any]


def run(peers: Peers, environment: dict[str, str], *words: str) -> Shown:
    done = subprocess.run(
        [str(peers.worlds), str(PROGRAMS / "notebook.py"), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "trio" not in done.stderr.lower()
    shown: Shown = json.loads(done.stdout.splitlines()[-1])
    return shown


@pytest.fixture(scope="module")
def shown(peers: Peers, environment: dict[str, str]) -> Shown:
    """What the cells of a notebook have shown. Its kernel is gone, and so is its server."""
    found = run(peers, environment)
    for each in ("state", "state after that"):
        found[each] = json.loads(found[each])
    assert_gone(found["state"]["pid"])
    assert_gone(int(found["left in flight"]))
    return found


@pytest.fixture(scope="module")
def ended(peers: Peers, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What has become of kernels that ended in a call: none of their servers over stdio is left."""
    folder = tmp_path_factory.mktemp("witness")
    found = run(peers, environment, str(folder))
    for each in found:
        messages = written(folder / each)
        assert [message.get("method") for message in messages][-2:] == ["tools/call", "end"]
        assert_gone(messages[0]["pid"])
    return found


def cell_of_cancellation(shown: Shown) -> None:
    assert shown["cancellation"] == "True\n"
    after = shown["state after that"]
    assert (after["running"], after["cancelled"]) == (2, 2)


def cell_of_progress(shown: Shown) -> None:
    assert shown["progress"] == "1\n2\n3\n"


def cell_of_elicitation(shown: Shown) -> None:
    assert shown["elicitation"] == "accept {'name': 'Ada'}\n"


def cell_of_ctrl_c(shown: Shown) -> None:
    """The call of the cell that is interrupted is cancelled at the server, and the client goes on."""
    assert (shown["interrupted: raised"], shown["interrupted"]) == ("CancelledError", "begins\n")
    assert (shown["state"]["running"], shown["state"]["cancelled"]) == (1, 1)
    assert shown["interrupted without await: raised"] == "KeyboardInterrupt"


def cell_of_sys_exit(shown: Shown) -> None:
    """The cell ends, and neither the kernel nor the call that it has begun: the next cell cancels it."""
    assert shown["sys.exit: raised"] == "SystemExit"
    assert shown["cancellation"] == "True\n"


ROW = {
    "cancellation": cell_of_cancellation,
    "progress": cell_of_progress,
    "elicitation": cell_of_elicitation,
    "Ctrl-C": cell_of_ctrl_c,
    "sys.exit": cell_of_sys_exit,
}
FATAL = ("os._exit", "kill -9")


@pytest.mark.parametrize("column", ROW)
def test_cell(shown: Shown, peers: Peers, column: str) -> None:
    ROW[column](shown)


@pytest.mark.parametrize("column", FATAL)
def test_cell_that_ends_the_kernel(ended: Shown, peers: Peers, column: str) -> None:
    assert ended[column] == "DeadKernelError"


def test_the_row_of_the_table_is_this_one() -> None:
    assert [column for row, column in CELLS if row == "notebook"] == [*ROW, *FATAL]


def test_the_rest_of_the_notebook(shown: Shown, peers: Peers) -> None:
    assert shown["opens"] == "'tools'"
    assert shown["calls"] == "3\n"
    assert shown["without await"] == "7\n"


# -- Asyncio programs with a database driver in their tools, and the clients of such a server ------------

PATIENCE_DATABASES = 60  # seconds; nothing here takes a tenth of it


async def give_up(client: Client, number: int) -> None:
    """Cancels a call whose query runs; its program and the database have noticed when this returns."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "slow")
        # PostgreSQL forgets a cancellation that comes before the query.
        await until_state(client, running=number, active=1)
        nursery.cancel_scope.cancel()
    await until_state(client, cancelled=number, active=0)


async def use(started: Started, *words: str) -> None:
    """Writes, reads, leaves queries, and interrupts the program while another one runs."""
    with trio.fail_after(PATIENCE_DATABASES), started("databases.py", *words) as served:
        url = f"http://127.0.0.1:{served.port()}/mcp"
        told: list[float] = []
        async with Client(url) as modern, Client(url, era="legacy") as legacy:
            await modern.call_tool(
                "write", {"text": "one"}, on_progress=lambda report: told.append(report.progress)
            )
            assert told == [1, 2]
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(legacy.call_tool, "write", {"text": f"note {number:02}"})
            written = [*(f"note {number:02}" for number in range(20)), "one"]
            assert await value(legacy, "notes") == written
            await give_up(modern, 1)
            await give_up(legacy, 2)
            assert await value(modern, "notes") == written
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lost_call, modern)
                await until_state(legacy, running=3, active=1)
                served.process.send_signal(signal.SIGINT)
                code = await trio.to_thread.run_sync(served.process.wait, abandon_on_cancel=True)
        assert code == 0, served.output
        served.stop()
        assert served.output.splitlines()[1:] == ["interrupted {'running': 3, 'cancelled': 3}"], served.output


async def test_aiosqlite(started: Started, peers: Peers, tmp_path: Path) -> None:
    await use(started, "sqlite", str(tmp_path / "notes.db"))


async def test_asyncpg(started: Started, peers: Peers, postgres: PostgresServer) -> None:
    await use(started, "postgres", postgres.url)
