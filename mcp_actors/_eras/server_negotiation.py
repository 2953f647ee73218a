"""The server's side of negotiation: which era a message belongs to, and which it may be in the lifecycle of a session.

On a connection that carries both eras (stdio, sockets, memory, WebSocket), `ServerNegotiation` decides:

==========================================================  =================================================
a request with a protocol version in its ``_meta``          modern, judged by itself, even beside a legacy session
``server/discover`` without it                              modern but malformed: -32602
everything else                                             legacy: the connection is one session
==========================================================  =================================================

Of messages that arrive by themselves, as in HTTP, with what the client mirrored outside the body, `sort` decides by the
first row that fits:

======================================================  ================================================================
a mirrored version that is a modern one                 modern; a batch or an answer is refused: it has neither
a batch                                                 legacy
a request with a protocol version in its ``_meta``      modern, whatever its method is
a mirrored version that is a legacy one                 legacy
any other mirrored version                              modern, which refuses it by name; in a session just refused
it named a session                                      legacy
``initialize``                                          legacy
``server/discover`` or ``subscriptions/listen``, or     modern, which asks for the version
a mirrored method
anything else                                           legacy: sessions may be required, which the binding knows
======================================================  ================================================================

A server that serves one era only sorts everything into it, apart from what says itself that it is the other's.

The lifecycle of a session is the table `NEXT_STATE`, and nothing else decides which message is allowed in which state
(MCP 2025-11-25, Lifecycle; the same in earlier revisions):

* Before the result of ``initialize`` the client may send only ``initialize`` and ``ping``.
* ``initialize`` is sent once, and never in a batch. A proxy may repeat it with the same params, for a client of its
  own that it puts on this session: that is answered again. With others it would be another client, and is refused.
* After the result of ``initialize`` requests are accepted even before ``notifications/initialized``: over HTTP the
  two arrive in separate POSTs, which may overtake each other.
* Until ``notifications/initialized`` the server sends only pings and log messages. A request from the client counts
  as this notification, for clients that forget to send it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import msgspec

from mcp_actors._eras.era import Era, Invocation, Method, Peer
from mcp_actors._eras.legacy import DEFAULT_LOG_LEVEL, LEGACY, open_method
from mcp_actors._eras.modern import (
    CAPABILITIES,
    CLIENT_INFO,
    METHOD_HEADER,
    MODERN,
    VERSION,
    VERSION_HEADER,
    AcceptedMeta,
    MirroredParam,
    open_request,
)
from mcp_actors._wire.codec import (
    JsonRpcMessage,
    JsonRpcNotification,
    JsonRpcRequest,
    RequestId,
    decode_value,
    encode_value,
)
from mcp_actors.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    HeaderMismatch,
    MalformedMessage,
    MethodNotFound,
    Overloaded,
    RpcError,
    UnsupportedVersion,
)
from mcp_actors.supervision.budget import Account
from mcp_actors.supervision.principal import Principal

__all__ = [
    "NEXT_STATE",
    "VERSIONS",
    "Classified",
    "ExchangeNegotiation",
    "LegacySessionState",
    "LifecycleEvent",
    "LifecycleState",
    "Message",
    "ServerNegotiation",
    "era_of",
    "negotiate",
    "newest_era",
    "params_of",
    "sort",
    "with_sessions",
]


Message = JsonRpcMessage | list[JsonRpcMessage | MalformedMessage]

_VERSION_KEY = VERSION.encode()
_MODERN_ONLY = frozenset({"server/discover", "subscriptions/listen"})


class Classified(msgspec.Struct, frozen=True, gc=False):
    """Messages that arrived together, decoded, and their era."""

    message: Message
    era: Literal["legacy", "modern"]
    metadata: Mapping[str, str]
    requests: int
    initializes: bool
    refusal: None = None

    @property
    def stateless(self) -> bool:
        return self.era == "modern"


def sort(message: Message, metadata: Mapping[str, str], in_session: bool) -> Classified:
    """Raises `MalformedMessage`, ready to be answered, for what its era does not have."""
    era = _era(message, metadata, in_session)
    if isinstance(message, JsonRpcRequest):
        return Classified(message, era, metadata, 1, era == "legacy" and message.method == "initialize")
    owed = 0
    if isinstance(message, list):
        owed = sum(isinstance(each, (JsonRpcRequest, MalformedMessage)) for each in message)
    if era == "modern" and not isinstance(message, JsonRpcNotification):
        what = "a batch" if isinstance(message, list) else "an answer"
        raise MalformedMessage(f"{what} does not exist in this protocol version", code=INVALID_REQUEST)
    return Classified(message, era, metadata, owed, False)


def _era(message: Message, metadata: Mapping[str, str], in_session: bool) -> Literal["legacy", "modern"]:
    version = metadata.get(VERSION_HEADER)
    if version in MODERN:
        return "modern"
    if isinstance(message, list):
        return "legacy"
    if isinstance(message, JsonRpcRequest) and _names_version(message):
        return "modern"
    if version in LEGACY:
        return "legacy"
    if version is not None:
        if in_session:
            raise MalformedMessage(
                "MCP-Protocol-Version is not one that a session can have", code=INVALID_REQUEST
            )
        return "modern"
    if (
        in_session
        or not isinstance(message, (JsonRpcRequest, JsonRpcNotification))
        or message.method == "initialize"
    ):
        return "legacy"
    return "modern" if message.method in _MODERN_ONLY or METHOD_HEADER in metadata else "legacy"


def _names_version(request: JsonRpcRequest) -> bool:
    # Looking for the key first saves decoding what is decoded later anyway.
    if request.params is None or _VERSION_KEY not in bytes(request.params):
        return False
    params = decode_value(request.params)
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION in meta


# Oldest first; the last one is preferred.
VERSIONS: tuple[str, ...] = (*LEGACY, *MODERN)
# What a message speaks that names no version outside its body although it might: the last revision without the
# header.
UNSAID_VERSION = "2025-03-26"


def era_of(version: str) -> Era:
    """The era value of a known revision; `KeyError` for an unknown one."""
    return LEGACY[version] if version in LEGACY else MODERN[version]


def newest_era() -> Era:
    """The era value of the newest revision, whose vocabulary has everything."""
    return era_of(VERSIONS[-1])


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


# -- the legacy session of a connection ----------------------------------------------------------------------------

# The tutorials that show the bare method are wrong, but their clients are out there.
INITIALIZED = frozenset({"notifications/initialized", "initialized"})

# Bytes of a client's capabilities, and of its description, which a session keeps for as long as it lives: icons fit.
KEPT_BYTES = 64 * 1024
# Bytes of the params of a request without a session whose ``_meta`` is kept, to be compared with that of the next one.
KEPT_META_BYTES = 2048


class LifecycleState(Enum):
    """The states of a session on the server's side."""

    # The hash of Enum is written in Python, which is slow, and every request is looked up in the table.
    __hash__ = object.__hash__

    NEW = "new"
    ANSWERED = "answered"
    OPERATING = "operating"


