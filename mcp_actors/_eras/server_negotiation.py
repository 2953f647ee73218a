"""The era of each message on a connection that carries both (stdio, sockets, memory, WebSocket).

==========================================================  =================================================
a request with a protocol version in its ``_meta``          modern, judged by itself, even beside a legacy session
``server/discover`` without it                              modern but malformed: -32602
everything else                                             legacy: the connection is one session
==========================================================  =================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_actors._eras.classify import Classified
from mcp_actors._eras.era import Era, Invocation, Method, Peer
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.legacy.session_state import LegacySessionState, open_method
from mcp_actors._eras.modern.annotations import MirroredParam
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import CAPABILITIES, CLIENT_INFO, VERSION
from mcp_actors._eras.modern.mirror import VERSION_HEADER
from mcp_actors._eras.modern.request import open_request
from mcp_actors._wire.codec import decode_value
from mcp_actors._wire.messages import JsonRpcRequest
from mcp_actors.budget import Account
from mcp_actors.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    HeaderMismatch,
    MethodNotFound,
    RpcError,
    UnsupportedVersion,
)
from mcp_actors.principal import Principal

__all__ = ["VERSIONS", "ExchangeNegotiation", "ServerNegotiation", "era_of", "params_of", "with_sessions"]

# Oldest first; the last one is preferred.
VERSIONS: tuple[str, ...] = (*LEGACY, *MODERN)
# What a message speaks that names no version outside its body although it might: the last revision without the header.
UNSAID_VERSION = "2025-03-26"


def era_of(version: str) -> Era:
    """The era value of a known revision; `KeyError` for an unknown one."""
    return LEGACY[version] if version in LEGACY else MODERN[version]


def with_sessions(versions: Sequence[str]) -> tuple[str, ...]:
    """Returns those of ``versions`` that have sessions, for bindings which exist in these only."""
    return tuple(version for version in versions if version in LEGACY)


def params_of(request: Any) -> dict[str, Any]:
    """The decoded ``params`` of a request or notification, always a fresh dict; absent ones are empty."""
    if request.params is None:
        return {}
    params = decode_value(request.params)
    if type(params) is not dict:
        raise RpcError(INVALID_PARAMS, "params must be an object")
    return params


class ServerNegotiation:
    """Turns the requests of one connection into invocations: one legacy conversation, any number of modern requests.

    ``on_operating`` is called once, when the legacy client is past its handshake. ``principal`` is who the transport
    has authenticated for all of them. ``account`` is charged for what is kept of the legacy client.
    """

    def __init__(
        self,
        versions: Sequence[str],
        custom: Mapping[str, Method],
        on_operating: Callable[[], None] = lambda: None,
        mirrored_params: Callable[[str], Sequence[MirroredParam]] = lambda tool: (),
        principal: Principal | None = None,
        account: Account | None = None,
    ) -> None:
        self.principal = principal
        self.versions = tuple(versions)
        self.legacy_served = tuple(v for v in versions if v in LEGACY)
        self.modern_served = tuple(v for v in versions if v in MODERN)
        headerless = [version for version in self.legacy_served if version <= UNSAID_VERSION]
        self.unsaid_version = max(headerless, default=UNSAID_VERSION)
        """The revision of a request that came by itself and names none: one that is served, if there is one."""
        self.custom = custom
        self.mirrored_params = mirrored_params
        self.legacy = LegacySessionState(self.legacy_served, on_operating, account)

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Raises `RpcError`, ready to be sent, for a request that cannot be run."""
        invocation = self._opened(request)
        if self.principal is not None:
            invocation.principal = self.principal
        return invocation

    def _opened(self, request: JsonRpcRequest) -> Invocation:
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

    def open_alone(self, request: JsonRpcRequest, era: str, metadata: Mapping[str, str]) -> Invocation:
        """Opens a request that came without a connection and belongs to no session; see `classify` for its era."""
        params = params_of(request)
        custom = self.custom.get(request.method)
        if era == "modern":
            return open_request(
                request.id,
                request.method,
                params,
                served=self.modern_served,
                supported=self.versions,
                method=custom,
                metadata=metadata,
                mirrored_params=self.mirrored_params,
            )
        if request.method == "initialize":
            return LegacySessionState(self.legacy_served).open(request.id, request.method, params, custom)
        version = metadata.get(VERSION_HEADER, self.unsaid_version)
        if version not in self.legacy_served:
            raise RpcError(
                INVALID_REQUEST,
                f"this version is not served here; supported: {', '.join(self.versions)}",
                {"supported": list(self.versions)},
            )
        legacy = LEGACY[version]
        method = custom or legacy.server_methods.get(request.method)
        if method is None:
            raise MethodNotFound(request.method)
        # Without a session nobody remembers what the client can do, and nothing could reach it.
        return open_method(legacy, method, request.id, params, Peer(legacy, {}, None, None))

    def notification(
        self, method: Method, params: dict[str, Any], version: str | None = None
    ) -> Invocation | None:
        """Opens a notification of a client for the function that takes it, in the form of an invocation.

        It belongs to the revision that its ``_meta`` names, or to ``version``; else to the legacy session of this
        connection; else to the newest stateless revision.

        Args:
            method: The method of the notification.
            params: Its params; ``_meta`` is taken out.
            version: The revision that was mirrored outside the body.

        Returns:
            The invocation, ``None`` if its revision is not served.
        """
        meta = params.pop("_meta", None)
        meta = meta if type(meta) is dict else {}
        named = meta.get(VERSION, version)
        if named is None and self.legacy.peer is not None:
            peer = self.legacy.peer
        else:
            named = named if named is not None or not self.modern_served else self.modern_served[-1]
            if named not in self.versions:
                return None
            declared = meta.get(CAPABILITIES)
            peer = Peer(
                era_of(named), declared if type(declared) is dict else {}, meta.get(CLIENT_INFO), None
            )
        invocation = Invocation(peer.era, method, params, meta, peer, method.name, None, peer.log_level)
        invocation.principal = self.principal
        return invocation

    def version_missing(self) -> RpcError:
        """Returns the error that a server without sessions sends for a message that names no version."""
        error = HeaderMismatch(
            f"header mismatch: {VERSION_HEADER} is missing; supported: {', '.join(self.versions)}"
        )
        error.data = {"supported": list(self.versions)}
        return error

    def notified(self, name: str) -> None:
        """Takes note of a notification that moves the legacy lifecycle."""
        self.legacy.notified(name)

    @property
    def batches(self) -> bool:
        """Whether the agreed revision has JSON-RPC batches."""
        return self.legacy.era is not None and self.legacy.era.batches


