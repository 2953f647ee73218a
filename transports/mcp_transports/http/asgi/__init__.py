"""MCP over HTTP as an ASGI application, for programs that have a web server: see `AsgiApp`."""

from __future__ import annotations

from mcp_transports.http.asgi.application import AsgiApp

__all__ = ["AsgiApp"]
