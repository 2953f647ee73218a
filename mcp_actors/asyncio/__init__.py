"""The engine for programs that run on asyncio, notebooks included."""

from mcp_actors.asyncio.client import Client, ClientGroup, ClientPool, Listener, TaskHandle
from mcp_actors.asyncio.serving import lifespan, serve

__all__ = ["Client", "ClientGroup", "ClientPool", "Listener", "TaskHandle", "lifespan", "serve"]
