"""``python -m mcp_actors.examples.everything``: serves it over stdio."""

from __future__ import annotations

from mcp_actors.examples.everything import server

if __name__ == "__main__":
    server.run()
