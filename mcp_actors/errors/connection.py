"""Connections that could not be made, or have ended."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from mcp_actors.errors.protocol import McpError

__all__ = [
    "AuthorizationError",
    "AuthorizationFailed",
    "AuthorizationUnavailable",
    "CallCancelled",
    "CallTimeout",
    "ConnectFailed",
    "ConnectionLost",
    "DiscoveryFailed",
    "EngineStopped",
    "InputRequired",
    "LoginFailed",
    "LoginRequired",
    "LoopClosed",
    "MetadataMismatch",
    "NotApproved",
    "RegistrationFailed",
    "SessionExpired",
    "SubscriptionLost",
    "TaskCancelled",
    "TokenRefused",
    "TokenStoreFailed",
    "ToolError",
    "ToolFailed",
    "TransportNotFound",
    "UnexpectedResult",
    "UrlRefused",
    "what_came",
]


class ConnectFailed(McpError):
    """A connection could not be made. The message says to what and why, and the cause is chained."""


class ConnectionLost(McpError):
    """The connection ended while a call or a subscription needed it.

    Args:
        exit_code: the exit code of the peer, if it was a child process of this one.
        stderr: the last lines that this child process wrote to its stderr; the text of the error has five of them.
        received: the beginnings of the first things that came instead of messages.
        has_read: whether the peer may have read something; false only where it is known that it has read nothing.
        never_run: whether nothing of the call was sent, so that repeating it runs nothing twice.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        stderr: tuple[str, ...] = (),
        received: tuple[str, ...] = (),
        has_read: bool = True,
        never_run: bool = False,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr
        self.received = received
        self.has_read = has_read
        self.never_run = never_run

    def renewed(self, never_run: bool = False) -> ConnectionLost:
        """Returns an exception of its own that says the same: one that is raised twice mixes up two tracebacks.

        Args:
            never_run: whether it is raised by a call of which nothing was sent.
        """
        copy = ConnectionLost(
            self.args[0],
            exit_code=self.exit_code,
            stderr=self.stderr,
            received=self.received,
            has_read=self.has_read,
            never_run=never_run,
        )
        copy.__cause__ = self.__cause__
        return copy

    def __str__(self) -> str:
        text = super().__str__() + what_came(self.received)
        # As a rule all of it was on the terminal already. The frames of a stack trace say least there.
        telling = [line for line in self.stderr if line.strip() and not line.lstrip().startswith("at ")]
        if telling:
            text += "\nlast lines of its stderr:"
            text += "".join(f"\n  {_cut(line)}" for line in telling[-SHOWN_LINES:])
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

    PAGE: ClassVar[str] = "troubleshooting"

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

    PAGE: ClassVar[str] = "troubleshooting"


# -- calls that did not end with a result, for reasons other than the connection -----------------------------------

# Characters of what a peer wrote that are shown in the text of an exception.
SHOWN_CHARACTERS = 1000
# Lines of a child's stderr that the text of an error has, so that it fits a terminal with its traceback.
SHOWN_LINES = 5


class ToolError(McpError):
    """A tool failed in a way that the model should see: the text becomes the result, marked ``isError``."""


class NotApproved(ToolError):
    """A person has not approved a call of a tool that needs it: its function was not begun. The model reads the text.

    Args:
        reason: ``"declined"``; ``"dismissed"``, without an answer; ``"expired"``, the answer came too late;
            ``"changed"``, it was for something else; ``"used"``, the approval was good for one run, and that has begun;
            ``"impossible"``, there is nobody to ask.
    """

    PAGE: ClassVar[str] = "approvals"

    def __init__(self, reason: ApprovalReason) -> None:
        super().__init__(_NOT_APPROVED[reason])
        self.reason = reason


ApprovalReason = Literal["declined", "dismissed", "expired", "changed", "used", "impossible"]
_NOT_APPROVED: dict[ApprovalReason, str] = {
    "declined": "not done: the person has declined it; do not call it again unless they want it",
    "dismissed": "not done: the person has closed the question without an answer; find out what they want",
    "expired": "not done: nobody has approved it in time; call it again to have the person asked again",
    "changed": "not done: it would do something else now than what was approved; call it again to have that approved",
    "used": "not done again: the approval was used already, perhaps by a call whose answer was lost; find out what "
    "that has done, or call it again to have the person asked again",
    "impossible": "not done: a person has to approve it, and this client cannot ask one",
}


class ToolFailed(McpError):
    """A tool of the server failed, and the caller wanted its value: ``call_tool(…, returns=…)``.

    ``tool`` is its name, ``text`` is what it tells the model, and ``result`` is the whole `CallToolResult`.
    """

    def __init__(self, tool: str, text: str, result: Any) -> None:
        super().__init__(f"the tool {tool!r} failed: {_cut(text) or 'it does not say why'}")
        self.tool = tool
        self.text = text
        self.result = result


