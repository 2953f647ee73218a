"""The engine for programs that run on asyncio, notebooks included."""

from mcp_actors.asyncio.client import Client, ClientPool, Listener, TaskHandle

__all__ = ["Client", "ClientPool", "Listener", "TaskHandle"]
