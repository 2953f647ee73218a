"""The names that the tools, prompts and resources of a server have in another one that offers them.

The names of a server and those that they have there are a bijection on what is offered: a name there leads to one name
here and back. A tool or prompt that is renamed has its new name alone, and if another one would get the same by the
prefix, that is not offered. URIs are not changed, since results contain them too; patterns alone say which are
offered. Those of skills and of the pages of apps are an exception: two servers that know nothing of each other give
them the same ones. What a skill says leads to its other files whatever lies above it (SEP-2640, Skill URIs), and a page
is named by its tool, of which the ``_meta`` is changed as well (SEP-1865, Resource Discovery).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mcp_actors.types.apps import APP_SCHEME, app_uri_of, with_app_uri

__all__ = ["LONGEST_NAME", "NameTable", "is_advised"]


# Names that some clients take: of these characters, and no more of them. Model providers are stricter than MCP.
LONGEST_NAME = 64
_ADVISED = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")


class NameTable:
    """The names of one server inside another one.

    Args:
        of: Names the server in errors, such as ``"upstream 'a'"``.
        prefix: What the names begin with there.
        rename: Names that are others there, without the prefix.
        include: Patterns of the names and URIs that are offered, as of `fnmatch`.
        exclude: Patterns of those that are not, although they are included.
        tools: As ``rename``, for tools alone.
        folders: The folders that its skills and pages lie in there, by what their URIs begin with; without one they
            keep their URIs.

    Raises:
        ValueError: Two things are renamed alike, to nothing, or twice, or patterns are a text.
    """

    def __init__(
        self,
        of: str,
        prefix: str,
        rename: Mapping[str, str] = {},
        include: Collection[str] = ("*",),
        exclude: Collection[str] = (),
        tools: Mapping[str, str] = {},
        folders: Mapping[str, str] = {},
    ) -> None:
        twice = sorted(tools.keys() & rename.keys())
        if twice:
            raise ValueError(f"{of}: {twice[0]!r} is renamed twice")
        self.tools = NameTable(of, prefix, {**rename, **tools}, include, exclude) if tools else self
        """The names of tools, which may have others than prompts."""
        self._prefix = prefix
        self._folders = {scheme: f"{scheme}{folder}/" for scheme, folder in folders.items()}
        self._renamed = dict(rename)
        self._named = {outside: own for own, outside in self._renamed.items()}
        if len(self._named) < len(self._renamed):
            raise ValueError(f"{of}: two names are renamed to the same one")
        if "" in self._named:
            raise ValueError(f"{of}: {self._named['']!r} is renamed to nothing")
        self._included = _pattern(include, of)
        self._excluded = _pattern(exclude, of)

    def __repr__(self) -> str:
        return f"<NameTable {self._prefix!r} renamed={len(self._renamed)}>"

    def outside(self, own: str) -> str | None:
        """Returns the name of a tool or prompt in the other server, ``None`` if it is not offered."""
        if not own or not self.is_offered(own):
            return None
        renamed = self._renamed.get(own)
        if renamed is not None:
            return renamed
        name = self._prefix + own
        return None if name in self._named else name

    def own(self, outside: str) -> str | None:
        """Returns the own name of what the other server calls ``outside``, ``None`` if it cannot have one."""
        own = self._named.get(outside)
        if own is None:
            if not outside.startswith(self._prefix):
                return None
            own = outside[len(self._prefix) :]
            if own in self._renamed:
                return None
        return own if own and self.is_offered(own) else None

    def outside_uri(self, own: str) -> str | None:
        """Returns the URI of a resource in the other server, ``None`` if it is not offered."""
        if not self.is_offered(own):
            return None
        for scheme, folder in self._folders.items():
            if own.startswith(scheme):
                return folder + own[len(scheme) :]
        return own

    def own_uri(self, outside: str) -> str:
        """Returns the own URI of what the other server calls ``outside``.

        A skill may also be asked for by its own URI, as it stands in texts of its server.
        """
        for scheme, folder in self._folders.items():
            if outside.startswith(folder):
                return scheme + outside[len(folder) :]
        return outside

    def has_in_folder(self, outside: str) -> bool:
        """Whether the URI of a skill or a page in the other server can be of this server alone."""
        return any(outside.startswith(folder) for folder in self._folders.values())

    def may_have(self, outside: str) -> bool:
        """Whether a URI in the other server can be of this server: a page has no URI there but that in its folder."""
        folder = self._folders.get(APP_SCHEME)
        return folder is None or not outside.startswith(APP_SCHEME) or outside.startswith(folder)

    def outside_meta(self, meta: dict[str, Any] | None) -> dict[str, Any] | None:
        """Returns the ``_meta`` of a tool or of a result with the URI that its page has in the other server.

        A page that is not offered is left out.
        """
        own = app_uri_of(meta)
        outside = None if own is None else self.outside_uri(own)
        return meta if meta is None or own == outside else with_app_uri(meta, outside)

    def is_offered(self, own: str) -> bool:
        """Whether the patterns let a name or a URI be seen and used."""
        return self._included.match(own) is not None and not self.is_excluded(own)

    def is_excluded(self, own: str) -> bool:
        """Whether a pattern forbids a name or a URI, whatever includes it."""
        return self._excluded.match(own) is not None


def is_advised(name: str) -> bool:
    """Whether all known clients take a tool or prompt of this name."""
    return _ADVISED.fullmatch(name) is not None


def _pattern(patterns: Iterable[str], of: str) -> re.Pattern[str]:
    if isinstance(patterns, str):
        raise ValueError(f"{of}: {patterns!r} is a text: write a list of patterns")
    # Without a pattern nothing matches.
    return re.compile("|".join(fnmatch.translate(each) for each in patterns) or r"(?!)")
