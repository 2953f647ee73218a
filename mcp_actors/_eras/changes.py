"""The kinds of changes on a server, and the notification of each, which is the same in both eras."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

__all__ = ["ACKNOWLEDGED", "KIND_OF_METHOD", "METHOD_OF_KIND", "Event", "EventKind", "shared_kinds"]

EventKind = Literal["tools", "prompts", "resources", "resource_updated"]
"""The subject of a change: one of the lists, or one resource."""


class Event(msgspec.Struct, frozen=True):
    """A change of a list (``uri`` is ``None``) or of the resource ``uri``."""

    kind: EventKind
    uri: str | None = None


METHOD_OF_KIND: dict[EventKind, str] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "resource_updated": "notifications/resources/updated",
}

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

KIND_OF_METHOD = {method: kind for kind, method in METHOD_OF_KIND.items()}


@cache
def shared_kinds(kinds: frozenset[EventKind]) -> frozenset[EventKind]:
    """Returns the one set of these kinds that all sessions have, since a set for each of them would be large."""
    return kinds
