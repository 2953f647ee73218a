"""The health of a server, as orchestrators and load balancers ask for it."""

from __future__ import annotations

from mcp_actors.abc import ServerHandler
from mcp_transports.http.server.routes.answers import Reply

__all__ = ["HealthRoute", "health"]

# No cache may answer in place of the server.
_HEADERS = (("cache-control", "no-store"),)


class HealthRoute:
    """The handler that a route is given as `health`. It answers GET and HEAD, of anybody and for any ``Host``.

    Load balancers ask at an address, and send it as ``Host``, so the names that are served do not matter here. The
    answer is a JSON object that tells nothing else of the server:

    - ``live``: always true, since it was answered.
    - ``draining``: whether the server was stopped and lets calls in flight end. A listener with this route accepts
      connections until they have ended, so that it can say so; new work is answered with 503.
    - ``ready``: whether it takes new work. It answers before nothing else does: a listener accepts connections once
      everything was started, and what is asked before is refused a connection.

    The status is 200 when it is ready, and 503 when not. Shared state that is away for a while does not make a node
    unready: what needs no state is served on, and all nodes would leave their load balancer at once.
    """

    def __repr__(self) -> str:
        return "<health>"

    def reply(self, handler: ServerHandler) -> Reply:
        """Returns what is true now."""
        draining = handler.stopping.is_set()
        state = {"live": True, "ready": not draining, "draining": draining}
        return Reply(state, 503 if draining else 200, headers=_HEADERS)


health = HealthRoute()
"""The handler of a route that says how the server is: ``routes={"/health": health}``."""
