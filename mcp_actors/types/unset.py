"""The marker for a member that is absent where ``None`` would be a value."""

from __future__ import annotations

import enum
from typing import Final, Literal

__all__ = ["UNSET", "Unset"]


class Unset(enum.Enum):
    """Has one member, `UNSET`: an enum, so that type checkers can narrow ``value is UNSET``."""

    UNSET = "UNSET"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Absent. Only members for which JSON ``null`` is a legal value have it as their default."""
