"""``python -m mcp_actors`` is the command line ``mcp-actors``."""

from __future__ import annotations

from mcp_actors.cli import main

if __name__ == "__main__":
    main()
