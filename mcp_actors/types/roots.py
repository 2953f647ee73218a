"""Roots: the directories and files that a client names to a server."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

__all__ = ["ListRootsParams", "ListRootsResult", "Root"]


@attrs.define
class Root:
    """A ``file://`` URI. It is information for the server, which must check paths itself."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListRootsParams:
    """Params of ``roots/list``."""

    method: ClassVar[Literal["roots/list"]] = "roots/list"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListRootsResult:
    """Result of ``roots/list``."""

    roots: list[Root]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
