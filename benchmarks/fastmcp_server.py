"""A server on FastMCP, by its path: it runs in an environment that has FastMCP and not this package."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP

server: Any = FastMCP("on FastMCP")


@server.tool  # type: ignore[untyped-decorator,unused-ignore]
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


if __name__ == "__main__":
    server.run(show_banner=False)
