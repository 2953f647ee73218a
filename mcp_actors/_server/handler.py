"""What a capability gives the engine for each protocol method, and what it reads of the call it serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs

from mcp_actors._actors.inbound_call import DEFERRED, Deferred
from mcp_actors._eras.era import Era, Peer
from mcp_actors.errors import invalid_params

__all__ = ["DEFERRED", "Deferred", "Handler", "Invoked", "string_param"]


class Invoked(Protocol):
    """The part of `Context` that handlers read. What a user's function is handed is this very object."""

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


@attrs.frozen(eq=False)
class Handler:
    """How one protocol method is answered.

    ``run`` is awaited in a task of its own. ``inline``, where there is one, is tried first, in the session's own
    turn: it returns a result without waiting for anything, raises as ``run`` would, or returns `DEFERRED`, which
    means that nothing was run.
    """

    run: Callable[[Any], Awaitable[Any]]
    inline: Callable[[Any], Any] | None = None


def string_param(params: Mapping[str, Any], name: str) -> str:
    """The required string member ``name`` of ``params``; raises `RpcError` (-32602) when it is none."""
    value = params.get(name)
    if type(value) is not str:
        raise invalid_params(f"{name!r} must be a string")
    return value
