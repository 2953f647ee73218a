"""Which era a message belongs to, on a connection that carries both (stdio, sockets, memory, WebSocket).

==========================================================  =================================================
a request with a protocol version in its ``_meta``          modern, judged by itself, even beside a legacy session
``server/discover`` without it                              modern but malformed: -32602
everything else                                             legacy: the connection is one session
==========================================================  =================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_actors._eras.era import Era, Invocation, Method
from mcp_actors._eras.legacy.conversation import LegacyConversation
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import VERSION
from mcp_actors._eras.modern.opening import open_request
from mcp_actors._wire.codec import decode_value
from mcp_actors._wire.envelope import Request
from mcp_actors.errors import INVALID_PARAMS, INVALID_REQUEST, RpcError

__all__ = ["VERSIONS", "ServerOpening", "era_of", "params_of"]

# Oldest first; the last one is preferred.
VERSIONS: tuple[str, ...] = (*LEGACY, *MODERN)


def era_of(version: str) -> Era:
    """The era value of a known revision; `KeyError` for an unknown one."""
    return LEGACY[version] if version in LEGACY else MODERN[version]


def params_of(request: Any) -> dict[str, Any]:
    """The decoded ``params`` of a request or notification, always a fresh dict; absent ones are empty."""
    if request.params is None:
        return {}
    params = decode_value(request.params)
    if type(params) is not dict:
        raise RpcError(INVALID_PARAMS, "params must be an object")
    return params


class ServerOpening:
    """Turns the requests of one connection into invocations: one legacy conversation, any number of modern requests.

    ``on_operating`` is called once, when the legacy client is past its handshake.
    """

    def __init__(
        self,
        versions: Sequence[str],
        custom: Mapping[str, Method],
        on_operating: Callable[[], None] = lambda: None,
    ) -> None:
        self.versions = tuple(versions)
        self.legacy_served = tuple(v for v in versions if v in LEGACY)
        self.modern_served = tuple(v for v in versions if v in MODERN)
        self.custom = custom
        self.legacy = LegacyConversation(self.legacy_served, on_operating)

    def open(self, request: Request) -> Invocation:
        """Raises `RpcError`, ready to be sent, for a request that cannot be run."""
        params = params_of(request)
        name = request.method
        meta = params.get("_meta")
        if (type(meta) is dict and VERSION in meta) or name == "server/discover":
            return open_request(
                request.id,
                name,
                params,
                served=self.modern_served,
                supported=self.versions,
                method=self.custom.get(name),
            )
        if not self.legacy_served:
            raise RpcError(
                INVALID_REQUEST,
                f"this server needs {VERSION} in _meta; supported: {', '.join(self.versions)}",
                {"supported": list(self.versions)},
            )
        return self.legacy.open(request.id, name, params, self.custom.get(name))

    def notified(self, name: str) -> None:
        """Takes note of a notification that moves the legacy lifecycle."""
        self.legacy.notified(name)

    @property
    def batches(self) -> bool:
        """Whether the agreed revision has JSON-RPC batches."""
        return self.legacy.era is not None and self.legacy.era.batches
