"""The error of a load."""

from __future__ import annotations

__all__ = ["LoadError"]


class LoadError(Exception):
    """The server did not answer correctly, so there is no figure."""
