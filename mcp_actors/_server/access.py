"""The caller of a call, and the request over HTTP that brought it."""

from __future__ import annotations

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors.abc import HttpRequest
from mcp_actors.principal import Principal

__all__ = ["principal_of", "request_of"]


def request_of(call: InboundCall) -> HttpRequest | None:
    """Returns the HTTP request that brought a call, ``None`` with other bindings."""
    return getattr(call.outlet, "http_request", None)


def principal_of(call: InboundCall) -> Principal | None:
    """Returns the caller, ``None`` if the binding authenticates nobody.

    The owner of a session may show another token with each request: the scopes are those of the latest.
    """
    request = request_of(call)
    if request is not None and request.principal is not None:
        return request.principal
    return call.invocation.principal
