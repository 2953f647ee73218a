"""The engine for programs that run on asyncio, notebooks included."""

from mcp_actors.asyncio.client import Client, Listener, TaskHandle

__all__ = ["Client", "Listener", "TaskHandle"]
