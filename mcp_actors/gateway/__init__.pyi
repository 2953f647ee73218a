"""The types of the public names, which are loaded late: see ``__init__.py``."""

from mcp_actors._server.runtime import UpstreamStatistics
from mcp_actors.gateway.gateway import Gateway, bridge_to, configured_gateway, upstreams_of
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
