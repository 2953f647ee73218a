"""Roots: the places that a client lets a server look at."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

__all__ = ["ListRootsParams", "ListRootsResult", "Root"]


@attrs.define
class Root:
    """A ``file://`` URI. It is guidance, not a guard: the server checks paths itself."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListRootsParams:
    """Asks the client for its roots."""

    method: ClassVar[Literal["roots/list"]] = "roots/list"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListRootsResult:
    """The client's roots."""

    roots: list[Root]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
