"""A client makes a call with a key again by itself when its connection is lost, and never one without a key."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectionLost, KeyConflict, OutcomeUnknown
from mcp_actors.extensions import IDEMPOTENCY, KEY
from mcp_actors.testing import raw_server
from mcp_transports.stdio import StdioClientTransport
from tests.messages import discover_result
from tests.scripted_peers import reply

ERAS = ["2025-11-25", "2026-07-28"]
DAY = timedelta(hours=24)


class Bank:
    """A server that counts what it does; its function waits in the middle."""

    def __init__(self, kept: timedelta | None = DAY, **options: Any) -> None:
        self.server = Server("bank")
        self.done: list[int] = []
        self.begun, self.gate = trio.Event(), trio.Event()
        if kept is not None:
            options["idempotent"] = kept

        @self.server.tool(**options)
        async def pay(cents: int) -> str:
            self.done.append(cents)
            self.begun.set()
            await self.gate.wait()
            return f"number {len(self.done)}"


class Cutting:
    """A proxy on a port of its own, which cuts all of its connections at once when it is asked to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: list[trio.SocketStream] = []
        self.cuts = 0

    async def _copy(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            async for data in source:
                await sink.send_all(data)
            await sink.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await sink.aclose()

    async def _connection(self, stream: trio.SocketStream) -> None:
        there = await trio.open_tcp_stream("127.0.0.1", self._target)
        self._open += [stream, there]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, stream, there)
            nursery.start_soon(self._copy, there, stream)

    async def cut(self) -> None:
        self.cuts += 1
        ended, self._open = self._open, []
        for each in ended:
            await trio.aclose_forcefully(each)

    async def serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connection, [listener])
            task_status.started(listener.socket.getsockname()[1])


@asynccontextmanager
async def through_proxy(bank: Bank, scheme: str, era: str) -> AsyncIterator[tuple[Client, Cutting]]:
    async with trio.open_nursery() as nursery:
        (place,) = await nursery.start(bank.server.serve, f"{scheme}://127.0.0.1:0/mcp")
        port = int(str(place).rpartition(":")[2].partition("/")[0])
        proxy = Cutting(port)
        own = await nursery.start(proxy.serve)
        async with Client(f"{scheme}://127.0.0.1:{own}/mcp", era=era, restart=True, timeout=20) as client:
            yield client, proxy
        nursery.cancel_scope.cancel()


async def cut_and_finish(bank: Bank, proxy: Cutting) -> None:
    """Cuts the connection while the function runs, and lets that go on afterwards."""
    await bank.begun.wait()
    await proxy.cut()
    bank.gate.set()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_call_with_a_key_survives_its_connection(scheme: str, era: str) -> None:
    bank = Bank()
    async with through_proxy(bank, scheme, era) as (client, proxy), trio.open_nursery() as nursery:
        nursery.start_soon(cut_and_finish, bank, proxy)
        assert await client.call_tool("pay", {"cents": 5}, key="a", returns=str) == "number 1"
    assert (bank.done, proxy.cuts) == ([5], 1)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_task_with_a_key_is_started_once(scheme: str, era: str) -> None:
    """Also where its start has lost its connection, so that nobody has its id."""
    bank = Bank(task="optional")
    async with through_proxy(bank, scheme, era) as (client, proxy):
        first = await client.start_tool("pay", {"cents": 5}, key="a")
        await bank.begun.wait()
        await proxy.cut()
        again = await client.start_tool("pay", {"cents": 5}, key="a")
        with pytest.raises(KeyConflict):
            await client.start_tool("pay", {"cents": 6}, key="a")
        other = await client.start_tool("pay", {"cents": 7}, key="b")
        bank.gate.set()
        assert (await again.result()).text == (await first.result()).text
        await other.result()
    assert first.id == again.id != other.id
    assert bank.done == [5, 7]


async def test_a_task_that_loses_its_connection_while_it_is_started_has_one_start() -> None:
    """The middleware holds the answer with the id, which is lost with its connection."""
    bank = Bank(task="optional")

    @bank.server.middleware
    async def hold(ctx: Any, call_next: Any) -> Any:
        answer = await call_next(ctx)
        if ctx.method == "tools/call":
            await bank.gate.wait()
        return answer

    async with through_proxy(bank, "ws", ERAS[1]) as (client, proxy), trio.open_nursery() as nursery:
        nursery.start_soon(cut_and_finish, bank, proxy)
        handle = await client.start_tool("pay", {"cents": 5}, key="a")
        assert (await handle.result()).text == "number 1"
    assert (bank.done, proxy.cuts) == ([5], 1)


