"""This package as a stdio server."""

from __future__ import annotations

from typing import TypedDict

from mcp_actors import Server


class Sum(TypedDict):
    total: int


server = Server("peer")


@server.tool
async def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return {"total": a + b}


if __name__ == "__main__":
    server.run()
