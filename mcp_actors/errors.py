"""Every exception that mcp-actors raises, drawn once.

::

    McpError
    ├── ProtocolError             somebody broke the protocol
    │   ├── LocalProtocolError    we did: the program that uses this package asked for what is not allowed
    │   └── RemoteProtocolError   the peer did
    │       └── MalformedMessage  bytes that are no JSON-RPC message
    ├── RpcError                  an error response, sent or received: code, message, data
    │   ├── MethodNotFound        -32601
    │   ├── UnsupportedVersion    -32022
    │   ├── MissingCapability     -32021
    │   ├── HeaderMismatch        -32020
    │   ├── ResourceNotFound      -32002 or -32602, as the revision has it
    │   └── Overloaded            429, our refusal when a limit is reached
    ├── ToolError                 raised by a tool: its text reaches the model as ``isError``
    ├── InputRequired             a call ended by asking for input and the client was told not to answer by itself
    ├── CallTimeout               the idle clock or the cap ran out
    ├── ConnectFailed             no connection came about
    ├── ConnectionLost            there was a connection, now there is none
    ├── SessionExpired            the peer forgot our session
    ├── SubscriptionLost          a listen ended without the server's closing result
    └── TransportNotFound         no installed binding serves that URL scheme

No exception group made inside this package ever reaches its user, and what user code raises is never wrapped.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

__all__ = [
    "CallTimeout",
    "ConnectFailed",
    "ConnectionLost",
    "HeaderMismatch",
    "InputRequired",
    "LocalProtocolError",
    "MalformedMessage",
    "McpError",
    "MethodNotFound",
    "MissingCapability",
    "Overloaded",
    "ProtocolError",
    "RemoteProtocolError",
    "ResourceNotFound",
    "RpcError",
    "SessionExpired",
    "SubscriptionLost",
    "ToolError",
    "TransportNotFound",
    "UnsupportedVersion",
]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


class McpError(Exception):
    """The root: catching it catches everything this package raises on purpose."""


class ProtocolError(McpError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """The local program asked for something that the protocol does not allow now; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""


class MalformedMessage(RemoteProtocolError):
    """Bytes that are not one valid JSON-RPC message.

    ``code`` is the JSON-RPC code to answer with (-32700 or -32600); ``id`` is the request id if one could be read.
    """

    def __init__(self, message: str, *, code: int = PARSE_ERROR, id: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id


class RpcError(McpError):
    """A JSON-RPC error response: raise it in a handler to send it, catch it round a call to receive it.

    ``data`` is any JSON value, or ``None`` for no data at all.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} (code {self.code})"

    @classmethod
    def from_wire(cls, code: int, message: str, data: Any = None) -> RpcError:
        """Makes the most specific class for ``code``, so that callers can catch by type."""
        return _RPC_CLASS_BY_CODE.get(code, RpcError)._rebuild(code, message, data)

    @classmethod
    def _rebuild(cls, code: int, message: str, data: Any) -> RpcError:
        error = cls.__new__(cls)
        RpcError.__init__(error, code, message, data)
        return error


class MethodNotFound(RpcError):
    """The peer's revision has no such method, or its receiver did not declare what it belongs to."""

    CODE: ClassVar[int] = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(self.CODE, f"method not found: {method}")


class UnsupportedVersion(RpcError):
    """The revision that was asked for is not served; ``supported`` lists those that are."""

    CODE: ClassVar[int] = -32022

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(
            self.CODE,
            f"protocol version {requested!r} is not supported; supported: {', '.join(supported)}",
            {"supported": supported, "requested": requested},
        )

    @property
    def supported(self) -> list[str]:
        """The versions that the peer does serve, as far as it said so."""
        listed = self.data.get("supported") if isinstance(self.data, dict) else None
        return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


class MissingCapability(RpcError):
    """The client did not declare a capability that this call needs; ``data.requiredCapabilities`` says which."""

    CODE: ClassVar[int] = -32021

    def __init__(self, required: dict[str, Any]) -> None:
        super().__init__(
            self.CODE,
            f"the client must declare the capability {', '.join(sorted(required))} for this request",
            {"requiredCapabilities": required},
        )


class HeaderMismatch(RpcError):
    """A mirrored header is missing, malformed or says something else than the body."""

    CODE: ClassVar[int] = -32020

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)


class ResourceNotFound(RpcError):
    """There is no resource under ``uri``.

    Raise it in a resource function; the engine sends the code of the peer's revision. A client gets it for either.
    """

    CODE: ClassVar[int] = -32002

    def __init__(self, uri: str) -> None:
        super().__init__(self.CODE, f"resource not found: {uri}", {"uri": uri})


class Overloaded(RpcError):
    """Refused because a limit is reached; nothing was run, so the request may be sent again later.

    The code lies outside the range that JSON-RPC reserves, as the protocol forbids new codes inside it.
    """

    CODE: ClassVar[int] = 429

    def __init__(self, scope: str, limit: int, waiting: int) -> None:
        super().__init__(
            self.CODE,
            f"too many requests in flight on this {scope}: {limit} running and {waiting} waiting; retry later",
            {"reason": "overloaded", "scope": scope, "limit": limit, "waiting": waiting},
        )


_RPC_CLASS_BY_CODE: dict[int, type[RpcError]] = {
    each.CODE: each
    for each in (
        MethodNotFound,
        UnsupportedVersion,
        MissingCapability,
        HeaderMismatch,
        ResourceNotFound,
        Overloaded,
    )
}


class ToolError(McpError):
    """Raise it inside a tool: its text becomes the result that the model sees, marked ``isError``."""


class InputRequired(McpError):
    """The server asked for input and automatic answers are off; ``requests`` and ``state`` are what a retry needs."""

    def __init__(self, requests: dict[str, Any], state: str | None) -> None:
        super().__init__(f"the server asks for input: {', '.join(requests) or 'call again'}")
        self.requests = requests
        self.state = state


class CallTimeout(McpError):
    """A call took too long. ``clock`` is ``"idle"`` (nothing was heard for ``seconds``) or ``"cap"`` (total time)."""

    def __init__(self, method: str, clock: Literal["idle", "cap"], seconds: float) -> None:
        reason = "no answer and no progress for" if clock == "idle" else "not finished after"
        super().__init__(f"{method}: {reason} {seconds:g} s (the {clock} clock)")
        self.method = method
        self.clock = clock
        self.seconds = seconds


class ConnectFailed(McpError):
    """No connection came about; the message says where to and why. The cause is chained."""


class ConnectionLost(McpError):
    """The connection ended while something needed it.

    ``exit_code`` and ``stderr`` (its last lines) are set when the peer was a child process of ours.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr

    def __str__(self) -> str:
        text = super().__str__()
        if self.stderr:
            text += "\nlast lines of its stderr:\n" + "\n".join(f"  {line}" for line in self.stderr)
        return text


class SessionExpired(McpError):
    """The server no longer knows our session; connect again to go on.

    ``never_run`` is true when the server refused the call for it, so that making it again repeats nothing.
    """

    def __init__(
        self,
        message: str = "the server no longer knows our session; connect again to go on",
        *,
        never_run: bool = False,
    ) -> None:
        super().__init__(message)
        self.never_run = never_run


class SubscriptionLost(McpError):
    """A subscription broke off: events may have been missed, so list or read again before listening again."""


class TransportNotFound(McpError):
    """No installed binding serves that URL scheme; the message lists those that are installed."""


def invalid_params(message: str) -> RpcError:
    """The error for params that do not have the form the method asks for: -32602."""
    return RpcError(INVALID_PARAMS, message)
