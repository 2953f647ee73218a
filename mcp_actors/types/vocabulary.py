"""The base of the vocabulary."""

from __future__ import annotations

from mcp_actors._record import ValueRecord

__all__ = ["Vocabulary"]


class Vocabulary(ValueRecord):
    """An object of the protocol. Its attributes may change, so it has no hash."""

    __slots__ = ()

    __hash__ = None  # type: ignore[assignment]
