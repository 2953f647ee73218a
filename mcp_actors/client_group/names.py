"""Names of tools and prompts that stay what they are when servers come and go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

__all__ = ["GroupNames"]

# Everything but what the APIs of models allow in the name of a tool.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


class GroupNames:
    """The prefixes of servers, no one of which is the beginning of another one.

    Args:
        servers: The names of the servers.
        separator: What stands behind each.

    Raises:
        ValueError: The separator has a character that no name of a tool may have, or two servers cannot be told apart.
    """

    def __init__(self, servers: Collection[str], separator: str) -> None:
        if _NOT_ALLOWED.search(separator):
            raise ValueError(f"the separator has letters, digits, - and _ only, not {separator[:80]!r}")
        self._prefixes = {name: _NOT_ALLOWED.sub("_", name) + separator for name in servers}
        self._servers = {prefix: name for name, prefix in self._prefixes.items()}
        self._longest = max(map(len, self._servers), default=0)
        # In this order, whatever begins with a prefix stands right behind it.
        ordered = sorted(self._prefixes.items(), key=lambda each: each[1])
        for (name, prefix), (other, longer) in itertools.pairwise(ordered):
            if longer.startswith(prefix):
                raise ValueError(
                    f"the tools of {name[:80]!r} and {other[:80]!r} could not be told apart behind {prefix[:80]!r}: "
                    "rename one of the servers, or give another separator"
                )

    def __repr__(self) -> str:
        return f"<GroupNames {', '.join(self._servers)}>"

    def of(self, server: str, name: str) -> str:
        """Returns the name in the group of a tool or prompt of a server."""
        return self._prefixes[server] + name

    def split(self, name: str) -> tuple[str, str] | None:
        """Returns the server that a name in the group belongs to, and the name there; ``None`` if it is none's."""
        for end in range(1, min(self._longest, len(name)) + 1):
            server = self._servers.get(name[:end])
            if server is not None:
                return server, name[end:]
        return None
