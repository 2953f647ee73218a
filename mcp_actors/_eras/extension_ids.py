"""The ids of extensions (SEP-2133)."""

from __future__ import annotations

import re

__all__ = ["check_id"]

# A reverse domain as prefix, a slash and a name, both as keys of _meta have them.
_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_ID = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_id(id: object) -> str:
    """Returns an extension's id; raises `ValueError` for what is none."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise ValueError(f'{id!r:.80} is no id of an extension: write one such as "com.example/name"')
    return id
