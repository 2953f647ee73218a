"""Authorization under Trio: the driver of `mcp_actors.auth`, ways to log in, and a store of tokens in a file."""

from __future__ import annotations

__all__: list[str] = []