class LifecycleEvent(Enum):
    """The messages of a client that the states tell apart."""

    __hash__ = object.__hash__

    INITIALIZE = "initialize"
    INITIALIZED = "notifications/initialized"
    PING = "ping"
    REQUEST = "any other request"


# A message is refused in a state if the pair is missing here.
NEXT_STATE: dict[tuple[LifecycleState, LifecycleEvent], LifecycleState] = {
    (LifecycleState.NEW, LifecycleEvent.INITIALIZE): LifecycleState.ANSWERED,
    (LifecycleState.NEW, LifecycleEvent.PING): LifecycleState.NEW,
    (LifecycleState.ANSWERED, LifecycleEvent.INITIALIZE): LifecycleState.ANSWERED,
    (LifecycleState.ANSWERED, LifecycleEvent.INITIALIZED): LifecycleState.OPERATING,
    (LifecycleState.ANSWERED, LifecycleEvent.PING): LifecycleState.ANSWERED,
    (LifecycleState.ANSWERED, LifecycleEvent.REQUEST): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.INITIALIZE): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.INITIALIZED): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.PING): LifecycleState.OPERATING,
    (LifecycleState.OPERATING, LifecycleEvent.REQUEST): LifecycleState.OPERATING,
}

# Named here because looking a member up in its Enum is a function call in Python 3.11, made for every request.
_INITIALIZE, _REQUEST = LifecycleEvent.INITIALIZE, LifecycleEvent.REQUEST
_EVENT_BY_METHOD = {"initialize": _INITIALIZE, "ping": LifecycleEvent.PING}


