"""Clients that nobody refers to any more without having closed them: they are closed, and the program is told."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from mcp_actors import asyncio as in_asyncio
from mcp_actors import sync

from .watched import Watched, held

SECONDS = 10


def until_nothing_is_held() -> None:
    ends = time.monotonic() + SECONDS
    while held():
        assert time.monotonic() < ends


def test_a_sync_client_that_is_dropped_is_closed() -> None:
    server = Watched().server
    # What came of a client keeps it open.
    handles = [sync.Client(server).open().start_tool("add", {"a": 1, "b": 2})]
    iterators = [sync.Client(server).open().tools()]
    gc.collect()
    assert handles[0].result().structured_content == 3
    assert next(iterators[0]).name == "add"
    with pytest.warns(ResourceWarning, match="a client was not closed.*connected"):
        handles.clear()
    with pytest.warns(ResourceWarning, match="a client was not closed"):
        iterators.clear()
    until_nothing_is_held()


def test_an_asyncio_client_that_is_dropped_is_closed_before_its_loop_ends() -> None:
    server = Watched().server

    async def main() -> None:
        for _ in range(3):
            clients = [await in_asyncio.Client(server).open()]
            with pytest.warns(ResourceWarning, match="a client was not closed"):
                clients.clear()
        await asyncio.to_thread(until_nothing_is_held)

    asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_a_client_that_was_closed_or_never_opened_is_dropped_without_a_word() -> None:
    server = Watched().server
    sync.Client(server)
    with pytest.raises(TypeError):
        sync.Client(server, nonsense=1)
    with sync.Client(server) as client:
        client.ping()
    del client

    async def main() -> None:
        # Its loop closes it.
        global left
        left = await in_asyncio.Client(server).open()
        closed = await in_asyncio.Client(server).open()
        await closed.aclose()
        with sync.ClientPool() as pool:
            pool.open(sync.Client(server))
            gc.collect()

    asyncio.run(main())
    globals().pop("left")
    gc.collect()
    assert held() == []
