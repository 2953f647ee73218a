"""Texts of peers as people may see them: a terminal obeys some characters, and others turn the writing round."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, longest: int) -> str:
    """Returns the first ``longest`` characters of a text, with ``?`` for each that is not printable, as a line feed."""
    cut = text[:longest]
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)