def negotiate(requested: str, served: Sequence[str]) -> Era:
    """The version that was asked for if it is served, else our newest: the client decides whether that fits it."""
    return LEGACY[requested if requested in served else served[-1]]


def _do_nothing() -> None:
    """Takes the beginning of a session that has ended."""


class LegacySessionState:
    """Turns a client's requests into invocations, or refuses them by the lifecycle table.

    ``on_operating`` is called once, when the server may begin to send messages unasked. ``account`` is charged for what
    is kept of the client; ``None`` where nothing is kept.
    """

    __slots__ = ("account", "era", "on_operating", "peer", "served", "state")

    def __init__(
        self,
        served: Sequence[str],
        on_operating: Callable[[], None] = _do_nothing,
        account: Account | None = None,
    ) -> None:
        self.served = served
        self.account = account
        self.on_operating = on_operating
        self.state = LifecycleState.NEW
        self.era: Era | None = None
        self.peer: Peer | None = None

    def __repr__(self) -> str:
        return f"<LegacySessionState {self.state.value} {self.era.version if self.era else '-'}>"

    def open(self, id: RequestId, name: str, params: dict[str, Any], method: Method | None) -> Invocation:
        """Raises `RpcError` for what the table, or the negotiated revision, does not allow.

        ``method`` overrides the revision's table: a custom method, which every revision tolerates.
        """
        event = _EVENT_BY_METHOD.get(name, _REQUEST)
        next_state, known = NEXT_STATE.get((self.state, event)), self.peer
        if next_state is None or (event is _INITIALIZE and known and not self._is_same(known, params)):
            raise RpcError(INVALID_REQUEST, self._refusal(event), {"supported": list(self.served)})
        if known is None and event is _INITIALIZE:
            peer = self._introduced(params)
        else:
            # Only a ping comes before initialize; every revision answers it alike.
            peer = known or Peer(LEGACY[self.served[-1]], {}, None, None)
        era = peer.era
        method = method or era.server_methods.get(name)
        if method is None:
            raise MethodNotFound(name)
        if "_meta" in params:
            invocation = open_method(era, method, id, params, peer)
        else:
            invocation = Invocation(era, method, params, {}, peer, id, None, peer.log_level)
        # Not before the request was found good: one that is refused moves nothing.
        if event is _INITIALIZE:
            self.era, self.peer = era, peer
        if next_state is not self.state:
            self._move(next_state)
        return invocation

    @property
    def wanted_log_level(self) -> str | None:
        """The least severe level that the client wants to hear, ``None`` before it has begun its session."""
        return None if self.peer is None else self.peer.log_level or DEFAULT_LOG_LEVEL

    def notified(self, name: str) -> None:
        if name in INITIALIZED:
            self._move(NEXT_STATE.get((self.state, LifecycleEvent.INITIALIZED), self.state))

    def go_on(
        self, version: str, capabilities: dict[str, Any], info: Any, log_level: str | None, *, operates: bool
    ) -> None:
        """Goes on with a session that was begun at another node, with what its client has said of itself there.

        Args:
            version: The revision, which is served here.
            capabilities: Those of the client.
            info: Its description of itself.
            log_level: The least severe level that it wants to hear, ``None`` if it has not said.
            operates: Whether it is past its handshake.

        Raises:
            Overloaded: Too many bytes would be kept of clients.
        """
        size = _size("capabilities", capabilities) + _size("clientInfo", info)
        if self.account is not None and (over := self.account.charge(size)) is not None:
            raise Overloaded.for_bytes("sessions", over, self.account.budget.limit_of(over))
        self.era = LEGACY[version]
        self.peer = Peer(self.era, capabilities, info, log_level)
        self.state = LifecycleState.ANSWERED
        if operates:
            self._move(LifecycleState.OPERATING)

    def end(self) -> None:
        """Ends the session. The callback refers to it, and it must not wait for the garbage collector."""
        self.on_operating = _do_nothing

    def _move(self, state: LifecycleState) -> None:
        begins = state is LifecycleState.OPERATING and self.state is not LifecycleState.OPERATING
        self.state = state
        if begins:
            self.on_operating()

    def _refusal(self, event: LifecycleEvent) -> str:
        if event is _INITIALIZE:
            return "this session is initialized already, by a client that describes itself otherwise"
        return f"send initialize first; supported protocol versions: {', '.join(self.served)}"

    def _is_same(self, known: Peer, params: dict[str, Any]) -> bool:
        requested = params.get("protocolVersion")
        return (
            isinstance(requested, str)
            and negotiate(requested, self.served) is known.era
            and params.get("capabilities", {}) == known.raw_capabilities
            and params.get("clientInfo") == known.raw_info
        )

    def _introduced(self, params: dict[str, Any]) -> Peer:
        requested, capabilities = params.get("protocolVersion"), params.get("capabilities", {})
        if not isinstance(requested, str):
            raise RpcError(INVALID_PARAMS, "initialize needs protocolVersion, a string")
        if not isinstance(capabilities, dict):
            raise RpcError(INVALID_PARAMS, "capabilities must be an object")
        info = params.get("clientInfo")
        size = _size("capabilities", capabilities) + _size("clientInfo", info)
        if self.account is not None and (over := self.account.charge(size)) is not None:
            raise Overloaded.for_bytes("sessions", over, self.account.budget.limit_of(over))
        return Peer(negotiate(requested, self.served), capabilities, info, None)


