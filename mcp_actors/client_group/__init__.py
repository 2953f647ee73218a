"""Clients of many servers, for programs that are hosts.

`group` has the class, `members` makes a client for each server, `names` makes the names of their tools, and
`together` does many things at once.
"""

from __future__ import annotations

from mcp_actors.client_group.group import ClientGroup
from mcp_actors.client_group.members import GroupEntry

__all__ = ["ClientGroup", "GroupEntry"]
