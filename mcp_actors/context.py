"""What a tool, resource or prompt function is handed when it asks for a `Context`."""

from __future__ import annotations

from mcp_actors._server.context import Context

__all__ = ["Context"]
