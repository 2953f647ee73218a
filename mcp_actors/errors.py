"""Every exception that mcp-actors raises.

::

    McpError
    ├── ProtocolError             a rule of the protocol was broken
    │   ├── LocalProtocolError    by the program that uses this package; nothing was sent
    │   └── RemoteProtocolError   by the peer
    │       ├── MalformedMessage  with bytes that are no JSON-RPC message
    │       └── Unavailable       or by what stands before it: it cannot serve us at present
    ├── RpcError                  an error response, sent or received: code, message, data
    │   ├── MethodNotFound        -32601
    │   ├── UnsupportedVersion    -32022
    │   ├── MissingCapability     -32021
    │   ├── HeaderMismatch        -32020
    │   ├── ResourceNotFound      -32002 or -32602, as the revision has it
    │   └── Overloaded            429, a limit on concurrent requests is reached
    ├── ToolError                 raised by a tool; the model gets its text, marked ``isError``
    ├── InputRequired             the server asks for input, and automatic answers are switched off
    ├── CallTimeout               a call ran out of its idle or its total time
    ├── CallCancelled             in a worker thread of a server: nobody waits for the result any more
    ├── ConnectFailed             a connection could not be made
    ├── ConnectionLost            the connection ended during a call
    ├── SessionExpired            the server has ended or forgotten the session
    ├── SubscriptionLost          a subscription ended without the server's closing result
    └── TransportNotFound         no installed binding has that URL scheme

Exception groups that arise inside this package never reach the program, and exceptions of the program's own functions
are never wrapped.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

__all__ = [
    "CallCancelled",
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
    "Unavailable",
    "UnsupportedVersion",
    "invalid_params",
]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
URL_ELICITATION_REQUIRED = -32042


class McpError(Exception):
    """The base class of all exceptions of this package."""


class ProtocolError(McpError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """The program asked for something that the protocol does not allow in this state or revision. Nothing was sent."""


class ClosedElsewhere(LocalProtocolError):
    """A `Client` or a `ClientPool` was closed in another task, or in another order, than it was opened in.

    Its connections are closed all the same. The clients of a `ClientPool` may be closed in any order, from any task.
    """

    def __init__(self, owner: str, where: str) -> None:
        super().__init__(
            f"this {owner} was left {where} than it was entered in: an 'async with' block and what is opened inside of "
            "it must be left in reverse order by one task. Open clients with 'ClientPool.open', which may be closed "
            "in any order, from any task"
        )


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""


class MalformedMessage(RemoteProtocolError):
    """Bytes that are not one valid JSON-RPC message.

    Args:
        code: the JSON-RPC code to answer with, -32700 (no JSON), -32600 (no message) or 429 (no room, `Overloaded`).
        id: the request id, if one could be read.

    ``beginning`` has the first characters of what came, where they are known.
    """

    def __init__(self, message: str, *, code: int = PARSE_ERROR, id: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id
        self.beginning = ""


class Unavailable(RemoteProtocolError):
    """The server, or what stands before it, cannot serve the request at present; the same may succeed later.

    A binding raises it for a refusal that says nothing about the protocol, as HTTP does for 5xx and 429.

    Args:
        message: What happened.
        retry_after: The seconds to wait that the server asked for; ``None`` if it did not say.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RpcError(McpError):
    """A JSON-RPC error response. A handler raises it to send it; a client's call raises what it received.

    Args:
        code: the JSON-RPC error code.
        message: one sentence, which the peer sees.
        data: any JSON value; ``None`` is sent as no data.
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
        """Returns an instance of the most specific class for ``code``, so that callers can catch by type."""
        return _RPC_CLASS_BY_CODE.get(code, RpcError)._rebuild(code, message, data)

    @classmethod
    def _rebuild(cls, code: int, message: str, data: Any) -> RpcError:
        error = cls.__new__(cls)
        RpcError.__init__(error, code, message, data)
        return error


class MethodNotFound(RpcError):
    """The revision has no such method, or the receiver has not declared the capability that it belongs to."""

    CODE: ClassVar[int] = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(self.CODE, f"method not found: {method}")


class UnsupportedVersion(RpcError):
    """The server does not serve the requested revision (MCP 2026-07-28).

    ``supported`` lists the revisions that it serves.
    """

    CODE: ClassVar[int] = -32022

    def __init__(self, requested: str, supported: list[str]) -> None:
        super().__init__(
            self.CODE,
            f"protocol version {requested!r} is not supported; supported: {', '.join(supported)}",
            {"supported": supported, "requested": requested},
        )

    @property
    def supported(self) -> list[str]:
        """The versions that the peer serves; empty if its error does not list them."""
        listed = self.data.get("supported") if isinstance(self.data, dict) else None
        return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


class MissingCapability(RpcError):
    """The client has not declared a capability that this request needs.

    ``data["requiredCapabilities"]`` has the missing ones.
    """

    CODE: ClassVar[int] = -32021

    def __init__(self, required: dict[str, Any]) -> None:
        super().__init__(
            self.CODE,
            f"the client must declare the capability {', '.join(sorted(required))} for this request",
            {"requiredCapabilities": required},
        )


class HeaderMismatch(RpcError):
    """An HTTP header that repeats a part of the body (SEP-2243) is missing, malformed or differs from the body."""

    CODE: ClassVar[int] = -32020

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)


class ResourceNotFound(RpcError):
    """There is no resource with the URI ``uri``.

    A resource function raises it, and the engine sends the code of the peer's revision: -32002, or -32602 from MCP
    2026-07-28 on. A client raises it for either code.
    """

    CODE: ClassVar[int] = -32002

    def __init__(self, uri: str) -> None:
        super().__init__(self.CODE, f"resource not found: {uri}", {"uri": uri})


class Overloaded(RpcError):
    """The request was refused because a limit is reached. Nothing was run, so it may be sent again later.

    ``data`` has the limit's ``scope``, the ``limit`` itself and how many requests are ``waiting``. The code is outside
    the range that JSON-RPC 2.0, section 5.1 reserves, because MCP forbids new codes inside it.
    """

    CODE: ClassVar[int] = 429

    def __init__(self, scope: str, limit: int, waiting: int) -> None:
        super().__init__(
            self.CODE,
            f"too many requests in flight on this {scope}: {limit} running and {waiting} waiting; retry later",
            {"reason": "overloaded", "scope": scope, "limit": limit, "waiting": waiting},
        )

    @classmethod
    def for_bytes(cls, what: str, whose: Literal["holder", "all"], limit: int) -> Overloaded:
        """Returns the refusal of a request with which ``what`` would hold more than ``limit`` bytes.

        ``whose`` says what the limit is for: the ``what`` of one client (``"holder"``) or of all clients.
        """
        of = "this client" if whose == "holder" else "all clients together"
        error = cls._rebuild(
            cls.CODE,
            f"too many bytes in the {what} of {of}: the limit is {limit}; retry later",
            {"reason": "overloaded", "scope": whose, "limit": limit},
        )
        assert isinstance(error, Overloaded)
        return error


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
    """A tool failed in a way that the model should see: the text becomes the result, marked ``isError``."""


class InputRequired(McpError):
    """The server asks for input, and the client does not answer automatically (SEP-2322).

    ``requests`` maps the key of each question to the question, ``state`` is the server's opaque state. A retry sends
    the answers under the same keys, and the state.
    """

    def __init__(self, requests: dict[str, Any], state: str | None) -> None:
        super().__init__(f"the server asks for input: {', '.join(requests) or 'call again'}")
        self.requests = requests
        self.state = state


class CallTimeout(McpError):
    """A call took too long.

    ``clock`` is ``"idle"`` if neither an answer nor progress arrived for ``seconds``, and ``"cap"`` if the total time
    reached ``seconds``. ``received`` has the beginnings of the first things that came instead of messages.
    """

    def __init__(self, method: str, clock: Literal["idle", "cap"], seconds: float) -> None:
        reason = "no answer and no progress for" if clock == "idle" else "not finished after"
        super().__init__(f"{method}: {reason} {seconds:g} s (the {clock} clock)")
        self.method = method
        self.clock = clock
        self.seconds = seconds
        self.received: tuple[str, ...] = ()

    def __str__(self) -> str:
        return super().__str__() + _what_came(self.received)


class ConnectFailed(McpError):
    """A connection could not be made. The message says to what and why, and the cause is chained."""


class CallCancelled(McpError):
    """A function in a worker thread used its context after its call has ended: it should clean up and return.

    The client has cancelled the call, its time is up, or it was answered with a question. Nothing can stop a thread.
    """


class ConnectionLost(McpError):
    """The connection ended while a call or a subscription needed it.

    Args:
        exit_code: the exit code of the peer, if it was a child process of this one.
        stderr: the last lines that this child process wrote to its stderr.
        received: the beginnings of the first things that came instead of messages.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        stderr: tuple[str, ...] = (),
        received: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr
        self.received = received

    def renewed(self) -> ConnectionLost:
        """Returns an exception of its own that says the same: one that is raised twice mixes up two tracebacks."""
        copy = ConnectionLost(
            self.args[0], exit_code=self.exit_code, stderr=self.stderr, received=self.received
        )
        copy.__cause__ = self.__cause__
        return copy

    def __str__(self) -> str:
        text = super().__str__() + _what_came(self.received)
        if self.stderr:
            text += "\nlast lines of its stderr:\n" + "\n".join(f"  {line}" for line in self.stderr)
        return text


class SessionExpired(McpError):
    """The server has ended or forgotten the session; a `Client` begins another one for the next call.

    Args:
        never_run: whether the server refused the call for this reason, so that repeating it runs nothing twice.
    """

    def __init__(
        self,
        message: str = "the server no longer knows our session; the next call begins another one",
        *,
        never_run: bool = False,
    ) -> None:
        super().__init__(message)
        self.never_run = never_run


class SubscriptionLost(McpError):
    """A subscription ended unexpectedly. Events may have been missed: list or read again before subscribing again."""


class TransportNotFound(McpError):
    """No installed binding has that URL scheme. The message lists the installed ones."""


def _what_came(received: tuple[str, ...]) -> str:
    if not received:
        return ""
    return (
        "\nwhat came was no JSON-RPC message (a program on stdio prints to stderr, never to stdout):\n"
        + "\n".join(f"  {line}" for line in received)
    )


def invalid_params(message: str) -> RpcError:
    """Returns the error for params that do not have the form that the method needs: code -32602."""
    return RpcError(INVALID_PARAMS, message)
