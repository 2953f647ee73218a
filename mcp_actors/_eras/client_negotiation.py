"""The client's side of the eras: what its requests say about it, and which requests a server may send to it."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.era import Era, Invocation, NotAnswered, Peer
from mcp_actors._eras.legacy.eras import LATEST_LEGACY
from mcp_actors._eras.legacy.session_state import open_method
from mcp_actors._eras.server_negotiation import params_of
from mcp_actors._wire.messages import JsonRpcRequest
from mcp_actors.errors import MethodNotFound
from mcp_actors.types import ClientCapabilities, Implementation

__all__ = ["ClientNegotiation", "request_meta"]


def request_meta(
    era: Era, info: Implementation, capabilities: ClientCapabilities, log_level: str | None
) -> dict[str, Any]:
    """Returns what every request of a client carries in its ``_meta`` about that client; see `ClientRules`."""
    return era.client.request_meta(
        era.version, era.unstructure(capabilities), era.unstructure(info), log_level
    )


class ClientNegotiation:
    """Checks the requests that a server sends: only legacy servers may, and before the handshake only pings.

    MCP 2025-11-25, Lifecycle, Initialization; in MCP 2026-07-28 servers send no requests, and clients no responses.
    """

    def __init__(self) -> None:
        self.era: Era | None = None

    @property
    def batches(self) -> bool:
        return self.era is not None and self.era.batches

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Returns the request as an invocation.

        Raises:
            RpcError: This revision does not let a server ask for it.
            NotAnswered: This revision does not let a server ask for anything.
        """
        era = self.era or LATEST_LEGACY
        if era.name != "legacy":
            raise NotAnswered(request.method)
        method = era.client_methods.get(request.method)
        if method is None or (self.era is None and request.method != "ping"):
            raise MethodNotFound(request.method)
        return open_method(era, method, request.id, params_of(request), Peer(era, {}, None, None))

    def notified(self, name: str) -> None:
        """Does nothing: a client's lifecycle is moved by its own requests only."""
