"""Connections that could not be made, or have ended."""

from __future__ import annotations

from mcp_actors.errors.protocol import McpError

__all__ = [
    "ConnectFailed",
    "ConnectionLost",
    "EngineStopped",
    "LoopClosed",
    "SessionExpired",
    "SubscriptionLost",
    "TransportNotFound",
    "what_came",
]


class ConnectFailed(McpError):
    """A connection could not be made. The message says to what and why, and the cause is chained."""


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
        text = super().__str__() + what_came(self.received)
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


def what_came(received: tuple[str, ...]) -> str:
    if not received:
        return ""
    return (
        "\nwhat came was no JSON-RPC message (a program on stdio prints to stderr, never to stdout):\n"
        + "\n".join(f"  {line}" for line in received)
    )


class EngineStopped(McpError):
    """The engine is gone in which this client or server runs for a program without Trio.

    Args:
        is_forked: Whether that is so because this process is a fork of the one that has the engine.
        has_crashed: Whether the engine has failed; the next client or server begins another one.
    """

    def __init__(self, is_forked: bool, has_crashed: bool = False) -> None:
        if is_forked:
            message = "this belongs to the process that forked this one: make a new client or server in this process"
        elif has_crashed:
            message = "the engine has failed, the log says why: make a new client or server"
        else:
            message = "the program ends, and the engine has stopped"
        super().__init__(message)
        self.is_forked = is_forked
        self.has_crashed = has_crashed


class LoopClosed(McpError):
    """A function of the program could not be called, because the loop or thread that it belongs to has ended."""
