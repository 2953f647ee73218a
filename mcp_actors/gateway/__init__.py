"""A gateway: many servers as one.

`gateway` has the class, `upstream_settings` what is said of each server. `upstream` is the actor of one server and
`connection` one connection to it; `live` has all of them for the length of one `serve`. `routes` says which server a
name or URI belongs to, `lists` merges what they offer, and `forwarding` passes requests on. `configured` makes gateways
of configurations, and bridges.
"""

from __future__ import annotations

from mcp_actors.gateway.configured import bridge_to, configured_gateway, upstreams_of
from mcp_actors.gateway.gateway import Gateway
from mcp_actors.gateway.statistics import UpstreamStatistics
from mcp_actors.gateway.upstream_settings import SessionPolicy, Upstream, UpstreamTarget

__all__ = [
    "Gateway",
    "SessionPolicy",
    "Upstream",
    "UpstreamStatistics",
    "UpstreamTarget",
    "bridge_to",
    "configured_gateway",
    "upstreams_of",
]
