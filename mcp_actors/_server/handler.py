"""The handler that a feature has for each protocol method, and the part of a call that handlers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mcp_actors._actors.continuation import Continuation
from mcp_actors._eras.era import Era, Peer
from mcp_actors._uri.template import LONGEST_URI
from mcp_actors.errors import invalid_params

__all__ = ["Continuation", "Handler", "Invoked", "string_param", "uri_param"]

# Answers one protocol method: called with a `Context`, in the turn of whoever read the request, it returns the result,
# or a `Continuation` if the call needs a task. It raises `RpcError` for what cannot be answered.
Handler = Callable[[Any], Any]


class Invoked(Protocol):
    """The part of `Context` that handlers read. A user's function is handed the same object."""

    @property
    def params(self) -> dict[str, Any]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def era(self) -> Era: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def server(self) -> Any: ...


def string_param(params: Mapping[str, Any], name: str) -> str:
    """Returns the required string member ``name`` of ``params``; raises `RpcError` (-32602) when it is none."""
    value = params.get(name)
    if type(value) is not str:
        raise invalid_params(f"{name!r} must be a string")
    return value


def uri_param(params: Mapping[str, Any]) -> str:
    """Returns the member ``uri`` of ``params``; raises `RpcError` (-32602) when it is no string or too long."""
    uri = string_param(params, "uri")
    if len(uri) > LONGEST_URI:
        raise invalid_params(f"'uri' has {len(uri)} characters, the limit is {LONGEST_URI}")
    return uri
