"""The message broker: work is shared, nothing is run twice, and what is lost is told."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import mcp_actors
from mcp_actors import Client, ConnectFailed, ConnectionLost, Context, Overloaded, Server, types
from mcp_actors.abc import Frame
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import LocalProtocolError
from mcp_actors.examples.transports import broker
from mcp_actors.examples.transports.broker import Broker, BrokerWorker, open_broker
from tests.messages import modern_meta
from tests.pages import DOCS, GUIDE, blocks, programs

pytestmark = pytest.mark.slow

# -- The guide to writing a transport is run as it stands there ------------------------------------------

ROOT = Path(mcp_actors.__file__).parent.parent
SECONDS = 120
# The histograms of the benchmarks declare structures in a way that CPython 3.14 warns of.
WARNINGS = "error,ignore:Due to '_pack_'"


def texts(language: str) -> list[str]:
    """The blocks of the guide in one language."""
    return [text for each, text in blocks(GUIDE) if each == language]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in programs(GUIDE).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "transports")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": WARNINGS}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_are_there() -> None:
    assert set(programs(GUIDE)) == {"packets.py", "meet.py", "exchange.py", "test_packets.py"}


def test_the_transport_carries_both_eras(folder: Path) -> None:
    assert run(folder, "meet.py") == texts("text")[0]


def test_the_transport_passes_the_kit(folder: Path) -> None:
    assert "1 passed" in run(folder, "-m", "pytest", "-p", "no:asyncio", "test_packets.py")


def test_the_transport_is_as_small_as_promised() -> None:
    code = [line for line in programs(GUIDE)["packets.py"].splitlines() if line.strip()]
    assert len(code) <= 60


async def test_the_heart_of_an_exchange_binding_answers(folder: Path) -> None:
    answer = runpy.run_path(str(folder / "exchange.py"))["answer"]
    done: list[Any] = []

    class Handler:
        def sort(self, frame: Frame) -> Any:
            return type("Arrival", (), {"refusal": Frame(b"no") if frame.data == b"bad" else None})

        async def exchange(self, arrival: Any, outlet: Any) -> None:
            outlet.post(Frame(b"yes", last=True))

    class Outlet:
        def post(self, frame: Frame) -> None:
            done.append(frame.data)

    await answer(Handler(), b"good", {}, Outlet())
    await answer(Handler(), b"bad", {}, Outlet())

    assert done == [b"yes", b"no"]


def test_the_benchmark_takes_the_transport(folder: Path) -> None:
    """The guide's own command, with less of everything."""
    command = next(line for line in GUIDE.splitlines() if line.startswith("python -m benchmarks run"))
    python, *arguments = shlex.split(command)
    assert python == "python"
    less = ["--rounds", "1", "--seconds", "0.1", "--peers", "ours", "--eras", "modern", "-o", "out.json"]
    run(folder, *arguments, *less)
    rows = (folder / "out.md").read_text()
    assert rows.count("| packets | modern |") > 5
    assert "## No figure" not in rows


def test_the_entry_point_is_one() -> None:
    [text] = texts("toml")
    groups = tomllib.loads(text)["project"]["entry-points"]
    module, _, name = groups["mcp_actors.transports"]["packets"].partition(":")
    assert f"def {name}(url)" in programs(GUIDE)[f"{module}.py"]


def test_the_examples_are_where_the_guide_says() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", GUIDE)
    assert targets
    assert all((DOCS / "how-to" / target).is_file() for target in targets)


@pytest.mark.parametrize(("module", "url"), [("http2", "h2stdio:cat"), ("broker", "broker:work")])
def test_the_examples_register_themselves(module: str, url: str) -> None:
    pytest.importorskip(f"mcp_actors.examples.transports.{module}")
    assert client_transport(url)


# -- The message broker ----------------------------------------------------------------------------------


@attrs.define
class Shop:
    """Three workers, each with a scope that makes it vanish, and what they have done."""

    broker: Broker
    shifts: dict[str, trio.CancelScope] = attrs.Factory(dict)
    servers: dict[str, Server] = attrs.Factory(dict)
    started: list[str] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)
    sent: int = 0
    changed: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)

    def server(self, name: str) -> Server:
        server = Server(name, state_key=bytes(32))

        @server.tool(inline=True)
        def who() -> str:
            return name

        @server.tool
        async def ask(ctx: Context) -> str:
            self.started.append(name)
            answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
            return f"{(answer.content or {}).get('name')} by {name}"

        @server.tool
        async def wait() -> None:
            self.started.append(name)
            self.changed.unpark_all()
            try:
                await trio.sleep_forever()
            finally:
                self.ended.append(name)
                self.changed.unpark_all()

        @server.tool
        async def pour(amount: int, ctx: Context) -> str:
            for n in range(amount):
                await ctx.progress(n + 1, amount)
                self.sent += 1
            return "poured"

        @server.tool(inline=True)
        def fail() -> str:
            return "x" * broker.MAX_MESSAGE

        self.servers[name] = server
        return server

    async def work(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self.shifts[name]:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.server(name).serve, BrokerWorker("shop", at_once=2))
                task_status.started()

    async def until_started(self, count: int) -> None:
        while len(self.started) < count:
            await self.changed.park()


@asynccontextmanager
async def shop(*names: str, lease: float = 4.0) -> AsyncIterator[Shop]:
    async with open_broker("shop", lease=lease) as made, trio.open_nursery() as nursery:
        found = Shop(made)
        for name in names:
            await nursery.start(found.work, name)
        yield found
        nursery.cancel_scope.cancel()


