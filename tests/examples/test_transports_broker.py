"""The message broker: work is shared, nothing is run twice, and what is lost is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectFailed, ConnectionLost, Context, Overloaded, Server, types
from mcp_actors.errors import LocalProtocolError
from mcp_actors.examples.transports import broker
from mcp_actors.examples.transports.broker import Broker, BrokerWorker, open_broker
from tests.messages import modern_meta


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


def text_of(result: types.CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def test_workers_share_the_queue(autojump_clock: Any) -> None:
    async with shop("Anna", "Ben", "Cleo"), Client("broker:shop") as client:
        seen = [text_of(await client.call_tool("who")) for _ in range(9)]
    assert {name: seen.count(name) for name in seen} == {"Anna": 3, "Ben": 3, "Cleo": 3}


async def test_any_worker_takes_the_answers_to_questions(autojump_clock: Any) -> None:
    async def answer(params: Any) -> types.ElicitResult:
        return types.ElicitResult("accept", {"name": "Ada"})

    async with shop("Anna", "Ben", "Cleo") as found, Client("broker:shop", elicitation=answer) as client:
        text = text_of(await client.call_tool("ask"))
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
        assert text_of(await client.call_tool("who")) == left
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
        assert text_of(await client.call_tool("who")) == "Anna"


async def test_a_cancelled_call_is_cancelled_where_it_runs(autojump_clock: Any) -> None:
    async with shop("Anna") as found, Client("broker:shop") as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as calls:
                calls.start_soon(client.call_tool, "wait")
                await found.until_started(1)
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert found.ended == ["Anna"]
        assert text_of(await client.call_tool("who")) == "Anna"


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
        assert text_of(await other.call_tool("who")) == "Anna"
        await channel.aclose()


async def test_a_message_over_the_limit_fails_its_call_alone(autojump_clock: Any) -> None:
    async with shop("Anna"), Client("broker:shop") as client:
        with pytest.raises(LocalProtocolError):
            await client.call_tool("who", {"x": "x" * broker.MAX_MESSAGE})
        assert text_of(await client.call_tool("who")) == "Anna"


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
