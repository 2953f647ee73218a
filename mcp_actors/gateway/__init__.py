"""A gateway: many servers as one.

`gateway` has the class, and `live` the upstreams for the length of one `serve`; `description` says what the gateway
is, and `configured` makes gateways of configurations, and bridges. `forwarding` passes requests on, `lists` knows what
there is and whose it is, `upstream` is one server, and `questions` are what it asks the client. Each group uses those
after it.
"""

from __future__ import annotations

from mcp_actors.gateway.configured import bridge_to, configured_gateway, upstreams_of
from mcp_actors.gateway.gateway import Gateway
from mcp_actors.gateway.upstream.settings import SessionPolicy, Upstream, UpstreamTarget
from mcp_actors.gateway.upstream.statistics import UpstreamStatistics

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
