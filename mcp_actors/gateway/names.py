"""The names of tools, prompts and resources in the gateway: how they are made, and which upstream owns each.

The names of an upstream and those that they have in the gateway (`NameTable`) are a bijection on what is offered: a
name of the gateway leads to one name of the upstream and back. A tool or prompt that is renamed has its new name alone,
and if another one would get the same by the prefix, that is not offered. URIs are never changed, since results contain
them too; patterns alone say which are offered.

Where several upstreams have one of the same name (`NameClaims`), the first one that listed it owns it for as long as it
lists it, and while it is away. So a name never changes its meaning: not when another upstream lists the same, whatever
its place, and not when its owner is away for a while. Upstreams that are listed together are asked in the order in
which they were given.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

import attrs

from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable

__all__ = ["LONGEST_NAME", "Claim", "NameClaims", "NameTable", "is_advised"]

# Names that some clients take: of these characters, and no more of them. Model providers are stricter than MCP.
LONGEST_NAME = 64
_ADVISED = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
# Characters of a name that the log shows.
_SHOWN = 200
# Collisions that are remembered, so that each is logged once. Later ones are not logged.
MOST_COLLISIONS = 1000


class NameTable:
    """The names of one upstream.

    Args:
        settings: The settings of the upstream.

    Raises:
        ValueError: Two things are renamed alike, or to nothing.
    """

    def __init__(self, settings: Upstream) -> None:
        self._prefix = settings.name_prefix
        self._renamed = dict(settings.rename)
        self._named = {outside: own for own, outside in self._renamed.items()}
        if len(self._named) < len(self._renamed):
            raise ValueError(f"upstream {settings.name!r}: two names are renamed to the same one")
        if "" in self._named:
            raise ValueError(f"upstream {settings.name!r}: {self._named['']!r} is renamed to nothing")
        self._included = _pattern(settings.include, settings.name)
        self._excluded = _pattern(settings.exclude, settings.name)

    def __repr__(self) -> str:
        return f"<NameTable {self._prefix!r} renamed={len(self._renamed)}>"

    def outside(self, own: str) -> str | None:
        """Returns the name in the gateway of a tool or prompt, ``None`` if it is not offered."""
        if not own or not self.is_offered(own):
            return None
        renamed = self._renamed.get(own)
        if renamed is not None:
            return renamed
        name = self._prefix + own
        return None if name in self._named else name

    def own(self, outside: str) -> str | None:
        """Returns the upstream's name of what the gateway calls ``outside``, ``None`` if that cannot be its."""
        own = self._named.get(outside)
        if own is None:
            if not outside.startswith(self._prefix):
                return None
            own = outside[len(self._prefix) :]
            if own in self._renamed:
                return None
        return own if own and self.is_offered(own) else None

    def is_offered(self, own: str) -> bool:
        """Whether the patterns let a name or a URI of the upstream be seen and used."""
        return self._included.match(own) is not None and not self.is_excluded(own)

    def is_excluded(self, own: str) -> bool:
        """Whether a pattern forbids a name or a URI, whatever includes it."""
        return self._excluded.match(own) is not None


def is_advised(name: str) -> bool:
    """Whether all known clients take a tool or prompt of this name."""
    return _ADVISED.fullmatch(name) is not None


def _pattern(patterns: Iterable[str], upstream: str) -> re.Pattern[str]:
    if isinstance(patterns, str):
        raise ValueError(f"upstream {upstream!r}: {patterns!r} is a text: write a list of patterns")
    # Without a pattern nothing matches.
    return re.compile("|".join(fnmatch.translate(each) for each in patterns) or r"(?!)")


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
