"""``mcp-actors serve --reload``: the server is made anew from its files when they change, and its connections stay.

`reloading` waits for a change, imports the target again and reports what happened; `replacement` puts the new server in
the place of the old one.
"""

from __future__ import annotations

from mcp_actors.cli.reload.reloading import Reloading

__all__ = ["Reloading"]
