"""The official Python SDK as a stdio server; runs in a virtual environment of its own."""

from __future__ import annotations

from typing import TypedDict

from mcp.server.mcpserver import MCPServer


class Sum(TypedDict):
    total: int


server = MCPServer("peer")


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return {"total": a + b}


if __name__ == "__main__":
    server.run()
