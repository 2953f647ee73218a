"""The contract of telemetry: what those are given who measure and trace calls, in both directions.

``Server(telemetry=…)`` and ``Client(telemetry=…)`` take a `Telemetry`. Without one the engine makes calls that know
nothing of it, so that it costs nothing. `mcp_actors.telemetry` has two of them: OpenTelemetry and metrics of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import msgspec

from mcp_actors.abc.transport import HttpRequest, RequestId
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal

__all__ = [
    "CallEnding",
    "EndingKind",
    "Observation",
    "ObservedRequest",
    "ObservedSession",
    "OutboundObservation",
    "Telemetry",
    "carried",
    "current_call",
    "guarded",
    "log_members",
]

T = TypeVar("T")

EndingKind = Literal["answered", "tool_error", "error", "cancelled", "input_required", "lost", "timeout"]
"""The endings of a call: its result was sent; a result that is an error of the tool; an error of the protocol; it was
cancelled; questions to the client, whose answers run it again; the connection was lost, so that there is no answer; or
a clock of the caller ran out."""


class ObservedRequest(msgspec.Struct, eq=False):
    """A request, or a notification that a function takes, as telemetry sees it, which reads it and changes nothing."""

    method: str
    """The method. Of an inbound request it is one that this side answers, so there are not many."""
    target: str | None
    """The name of the tool or prompt, or the URI of the resource, as the request has it: a peer may have made it up."""
    is_registered: bool
    """Whether the target is a name that is registered at this server, or that a server behind this gateway has listed,
    so that there are not many such names. Of the first call at a gateway that is known only when it ends: then it has
    changed."""
    id: RequestId | None
    """The id of the request, ``None`` for a notification."""
    meta: Mapping[str, Any]
    """The request's ``_meta``. Of an inbound request all of it is the peer's word."""
    version: str | None
    """The protocol version, ``None`` before it was agreed."""
    session: str
    """The name of the session or, for requests without one, of the server. The session id is a secret."""
    peer: str
    """The other end: an address or a URL."""
    principal: Principal | None = None
    """The caller whom the transport has authenticated."""
    is_task: bool = False
    """Whether this is the run of a task, whose call was answered when it was created."""
    http: HttpRequest | None = None
    """The HTTP request that brought it, ``None`` with other bindings and for requests of ours. Its headers are
    secrets."""
    upstream: str | None = None
    """Of a request that a gateway sends, the name of the upstream that it goes to. A gateway says only at the end
    whether the target is a name that this upstream has listed."""


class CallEnding(msgspec.Struct, eq=False):
    """The end of a call."""

    kind: EndingKind
    seconds: float
    """From its arrival, or from when it was made."""
    code: int | None = None
    """The code of the error."""
    message: str | None = None
    """The text of the error, as the peer was sent it or has sent it, cut."""
    waited: float = 0.0
    """Seconds of these in which the call waited for a place."""
    size: int = 0
    """Bytes of the answer that was sent; 0 for a request of ours."""


class Observation:
    """The observer of one inbound call: it is entered and left round the call's function."""

    __slots__ = ()

    def enter(self) -> None:
        """Is called in the task, and the context, that is about to run the function. It may be called twice."""

    def leave(self) -> None:
        """Is called in the same context when the function has ended, however it has."""

    def ended(self, ending: CallEnding) -> None:
        """Is called once, when the call is over, after `leave`."""

    def log_members(self) -> Mapping[str, Any]:
        """Returns what log lines say that are written while it is entered, such as the id of a trace."""
        return {}

    def carried(self) -> Sequence[tuple[str, Any]]:
        """Returns what has to be done in another process of this program that runs the call's function.

        Returns:
            Functions by their places, such as ``"mcp_actors.telemetry.otel:go_on"``, and what each is called with there
            before the function, in its context: something that JSON has.
        """
        return ()


class OutboundObservation:
    """The observer of one request of ours, which a `Telemetry` returns."""

    __slots__ = ("meta",)

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        self.meta = meta
        """Members that are added to the request's ``_meta``, where neither the program nor the engine has them."""

    def ended(self, ending: CallEnding) -> None:
        """Is called once, when the answer is there, or it is known that none will be waited for."""


class ObservedSession(msgspec.Struct, frozen=True):
    """A session, or a connection without one, that has ended."""

    side: Literal["server", "client"]
    """The side that this process is."""
    name: str
    peer: str
    version: str | None
    """The protocol version, ``None`` if none was agreed."""
    seconds: float
    """Its length."""
    is_broken: bool
    """Whether its connection broke."""
    protocol: str | None = None
    """Of a server's session, ``"http"`` or ``"websocket"``; ``None`` with other bindings."""


class Telemetry:
    """The receiver of what happens to calls and sessions. Each method does nothing; a subclass has those that it needs.

    All methods are called in the event loop and must not wait. What one raises is logged, and costs the call nothing.
    """

    def inbound(self, request: ObservedRequest) -> Observation | None:
        """Receives a call before its handler is asked.

        Returns:
            What observes it, ``None`` if nothing needs to.
        """
        return None

    def outbound(self, request: ObservedRequest) -> OutboundObservation | None:
        """Receives a request of ours before it is sent.

        Returns:
            What observes it, ``None`` if nothing needs to.
        """
        return None

    def session_began(self, side: Literal["server", "client"]) -> None:
        """Is called when a session, or a connection, begins."""

    def session_ended(self, session: ObservedSession) -> None:
        """Receives the same session when it has ended."""

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        """Is called when a server begins to serve.

        Args:
            statistics: Returns the server's `~mcp_actors.server.ServerStatistics`; legal in any thread.

        Returns:
            What is called when the server serves no more.
        """
        return _nothing


def _nothing() -> None:
    """Ends what was never begun."""


def guarded(function: Callable[..., T], *args: Any) -> T | None:
    """Calls a function of telemetry; what it raises is logged, and ``None`` returned."""
    try:
        return function(*args)
    except Exception as error:
        log.error("telemetry failed", exc_info=error)
        return None


current_call: ContextVar[tuple[ObservedRequest, Observation] | None] = ContextVar(
    "current_call", default=None
)
"""The call whose function runs in this context and its observer; ``None`` outside of one and without telemetry."""


def log_members() -> dict[str, Any]:
    """Returns what log lines say of the call whose function runs in this context: session, principal and trace."""
    current = current_call.get()
    if current is None:
        return {}
    request, observation = current
    members: dict[str, Any] = {"session": request.session}
    if request.principal is not None:
        members["principal"] = request.principal.subject
    try:
        return {**members, **observation.log_members()}
    except Exception:
        # The line is worth more than its members; another line that says so would ask the same observer.
        return members


def carried() -> Sequence[tuple[str, Any]]:
    """Returns `Observation.carried` of the call whose function runs in this context, of one that does not fail."""
    current = current_call.get()
    return () if current is None else guarded(lambda: msgspec.to_builtins(current[1].carried())) or ()