class UnexpectedResult(McpError):
    """The value of a tool of the server is not of the class that the caller named: ``call_tool(…, returns=…)``.

    ``tool`` is its name, ``problem`` says what does not fit, and ``result`` is the whole `CallToolResult`.
    """

    def __init__(self, tool: str, problem: str, result: Any) -> None:
        super().__init__(f"what the tool {tool!r} returned does not fit: {_cut(problem)}")
        self.tool = tool
        self.problem = problem
        self.result = result


class WrongArguments(McpError):
    """The arguments of a call do not fit the schema that the server has listed for the tool; nothing was sent.

    A client raises it that was made with ``Client(arguments="check")`` or ``"repair"``. ``tool`` is the name of the
    tool, and ``problems`` says of each argument what is wrong with it.
    """

    def __init__(self, tool: str, problems: list[str]) -> None:
        super().__init__(f"the arguments of the tool {tool!r} do not fit: {_cut('; '.join(problems))}")
        self.tool = tool
        self.problems = problems


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
    reached ``seconds``. ``received`` has the beginnings of the first things that came instead of messages, and ``peer``
    is the name of a server that a client was about to meet. ``blocked`` says what has blocked the event loop of this
    client meanwhile, where a server in the same loop has a watchdog, and is ``""`` otherwise.
    """

    PAGE: ClassVar[str] = "troubleshooting"

    def __init__(self, method: str, clock: Literal["idle", "cap"], seconds: float, blocked: str = "") -> None:
        reason = "no answer and no progress for" if clock == "idle" else "not finished after"
        because = f": {blocked}" if blocked else ""
        super().__init__(f"{method}: {reason} {seconds:g} s (the {clock} clock){because}")
        self.blocked = blocked
        self.peer = ""
        self.method = method
        self.clock = clock
        self.seconds = seconds
        self.received: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = super().__str__()
        if self.peer:
            text = (
                f"{self.method}: no answer from {self.peer} for {self.seconds:g} s: is it an MCP server that starts "
                f"in that time? (the {self.clock} clock)"
            )
        return text + what_came(self.received)


class CallCancelled(McpError):
    """A function in a thread or an asyncio loop used its context after its call has ended: it should clean up.

    The client has cancelled the call, its time is up, or it was answered with a question. Nothing can stop a thread.
    """


class TaskCancelled(McpError):
    """A task whose result was waited for was cancelled, by another program or by the server itself.

    ``task_id`` is the task's id, and ``reason`` what the server says of it, if it says anything.
    """

    def __init__(self, task_id: str, reason: str | None = None) -> None:
        super().__init__(f"the task {task_id[:6]}… was cancelled{f': {reason}' if reason else ''}")
        self.task_id = task_id
        self.reason = reason


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# -- refused access: what the client's side of authorization raises ------------------------------------------------
#
# None of these texts repeats a token, a code, a secret or a text of an unverified answer.


class AuthorizationError(ConnectFailed):
    """The server demands authorization, and access could not be had. The request was not carried out."""

    PAGE: ClassVar[str] = "authorization#errors-and-what-to-do"

    def as_new(self) -> AuthorizationError:
        """Returns an exception of its own that says the same: one that is raised twice mixes up two tracebacks."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__ = self.__cause__
        return copy


class LoginRequired(AuthorizationError):
    """A person must log in, and cannot be asked: there is no terminal and no browser.

    Args:
        message: What to do, such as a command to run once.
        url: The URL to open, if the program may hand it to a person; ``None`` if no login was begun.
    """

    def __init__(self, message: str, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url


class LoginFailed(AuthorizationError):
    """The login ended without an authorization code: refused, out of time, or with an answer that proves nothing."""


class AuthorizationFailed(AuthorizationError):
    """The server refuses a token that was issued for it just now, or asks for more scopes again and again."""


class DiscoveryFailed(AuthorizationError):
    """No usable metadata of the server or of its authorization server was found."""


class MetadataMismatch(AuthorizationError):
    """A document speaks for another resource or issuer than the one it was asked about. Nothing was sent there."""


class UrlRefused(AuthorizationError):
    """A URL that came from the network must not be used: its scheme, or the address that it leads to."""


class RegistrationFailed(AuthorizationError):
    """There is no client id for this authorization server, and none could be registered."""


class TokenRefused(AuthorizationError):
    """The authorization server refused to issue a token.

    Args:
        message: What was asked for, and what to do next.
        error: The code of RFC 6749 section 5.2, such as ``"invalid_grant"``.
    """

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class AuthorizationUnavailable(AuthorizationError):
    """The authorization server cannot be reached or is out of order: the same may succeed later. Tokens are kept."""


class TokenStoreFailed(AuthorizationError):
    """The store of tokens cannot be read or written. What it holds is left as it is."""
