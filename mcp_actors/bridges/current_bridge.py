"""The bridge of whatever runs in this thread."""

from __future__ import annotations

import asyncio

import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.bridges.trio_bridge import TrioBridge

__all__ = ["current_bridge"]


def current_bridge() -> AsyncioBridge | TrioBridge | ThreadBridge:
    """Returns the bridge of the loop that runs in this thread, asyncio or Trio, or a new one where none runs.

    Raises:
        LocalProtocolError: This is the engine's own thread.
        EngineStopped: The interpreter exits.
    """
    if trio.lowlevel.in_trio_run():
        return TrioBridge.of_running_loop()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ThreadBridge()
    return AsyncioBridge.of_running_loop()
