"""The routes of an HTTP listener beside MCP: plain functions, ASGI applications, and its own health.

::

    from mcp_transports.http.server import HttpServerTransport, Request, health

    def version(request: Request) -> dict[str, str]:
        return {"version": "1.2"}

    HttpServerTransport("http://127.0.0.1:8000/mcp", routes={"/health": health, "/version": version, "/app": app})

A key is a path, and its value one of these:

- a function of one argument, the `Request`, ``def`` or ``async def``. It returns text, bytes, a dict or a list (JSON),
  ``None`` (204), or a `Reply`. At ``"/path"`` it answers GET and HEAD; at ``"POST /path"``, or with any other method
  before the path, it answers that method. An ``async def`` runs on the event loop, a ``def`` in a worker thread, of
  which there are 20 for all routes of a listener;
- an ASGI application: anything callable with three arguments, scope, receive and send. It gets every method of
  ``"/path"`` and of all paths below it, with ``root_path`` set; at ``"/"`` it gets every path that nothing else has. It
  runs on Trio. It is started before the listener and shut down behind it, within 10 seconds. WebSockets are not
  offered: a request for one reaches it as the GET that it is;
- `health`.

The paths of MCP are found first, then those of functions, then the longest of those of applications.

``Host`` and ``Origin`` are checked as for MCP, except for `health`. Who sent a request is **not**: routes are open to
everybody who may reach the listener, whatever ``auth`` or ``authenticate`` demand for MCP. The body of a request is
complete before a route is asked, and no longer than ``HttpLimits.body_bytes``. What a route raises is logged and
answered with 500. When a client leaves, its route is cancelled; a thread runs on to its end, with its place among the
20. A server that was stopped waits for its calls of MCP, and then cancels what routes still do.
"""

from __future__ import annotations

from mcp_actors.abc.asgi import AsgiApplication
from mcp_transports.http.server.routes.answers import Answer, Reply
from mcp_transports.http.server.routes.health import HealthRoute, health
from mcp_transports.http.server.routes.lifespans import RouteStartFailed
from mcp_transports.http.server.routes.metrics import metrics_page
from mcp_transports.http.server.routes.table import Routes

__all__ = [
    "Answer",
    "AsgiApplication",
    "HealthRoute",
    "Reply",
    "RouteStartFailed",
    "Routes",
    "health",
    "metrics_page",
]
