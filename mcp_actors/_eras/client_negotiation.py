"""A client's side of the eras: what it writes into its requests, and what it makes of the server's."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.era import Era, Invocation, Peer
from mcp_actors._eras.legacy.eras import LATEST_LEGACY
from mcp_actors._eras.legacy.session_state import open_method
from mcp_actors._eras.modern.meta_keys import CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION
from mcp_actors._eras.server_negotiation import params_of
from mcp_actors._wire.messages import JsonRpcRequest
from mcp_actors.errors import MethodNotFound
from mcp_actors.types import ClientCapabilities, Implementation

__all__ = ["ClientNegotiation", "request_meta"]


def request_meta(
    era: Era, info: Implementation, capabilities: ClientCapabilities, log_level: str | None
) -> dict[str, Any]:
    """The ``_meta`` that every modern request carries; empty for a legacy one, whose session remembers it all."""
    if era.name == "legacy":
        return {}
    meta: dict[str, Any] = {
        VERSION: era.version,
        CAPABILITIES: era.unstructure(capabilities),
        CLIENT_INFO: era.unstructure(info),
    }
    if log_level is not None:
        meta[LOG_LEVEL] = log_level
    return meta


class ClientNegotiation:
    """Opens the requests that a server sends. Only legacy servers may, and before the handshake only pings."""

    def __init__(self) -> None:
        self.era: Era | None = None

    @property
    def batches(self) -> bool:
        return self.era is not None and self.era.batches

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Raises `RpcError` for what this revision does not let a server ask."""
        era = self.era or LATEST_LEGACY
        method = era.client_methods.get(request.method) if era.name == "legacy" else None
        if method is None or (self.era is None and request.method != "ping"):
            raise MethodNotFound(request.method)
        return open_method(era, method, request.id, params_of(request), Peer(era, {}, None, None))

    def notified(self, name: str) -> None:
        """A client's lifecycle is moved by its own requests only."""
