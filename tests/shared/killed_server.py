"""A server with tasks, for `tests.shared.test_killed` to kill: ``killed_server.py STATE SOCKET LEASE``."""

from __future__ import annotations

import sys

import trio

import mcp_actors.tasks.node
from mcp_actors import Server
from mcp_actors.abc import SharedState
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.tasks import Tasks


def shared_at(place: str, lease: float) -> SharedState:
    """Returns the shared state at a path, or at a URL of Redis."""
    return RedisShared(place, lease=lease) if "://" in place else SqliteShared(place, lease=lease)


def make_server(place: str, lease: float) -> Server:
    server = Server("killed", shared=shared_at(place, lease), extensions=[Tasks(poll_interval=0.05)])

    @server.tool(task="required")
    async def once(number: int, seconds: float) -> str:
        await trio.sleep(seconds)
        return f"once {number}"

    @server.tool(task="required", restartable=True)
    async def again(number: int, seconds: float) -> str:
        await trio.sleep(seconds)
        return f"again {number}"

    return server


if __name__ == "__main__":
    # A node looks for the tasks of others as often as a lease of a test is short.
    mcp_actors.tasks.node.SWEEP_EVERY = 0.1
    make_server(sys.argv[1], float(sys.argv[3])).run(f"unix:{sys.argv[2]}")
