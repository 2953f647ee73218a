"""Roots: the directories and files that a client names to a server."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = ["ListRootsParams", "ListRootsResult", "Root"]


@attrs.define(eq=False, repr=False)
class Root(Vocabulary):
    """A ``file://`` URI. It is information for the server, which must check paths itself."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ListRootsParams(Vocabulary):
    """Params of ``roots/list``."""

    method: ClassVar[Literal["roots/list"]] = "roots/list"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ListRootsResult(Vocabulary):
    """Result of ``roots/list``."""

    roots: list[Root]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
