"""What WebSocket is asked to bear between our client and the official SDK's server: length, and ends of all kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from mcp_actors import Client, ConnectionLost
from mcp_actors.errors import ConnectFailed

from .installation import Peers
from .servers import Served, reachable
from .user import LIMIT, text_of

LINE = "gruß 🐍 "  # 11 bytes


async def test_long_messages(peers: Peers) -> None:
    """Either side takes 16 MiB. The server sends back twice what it got: as text and as structured content."""
    with trio.fail_after(LIMIT), reachable(peers, "python", "ws") as server:
        async with Client(server.target, era="legacy") as client:
            fits = LINE * 700_000
            result = await client.call_tool("echo", {"message": fits})
            assert text_of(result.content) == fits
            with pytest.raises(ConnectionLost, match="1009"):
                await client.call_tool("echo", {"message": LINE * 800_000})


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda served: served.process.terminate(), id="asked-to-end"),
        pytest.param(lambda served: served.process.kill(), id="killed"),
    ],
)
async def test_a_server_that_goes_away(peers: Peers, end: Callable[[Served], None]) -> None:
    with trio.fail_after(LIMIT), reachable(peers, "python", "ws") as server:
        served = server.process
        assert served is not None
        async with Client(server.target, era="legacy") as client:
            with pytest.raises(ConnectionLost):
                await client.call_tool(
                    "sleep", {"seconds": 60, "steps": 1000}, on_progress=lambda progress: end(served)
                )
        await trio.to_thread.run_sync(served.stop)
        with pytest.raises(ConnectFailed):
            async with Client(server.target, era="legacy"):
                pass
