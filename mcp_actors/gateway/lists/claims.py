"""Says whose a name is, when several upstreams have one of the same name.

The first one that listed a name has it for as long as it lists it, and while it is away. So a name never changes its
meaning: not when another upstream lists the same, wherever that stands, and not when its owner is away for a while.
Upstreams that are listed together are asked in the order in which they were given.
"""

from __future__ import annotations

import attrs

from mcp_actors.logging import log
from mcp_actors.printable import printable

__all__ = ["Claim", "NameClaims"]

# Characters of a name that the log shows.
_SHOWN = 200
# Collisions that are remembered, so that each is logged once. Beyond them none is logged.
MOST_COLLISIONS = 1000


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
        self._what = what
        self._by_name: dict[str, Claim] = {}
        self._logged: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<NameClaims {len(self._by_name)} {self._what}s>"

    def __len__(self) -> int:
        return len(self._by_name)

    def owner(self, name: str) -> Claim | None:
        """Returns whose a name is, ``None`` if nobody has listed it."""
        return self._by_name.get(name)

    def claim(self, name: str, upstream: str, target: str) -> bool:
        """Counts one more list of ``upstream`` that has a name; returns whether the name is its, or another's."""
        claim = self._by_name.get(name)
        if claim is None:
            claim = self._by_name[name] = Claim(upstream, target)
            self.version += 1
        elif claim.upstream != upstream or claim.target != target:
            self.collided(name, claim.upstream, upstream)
            return False
        claim.lists += 1
        return True

    def release(self, name: str) -> None:
        """Counts one list less that has a name; after the last one it is nobody's."""
        claim = self._by_name[name]
        claim.lists -= 1
        if not claim.lists:
            del self._by_name[name]
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
