"""The hierarchy of scopes: a broad one implies narrow ones (MCP 2026-07-28, Authorization, Step-Up Authorization)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

__all__ = ["checked_scopes", "closure_of", "closures"]

# RFC 6749 section 3.3.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Returns the scopes, each once, in their order.

    Raises:
        ValueError: One has characters that no scope has, or is ``offline_access``, which is between a client and its
            authorization server (MCP 2026-07-28, Authorization, Refresh Tokens).
        TypeError: They are one text: give a set or a list.
    """
    if isinstance(scopes, str):
        raise TypeError(f"scopes is the text {scopes!r}: give a set or a list of scopes")
    found = tuple(dict.fromkeys(scopes))
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"{scope!r} is no scope: it has characters that no scope has")
        if scope == "offline_access":
            raise ValueError("offline_access is no scope of a server: its authorization server grants it")
    return found


def closures(implies: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Returns everything that each scope implies, over any number of steps, itself included. Circles do no harm."""
    found = {}
    for scope in implies:
        reached, waiting = {scope}, [scope]
        while waiting:
            new = set(implies.get(waiting.pop(), ())) - reached
            reached |= new
            waiting += new
        found[scope] = frozenset(reached)
    return found


def closure_of(scopes: Iterable[str], implied: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Returns the scopes and everything that they imply; ``implied`` is what `closures` returned."""
    granted = frozenset(scopes)
    return granted.union(*(implied[each] for each in granted & implied.keys()))
