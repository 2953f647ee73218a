"""The engine for programs that have no event loop."""

from mcp_actors.sync.client import Client, Listener, TaskHandle

__all__ = ["Client", "Listener", "TaskHandle"]