class ExchangeNegotiation:
    """Opens what came by itself, outside of any session. The era is that into which it was classified."""

    __slots__ = ("_address", "_arrival", "_principal", "_server")

    def __init__(
        self, server: ServerNegotiation, arrival: Classified, principal: Principal | None, address: str | None
    ) -> None:
        self._server = server
        self._arrival = arrival
        self._principal = principal
        self._address = address

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Raises `RpcError`, ready to be sent, for a request that cannot be run."""
        invocation = self._server.open_alone(request, self._arrival.era, self._arrival.metadata)
        invocation.principal = self._principal
        invocation.address = self._address
        return invocation

    @property
    def batches(self) -> bool:
        """Whether a batch may come without a session."""
        version = self._arrival.metadata.get(VERSION_HEADER, self._server.unsaid_version)
        return version in self._server.legacy_served and LEGACY[version].batches

    def notification(self, method: Method, params: dict[str, Any]) -> Invocation | None:
        """Opens a notification that came by itself; ``None`` if its revision is not served."""
        version = self._arrival.metadata.get(VERSION_HEADER, self._server.unsaid_version)
        invocation = self._server.notification(method, params, version)
        if invocation is not None:
            invocation.principal = self._principal
        return invocation

    def notified(self, name: str) -> None:
        """Nothing is remembered of a notification that came by itself."""

    def refusal(self) -> RpcError | None:
        """Returns the error for a notification that came by itself and is not accepted, else ``None``."""
        version = self._arrival.metadata.get(VERSION_HEADER)
        if not self._arrival.stateless or version in self._server.modern_served:
            return None
        if version is None:
            return self._server.version_missing()
        return UnsupportedVersion(version, list(self._server.versions))
