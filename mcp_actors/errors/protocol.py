"""The base of all exceptions, and those about broken rules of the protocol."""

from __future__ import annotations

from mcp_actors.errors.codes import PARSE_ERROR

__all__ = [
    "ClosedElsewhere",
    "LocalProtocolError",
    "MalformedMessage",
    "McpError",
    "ProtocolError",
    "RemoteProtocolError",
    "Unavailable",
]


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
