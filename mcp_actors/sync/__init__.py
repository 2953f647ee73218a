"""The engine for programs that have no event loop."""

from mcp_actors.sync.client import Client, ClientGroup, ClientPool, Listener, TaskHandle

__all__ = ["Client", "ClientGroup", "ClientPool", "Listener", "TaskHandle"]
