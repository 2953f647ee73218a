"""Says which upstream a name belongs to, and what it is called there."""

from __future__ import annotations

import attrs

from mcp_actors.gateway.live import LiveUpstreams
from mcp_actors.gateway.upstream import UpstreamActor

__all__ = ["Route", "tool_route"]


@attrs.frozen
class Route:
    """The upstream that a request is for, and the name or URI that it has there."""

    upstream: UpstreamActor
    target: str


def tool_route(live: LiveUpstreams, name: str) -> Route | None:
    """Returns the route of a tool by the name that it has in the gateway, ``None`` if no upstream can have it."""
    for actor in live.actors.values():
        prefix = actor.settings.name_prefix
        if name.startswith(prefix):
            return Route(actor, name[len(prefix) :])
    return None