# A session over HTTP comes back to the stream of its answer (Last-Event-ID), which begins nothing again.
@pytest.mark.parametrize(("scheme", "era"), [("http", ERAS[1]), ("ws", ERAS[0]), ("ws", ERAS[1])])
async def test_a_call_without_a_key_is_never_made_again(scheme: str, era: str) -> None:
    bank = Bank()
    async with through_proxy(bank, scheme, era) as (client, proxy), trio.open_nursery() as nursery:
        nursery.start_soon(cut_and_finish, bank, proxy)
        with pytest.raises(ConnectionLost):
            await client.call_tool("pay", {"cents": 5})
    assert bank.done == [5]


CHILD = """
import os, sys
from datetime import timedelta
from pathlib import Path

from mcp_actors import Server
from mcp_actors.extensions import ServerExtension
from mcp_actors.shared.sqlite import SqliteShared

folder, dies = Path(sys.argv[1]), sys.argv[2]


def die(when):
    if when == dies and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)


class Early(ServerExtension):
    def __init__(self):
        super().__init__("test.example/early")
        # It is asked before anything of a call has begun.
        self.around("tools/call", when=lambda params: die("before"))(self.go_on)

    async def go_on(self, ctx, call_next):
        return await call_next(ctx)


server = Server("child", shared=SqliteShared(folder / "state.db", timeout=20), extensions=[Early()])


@server.tool(idempotent=timedelta(hours=24))
def pay(cents: int) -> str:
    with open(folder / "paid", "a") as file:
        file.write(f"{cents} ")
    die("within")
    return "paid"


server.run("stdio:")
"""


@asynccontextmanager
async def with_child(folder: Path, dies: str, era: str) -> AsyncIterator[Client]:
    (folder / "child.py").write_text(CHILD)
    (folder / "paid").touch()
    transport = StdioClientTransport([sys.executable, str(folder / "child.py"), str(folder), dies])
    async with Client(transport, era=era, restart=True, timeout=60) as client:
        yield client


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_with_a_key_survives_its_child_process(era: str, tmp_path: Path) -> None:
    async with with_child(tmp_path, "before", era) as client:
        assert await client.call_tool("pay", {"cents": 5}, key="a", returns=str) == "paid"
        assert await client.call_tool("pay", {"cents": 5}, key="a", returns=str) == "paid"
    assert (tmp_path / "died").exists()
    assert (tmp_path / "paid").read_text() == "5 "


async def test_what_a_child_process_was_killed_in_is_not_done_again(tmp_path: Path) -> None:
    async with with_child(tmp_path, "within", ERAS[1]) as client:
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.call_tool("pay", {"cents": 5}, key="a")
    assert (tmp_path / "paid").read_text() == "5 "


async def test_a_call_without_a_key_is_not_made_again_in_a_restarted_child_process(tmp_path: Path) -> None:
    async with with_child(tmp_path, "within", ERAS[1]) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("pay", {"cents": 5})
        assert await client.call_tool("pay", {"cents": 6}, returns=str) == "paid"
    assert (tmp_path / "paid").read_text() == "5 6 "


TAKES_KEYS: dict[str, Any] = {"tools": {}, "extensions": {IDEMPOTENCY: {}}}
NO_KEYS: dict[str, Any] = {"tools": {}}


@pytest.mark.parametrize(
    ("first", "options"), [(TAKES_KEYS, {"key": "a"}), (NO_KEYS, {"meta": {KEY: "a"}})], ids=["key", "meta"]
)
async def test_a_call_is_not_made_again_at_a_server_that_takes_no_keys(
    first: dict[str, Any], options: dict[str, Any], autojump_clock: Any
) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        seen: list[str] = []

        async def play() -> None:
            for capabilities in (first, NO_KEYS):
                peer = await server.accept()
                await reply(peer, await peer.receive(), discover_result(capabilities))
                message = await peer.receive()
                seen.append(message["method"])
                await peer.channel.aclose()

        nursery.start_soon(play)
        async with Client(server.transport, era=ERAS[1], restart=True, timeout=5) as client:
            with pytest.raises(ConnectionLost):
                await client.call_tool("pay", {"cents": 5}, **options)
            nursery.cancel_scope.cancel()
    assert seen == ["tools/call"]
