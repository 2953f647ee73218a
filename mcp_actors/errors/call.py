"""Calls that did not end with a result, for reasons other than the connection."""

from __future__ import annotations

from typing import Any, Literal

from mcp_actors.errors.connection import what_came
from mcp_actors.errors.protocol import McpError

__all__ = [
    "CallCancelled",
    "CallTimeout",
    "InputRequired",
    "TaskCancelled",
    "ToolError",
    "ToolFailed",
    "UnexpectedResult",
]

# Characters of what a peer wrote that are shown in the text of an exception.
SHOWN_CHARACTERS = 1000


class ToolError(McpError):
    """A tool failed in a way that the model should see: the text becomes the result, marked ``isError``."""


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
        return super().__str__() + what_came(self.received)


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
