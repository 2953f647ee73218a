"""A legacy session's memory on the server side: which revision was agreed, who the client is, where we stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcp_actors._eras.era import Era, Invocation, Method, Peer, progress_token
from mcp_actors._eras.legacy.eras import DEFAULT_LOG_LEVEL, LEGACY
from mcp_actors._eras.legacy.lifecycle import NEXT_STATE
from mcp_actors._eras.legacy.lifecycle import LifecycleEvent as Event
from mcp_actors._eras.legacy.lifecycle import LifecycleState as State
from mcp_actors._wire.codec import encode_value
from mcp_actors._wire.messages import RequestId
from mcp_actors.budget import Account
from mcp_actors.errors import INVALID_PARAMS, INVALID_REQUEST, MethodNotFound, Overloaded, RpcError

__all__ = ["LegacySessionState", "negotiate", "open_method"]

# The tutorials that show the bare method are wrong, but their clients are out there.
INITIALIZED = frozenset({"notifications/initialized", "initialized"})

# Bytes of a client's capabilities, and of its description, which a session keeps for as long as it lives: icons fit.
KEPT_BYTES = 64 * 1024

# Named here because looking a member up in its Enum is a function call in Python 3.11, made for every request.
_INITIALIZE, _REQUEST = Event.INITIALIZE, Event.REQUEST
_EVENT_BY_METHOD = {"initialize": _INITIALIZE, "ping": Event.PING}


def negotiate(requested: str, served: Sequence[str]) -> Era:
    """The version that was asked for if it is served, else our newest: the client decides whether that fits it."""
    return LEGACY[requested if requested in served else served[-1]]


def open_method(era: Era, method: Method, id: RequestId, params: dict[str, Any], peer: Peer) -> Invocation:
    """Takes ``_meta`` out of ``params``."""
    meta = params.pop("_meta", None)
    if meta is None:
        return Invocation(era, method, params, {}, peer, id, None, peer.log_level)
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, "_meta must be an object")
    return Invocation(era, method, params, meta, peer, id, progress_token(meta), peer.log_level)


def _do_nothing() -> None:
    """Takes the beginning of a session that has ended."""


class LegacySessionState:
    """Turns a client's requests into invocations, or refuses them by the lifecycle table.

    ``on_operating`` is called once, when the server may begin to tell things unasked. ``account`` is charged for what
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
        self.state = State.NEW
        self.era: Era | None = None
        self.peer: Peer | None = None

    def __repr__(self) -> str:
        return f"<LegacySessionState {self.state.value} {self.era.version if self.era else '-'}>"

    def open(self, id: RequestId, name: str, params: dict[str, Any], method: Method | None) -> Invocation:
        """Raises `RpcError` for what the table, or the negotiated revision, does not allow.

        ``method`` overrides the revision's table: a custom method, which every revision tolerates.
        """
        event = _EVENT_BY_METHOD.get(name, _REQUEST)
        next_state = NEXT_STATE.get((self.state, event))
        if next_state is None:
            raise RpcError(INVALID_REQUEST, self._refusal(event), {"supported": list(self.served)})
        if event is _INITIALIZE:
            peer = self._introduced(params)
        else:
            # Only a ping comes before initialize; every revision answers it alike.
            peer = self.peer or Peer(LEGACY[self.served[-1]], {}, None, None)
        era = peer.era
        method = method or era.server_methods.get(name)
        if method is None:
            raise MethodNotFound(name)
        invocation = open_method(era, method, id, params, peer)
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
            self._move(NEXT_STATE.get((self.state, Event.INITIALIZED), self.state))

    def end(self) -> None:
        """The session has ended. What would be called refers to it, and it must not wait for the garbage collector."""
        self.on_operating = _do_nothing

    def _move(self, state: State) -> None:
        begins = state is State.OPERATING and self.state is not State.OPERATING
        self.state = state
        if begins:
            self.on_operating()

    def _refusal(self, event: Event) -> str:
        if event is _INITIALIZE:
            return "this session is initialized already"
        return f"send initialize first; supported protocol versions: {', '.join(self.served)}"

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
