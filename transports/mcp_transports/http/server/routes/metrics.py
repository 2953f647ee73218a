"""The metrics of a server, as Prometheus scrapes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.routes.answers import Reply

__all__ = ["metrics_page"]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS = (("cache-control", "no-store"),)


class MetricsText(Protocol):
    """The metrics of a server, such as `mcp_actors.telemetry.Metrics`."""

    def text(self) -> str:
        """Returns them in the text format of Prometheus, 0.0.4; legal in any thread."""


def metrics_page(metrics: MetricsText) -> Callable[[Request], Reply]:
    """Returns the handler of a route that shows metrics: ``routes={"/metrics": metrics_page(metrics)}``.

    It answers GET and HEAD as other routes do: with the names by which the listener is served, and without a token. It
    shows the names of tools and how often they are called, so a listener that is open to others gets none: serve it at
    one of its own. It runs in a worker thread, so a long page holds up no call. The connection ends behind it: of
    several processes that share the address, the next scrape may then reach another one.

    Args:
        metrics: What the server was given: ``Server(telemetry=metrics)``.
    """

    def page(request: Request) -> Reply:
        return Reply(metrics.text(), content_type=_CONTENT_TYPE, headers=_HEADERS, closes=True)

    return page