async def test_workers_share_the_queue(autojump_clock: Any) -> None:
    async with shop("Anna", "Ben", "Cleo"), Client("broker:shop") as client:
        seen = [(await client.call_tool("who")).text for _ in range(9)]
    assert {name: seen.count(name) for name in seen} == {"Anna": 3, "Ben": 3, "Cleo": 3}


async def test_any_worker_takes_the_answers_to_questions(autojump_clock: Any) -> None:
    async def answer(params: Any) -> types.ElicitResult:
        return types.ElicitResult("accept", {"name": "Ada"})

    async with shop("Anna", "Ben", "Cleo") as found, Client("broker:shop", elicitation=answer) as client:
        text = (await client.call_tool("ask")).text
        assert len(found.started) == 2
        assert found.started[0] != found.started[1]
        assert text == f"Ada by {found.started[1]}"


async def test_a_lost_worker_is_told_and_nothing_is_run_twice(autojump_clock: Any) -> None:
    async with shop("Anna", "Ben") as found, Client("broker:shop") as client:
        lost: list[ConnectionLost] = []

        async def call() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await client.call_tool("wait")
            lost.append(caught.value)

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            await found.until_started(1)
            begun = trio.current_time()
            found.shifts[found.started[0]].cancel()
        assert "may have been run" in str(lost[0])
        assert trio.current_time() - begun <= 2 * found.broker.lease
        [left] = {"Anna", "Ben"} - {found.started[0]}
        assert (await client.call_tool("who")).text == left
        assert len(found.started) == 1


async def test_a_lease_is_renewed_while_a_call_lasts(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop", timeout=1000) as client:
        with trio.move_on_after(20 * found.broker.lease) as scope:
            await client.call_tool("wait")
        assert scope.cancelled_caught


async def test_a_worker_whose_lease_ran_out_stops(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop("Anna") as found, Client("broker:shop") as client:
        renew = found.broker.renew
        monkeypatch.setattr(found.broker, "renew", lambda job: True)
        with pytest.raises(ConnectionLost):
            await client.call_tool("wait")
        assert found.ended == []
        monkeypatch.setattr(found.broker, "renew", renew)
        while not found.ended:
            await found.changed.park()
        assert (await client.call_tool("who")).text == "Anna"


async def test_a_cancelled_call_is_cancelled_where_it_runs(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop") as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as calls:
                calls.start_soon(client.call_tool, "wait")
                await found.until_started(1)
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert found.ended == ["Anna"]
        assert (await client.call_tool("who")).text == "Anna"


async def test_what_was_withdrawn_in_the_queue_is_not_run(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop") as client, trio.open_nursery() as calls:
        for _ in range(2):
            calls.start_soon(client.call_tool, "wait")
        await found.until_started(2)
        with trio.move_on_after(1):
            await client.call_tool("wait")
        calls.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert found.started == ["Anna", "Anna"]


async def test_a_caller_that_leaves_takes_its_calls_with_it(autojump_clock: Any) -> None:
    async with shop("Anna") as found:
        async with Client("broker:shop") as client, trio.open_nursery() as calls:
            calls.start_soon(client.call_tool, "wait")
            await found.until_started(1)
            calls.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert found.ended == ["Anna"]


async def test_a_full_queue_refuses(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "MAX_QUEUED", 1)
    async with shop("Anna") as found, Client("broker:shop") as client, trio.open_nursery() as calls:
        for count in (1, 2):
            calls.start_soon(client.call_tool, "wait")
            await found.until_started(count)
        calls.start_soon(client.call_tool, "wait")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await client.call_tool("who")
        calls.cancel_scope.cancel()


async def test_progress_and_changes_arrive(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop") as client:
        seen: list[float] = []
        await client.call_tool("pour", {"amount": 200}, on_progress=lambda p: seen.append(p.progress))
        assert seen == list(range(1, 201))
        async with client.listen(tools=True) as events:
            found.servers["Anna"].remove_tool("fail")
            assert (await events.__anext__()).kind == "tools"


async def test_a_caller_that_reads_nothing_holds_up_its_handler_only(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop") as other:
        channel = broker.BrokerChannel(found.broker)
        params = {
            "name": "pour",
            "arguments": {"amount": 1000},
            "_meta": modern_meta(progressToken=1),
        }
        body = broker.Frame(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode(),
            request=1,
            metadata={
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": "pour",
            },
        )
        await channel.send(body)
        await trio.testing.wait_all_tasks_blocked()
        assert found.sent == broker.MAX_REPLIES
        assert (await other.call_tool("who")).text == "Anna"
        await channel.aclose()


async def test_a_message_over_the_limit_fails_its_call_alone(autojump_clock: Any) -> None:
    async with shop("Anna"), Client("broker:shop") as client:
        with pytest.raises(LocalProtocolError):
            await client.call_tool("who", {"x": "x" * broker.MAX_MESSAGE})
        assert (await client.call_tool("who")).text == "Anna"


async def test_there_is_no_such_broker() -> None:
    with pytest.raises(ConnectFailed, match="no broker"):
        async with Client("broker:nowhere"):
            raise AssertionError("it connected")


async def test_the_end_of_the_broker_ends_its_clients(autojump_clock: Any) -> None:
    async with open_broker("brief"), trio.open_nursery() as nursery:
        worker = BrokerWorker("brief")
        await nursery.start(Server("x").serve, worker)
        async with Client("broker:brief") as client:
            broker._brokers["brief"].queue.close()
            with pytest.raises(ConnectionLost):
                await client.ping()
        nursery.cancel_scope.cancel()


async def test_the_script_runs(autojump_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    await broker.main()
    told = capsys.readouterr().out
    assert "plum" in told
    assert "may have been run" in told
