"""The time for which a client may keep a result, and who may share it. MCP 2026-07-28, Caching."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["CacheScope", "not_negative"]

CacheScope = Literal["public", "private"]


def not_negative(instance: object, field: Any, value: int | None) -> None:
    """Validates ``ttl_ms`` of a result that a program makes; what a peer sends is read as 0 if it is less.

    Raises:
        ValueError: The value is negative.
    """
    if value is not None and value < 0:
        raise ValueError(f"{field.name}={value!r}: write a number of milliseconds, or 0 to promise nothing")
