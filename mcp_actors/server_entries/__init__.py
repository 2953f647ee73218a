"""The configurations of servers that people have for Claude, Cursor, Windsurf, Visual Studio Code and others.

`reading` makes entries of a file, a text or a mapping, `config_json` reads JSON with comments, `members` has the table
of what an entry may have. `entry` makes of one what a `Client` connects to; `expansion` puts in variables, and
`env_file` reads those that stand in a file.
"""

from __future__ import annotations

from mcp_actors.server_entries.entry import GatewayMembers, ServerEntry
from mcp_actors.server_entries.reading import GatewaySection, ServerEntries, read_server_entries

__all__ = ["GatewayMembers", "GatewaySection", "ServerEntries", "ServerEntry", "read_server_entries"]
