"""The marker for an absent member for which ``None`` would be a value."""

from __future__ import annotations

import enum
from typing import Final, Literal

__all__ = ["UNSET", "Unset"]


class Unset(enum.Enum):
    """The type of `UNSET`. It is an enum, so that type checkers narrow ``value is UNSET``."""

    UNSET = "UNSET"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Marks an absent member. It is the default of members for which JSON ``null`` is a legal value."""