def _size(name: str, value: Any) -> int:
    """The bytes of what a session keeps of an ``initialize``; raises `RpcError` (-32602) if they are too many."""
    size = len(encode_value(value))
    if size > KEPT_BYTES:
        raise RpcError(INVALID_PARAMS, f"{name} has {size} bytes, the limit is {KEPT_BYTES}")
    return size


# -- connections and single exchanges ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _by_era(versions: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The legacy and the modern ones, and `ServerNegotiation.unsaid_version`; sessions share what is returned."""
    legacy = tuple(v for v in versions if v in LEGACY)
    headerless = [version for version in legacy if version <= UNSAID_VERSION]
    return legacy, tuple(v for v in versions if v in MODERN), max(headerless, default=UNSAID_VERSION)


class ServerNegotiation:
    """Turns the requests of one connection into invocations: one legacy conversation, any number of modern requests.

    ``on_operating`` is called once, when the legacy client is past its handshake. ``principal`` is the user whom the
    transport has authenticated for all of them. ``account`` is charged for what is kept of the legacy client.
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
        self.legacy_served, self.modern_served, self.unsaid_version = _by_era(self.versions)
        """``unsaid_version`` is that of a request that came by itself and names none: a served one, if there is one."""
        self.custom = custom
        self.mirrored_params = mirrored_params
        self.legacy = LegacySessionState(self.legacy_served, on_operating, account)
        self._accepted = AcceptedMeta()

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Raises `RpcError`, ready to be sent, for a request that cannot be run."""
        params = params_of(request)
        name = request.method
        custom = self.custom.get(name)
        meta = params.get("_meta")
        if (type(meta) is dict and VERSION in meta) or name == "server/discover":
            invocation = open_request(
                request.id,
                name,
                params,
                served=self.modern_served,
                supported=self.versions,
                method=custom,
                accepted=self._accepted_for(request),
            )
        elif self.legacy_served:
            invocation = self.legacy.open(request.id, name, params, custom)
        else:
            raise RpcError(
                INVALID_REQUEST,
                f"this server needs {VERSION} in _meta; supported: {', '.join(self.versions)}",
                {"supported": list(self.versions)},
            )
        if self.principal is not None:
            invocation.principal = self.principal
        return invocation

    def _accepted_for(self, request: JsonRpcRequest) -> AcceptedMeta:
        # What a long request brings is not kept.
        params = request.params
        return self._accepted if params is not None and len(params) <= KEPT_META_BYTES else AcceptedMeta()

    def open_alone(self, request: JsonRpcRequest, era: str, metadata: Mapping[str, str]) -> Invocation:
        """Opens a request that came without a connection and belongs to no session; see `sort` for its era."""
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
                accepted=self._accepted_for(request),
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
        # Without a session it is not known what the client can do, and nothing could reach it.
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
