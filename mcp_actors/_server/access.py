"""The caller of a call, the request over HTTP that brought it, and the check of its scopes."""

from __future__ import annotations

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors.abc import HttpRequest
from mcp_actors.errors import InsufficientScope
from mcp_actors.principal import Principal

__all__ = ["check_scopes", "principal_of", "request_of"]


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


def check_scopes(call: InboundCall, needed: frozenset[str]) -> None:
    """Checks that the caller has all ``needed`` scopes.

    A binding that authenticates nobody, such as stdio, has no scopes to check: its peer is the user. A caller over HTTP
    or a WebSocket that is not authenticated has none.

    Raises:
        InsufficientScope: One is missing.
    """
    if needed:
        principal = principal_of(call)
        if principal is None and request_of(call) is None:
            return
        if principal is None or not needed <= principal.scopes:
            raise InsufficientScope(needed)
