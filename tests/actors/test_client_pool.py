"""Clients that are opened and closed in any order from any task, and what becomes of those that must not be."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import (
    Client,
    ClientPool,
    ClosedElsewhere,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    Server,
)


def echoing(**options: object) -> Server:
    server = Server("echo", **options)  # type: ignore[arg-type]

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


async def is_alive(client: Client) -> bool:
    return (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"  # type: ignore[union-attr]


# -- the pool ---------------------------------------------------------------------------------------------------------


async def test_clients_are_closed_in_the_order_in_which_they_were_opened() -> None:
    async with ClientPool() as pool:
        clients = [await pool.open(Client(echoing())) for _ in range(3)]
        for number, client in enumerate(clients):
            await pool.close(client)
            with pytest.raises(ConnectionLost):
                await is_alive(client)
            for later in clients[number + 1 :]:
                assert await is_alive(later)


async def test_clients_are_opened_and_closed_by_tasks_that_end() -> None:
    found: list[Client] = []

    async def open_one(pool: ClientPool) -> None:
        found.append(await pool.open(Client(echoing())))

    async with ClientPool() as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(open_one, pool)
        assert len(found) == 5
        assert all([await is_alive(client) for client in found])
        random.Random(1).shuffle(found)
        async with trio.open_nursery() as nursery:
            for client in found:
                nursery.start_soon(pool.close, client)
        assert repr(pool) == "<ClientPool 0 clients>"


async def test_a_client_that_cannot_be_opened_costs_itself_only() -> None:
    async with ClientPool() as pool:
        good = await pool.open(Client(echoing()))
        with pytest.raises(ConnectFailed):
            await pool.open(Client("tcp://127.0.0.1:1"))
        assert await is_alive(good)
        assert repr(pool) == "<ClientPool 1 clients>"


async def test_leaving_the_block_closes_what_is_open_and_what_is_being_opened(autojump_clock: object) -> None:
    """The one that is being opened connects to a server that never answers."""
    raised: list[type[BaseException]] = []

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        await trio.sleep_forever()
        yield

    class Silent:
        def connect(self) -> object:
            return never()

    async def open_silent(pool: ClientPool) -> None:
        try:
            await pool.open(Client(Silent()))  # type: ignore[arg-type]
        except ConnectionLost as error:
            raised.append(type(error))

    async with trio.open_nursery() as nursery:
        async with ClientPool() as pool:
            client = await pool.open(Client(echoing()))
            nursery.start_soon(open_silent, pool)
            await trio.testing.wait_all_tasks_blocked()
    assert raised == [ConnectionLost]
    with pytest.raises(ConnectionLost):
        await is_alive(client)
    with pytest.raises(LocalProtocolError):
        await pool.open(Client(echoing()))


async def test_what_the_block_raises_leaves_it_unchanged() -> None:
    async def fail() -> None:
        async with ClientPool() as pool:
            await pool.open(Client(echoing()))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


async def test_an_open_that_is_cancelled_leaves_nothing() -> None:
    async with ClientPool() as pool:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pool.open(Client(echoing()))
        assert scope.cancelled_caught
        assert repr(pool) == "<ClientPool 0 clients>"


async def test_what_a_lifespan_raises_at_its_end_is_raised_by_close() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        raise OSError("the disk is full")

    async with ClientPool() as pool:
        client = await pool.open(Client(echoing(lifespan=lifespan)))
        other = await pool.open(Client(echoing()))
        with capture_logs(), pytest.raises(OSError, match="the disk is full"):
            await pool.close(client)
        assert await is_alive(other)
        await pool.close(client)


async def test_a_client_is_opened_once() -> None:
    async with ClientPool() as pool:
        client = await pool.open(Client(echoing()))
        with pytest.raises(LocalProtocolError):
            await pool.open(client)
        await pool.close(client)
        with pytest.raises(LocalProtocolError):
            await pool.open(client)


# -- blocks that are left where they must not be ----------------------------------------------------------------------


async def test_another_order_is_one_typed_error_and_nothing_else() -> None:
    """All that was opened inside of the client, and round it, goes on and is closed as ever."""
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as nursery:
            first = await Client(echoing()).__aenter__()
            async with Client(echoing()) as second:
                with trio.CancelScope(), capture_logs() as logs:
                    with pytest.raises(ClosedElsewhere, match=r"another order.*ClientPool"):
                        await first.__aexit__(None, None, None)
                assert [each["event"] for each in logs] == ["closed elsewhere"]
                with pytest.raises(ConnectionLost):
                    await is_alive(first)
                assert await is_alive(second)
            await first.__aexit__(None, None, None)
            nursery.start_soon(trio.lowlevel.checkpoint)
    assert not outer.cancel_called


async def test_another_task_is_one_typed_error_and_nothing_else() -> None:
    client = Client(echoing())
    go_on = trio.Event()
    finished: list[str] = []

    async def opener(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope():
            async with trio.open_nursery() as nursery:
                await client.__aenter__()
                task_status.started()
                nursery.start_soon(trio.lowlevel.checkpoint)
                await go_on.wait()
            await trio.lowlevel.checkpoint()
        finished.append("opener")

    async with trio.open_nursery() as nursery:
        await nursery.start(opener)
        with capture_logs(), pytest.raises(ClosedElsewhere, match=r"another task.*ClientPool"):
            await client.__aexit__(None, None, None)
        go_on.set()
    assert finished == ["opener"]


async def test_an_open_scope_inside_is_another_order_too() -> None:
    client = await Client(echoing()).__aenter__()
    with trio.fail_after(5), capture_logs(), pytest.raises(ClosedElsewhere):
        await client.__aexit__(None, None, None)


async def test_a_pool_that_is_left_elsewhere_closes_its_clients_all_the_same() -> None:
    pool = await ClientPool().__aenter__()
    client = await pool.open(Client(echoing()))
    async with trio.open_nursery():
        with capture_logs(), pytest.raises(ClosedElsewhere, match="this ClientPool"):
            await pool.__aexit__(None, None, None)
    with pytest.raises(ConnectionLost):
        await is_alive(client)
