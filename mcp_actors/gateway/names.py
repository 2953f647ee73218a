"""The names of tools, prompts and resources in the gateway, and which upstream owns each.

How they are made is the matter of `mcp_actors._server.names`.

Where several upstreams have one of the same name (`NameClaims`), the first one that listed it owns it for as long as it
lists it, and while it is away. So a name never changes its meaning: not when another upstream lists the same, whatever
its place, and not when its owner is away for a while. Upstreams that are listed together are asked in the order in
which they were given.
"""

from __future__ import annotations

from urllib.parse import quote

import attrs

from mcp_actors._server.names import NameTable
from mcp_actors._server.reshape import reshaped_names
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types.apps import APP_SCHEME

__all__ = ["Claim", "NameClaims", "table_of"]

# Characters of a name that the log shows.
_SHOWN = 200
SKILL_SCHEME = "skill://"
# Collisions that are remembered, so that each is logged once. Later ones are not logged.
MOST_COLLISIONS = 1000


def table_of(upstream: Upstream, *, is_alone: bool) -> NameTable:
    """Returns the names of an upstream; raises `ValueError` for settings that contradict each other.

    Its pages lie in a folder even without a prefix, unless it ``is_alone`` for ever: which upstream has a page decides
    which tools that page may call.
    """
    of = f"upstream {upstream.name!r}"
    renamed = reshaped_names(of, upstream.tools)
    folder = quote(upstream.name, safe="")
    schemes = (SKILL_SCHEME, APP_SCHEME) if upstream.name_prefix else () if is_alone else (APP_SCHEME,)
    settings = upstream.rename, upstream.include, upstream.exclude, renamed, dict.fromkeys(schemes, folder)
    return NameTable(of, upstream.name_prefix, *settings)


@attrs.define(eq=False)
class Claim:
    """A name in the gateway: its owner, and how many lists of the owner have it."""

    upstream: str
    target: str
    """The name or URI that the owner has for it."""
    lists: int = 0


class NameClaims:
    """The names of one kind (such as tools) in one gateway, with their owners.

    Args:
        what: Names an entry in the log (``"tool"``).
    """

    def __init__(self, what: str) -> None:
        self.version = 0
        """Changes whenever a name gets or loses its owner."""
        self.owners: dict[str, Claim] = {}
        """The owner of each name that an upstream has listed; read only."""
        self._what = what
        self._logged: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<NameClaims {len(self.owners)} {self._what}s>"

    def __len__(self) -> int:
        return len(self.owners)

    def claim(self, name: str, upstream: str, target: str) -> bool:
        """Counts one more list of ``upstream`` that has a name; returns whether the name is its, or another's."""
        claim = self.owners.get(name)
        if claim is None:
            claim = self.owners[name] = Claim(upstream, target)
            self.version += 1
        elif claim.upstream != upstream or claim.target != target:
            self.collided(name, claim.upstream, upstream)
            return False
        claim.lists += 1
        return True

    def release(self, name: str) -> None:
        """Counts one list less that has a name; after the last one the name is free."""
        claim = self.owners[name]
        claim.lists -= 1
        if not claim.lists:
            del self.owners[name]
            self.version += 1

    def collided(self, name: str, owner: str, other: str) -> None:
        """Logs, once, that a name of ``other`` is not offered because ``owner`` has it."""
        if (name, other) not in self._logged and len(self._logged) < MOST_COLLISIONS:
            self._logged.add((name, other))
            log.warning(
                f"a {self._what} is not offered: another server behind the gateway has its name; set a prefix",
                name=printable(name, _SHOWN),
                upstream=other,
                owner=owner,
            )
