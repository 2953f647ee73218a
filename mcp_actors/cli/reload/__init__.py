"""``mcp-actors serve --reload``: the server is made anew from its files when they change, and its connections stay.

`modules` knows which modules are the user's own, `importing` imports them again in a thread that can be given up,
`watching` notices changes, `report` says what happened, and `reloading` does these one after the other. How a server
takes the place of another one is in `mcp_actors.cli.reload.replacement`.
"""

from __future__ import annotations

from mcp_actors.cli.reload.reloading import Reloading

__all__ = ["Reloading"]
