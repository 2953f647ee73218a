"""The policy for calls that fail: who sees what of it. ``docs/reference/failures.md`` is the same table for users.

==================================  ======================================  ====================================
what the call ended with            what the client is sent                 what the log says
==================================  ======================================  ====================================
`ToolError`                         a result with ``isError``, its text     nothing
arguments that do not fit a tool    a result with ``isError``, each one     nothing
`RpcError`                          that error                              nothing
the time limit of a tool            a result with ``isError``, the limit    a warning
the end of its process              a result with ``isError``, the reason   a warning
any other exception of a tool       a result with ``isError``: the tool,    tool, session, principal, duration,
                                    the exception's type and text           reference, and the user's own frames
the same of another feature         -32603 with the same text               the same
a defect of the engine              -32603, "internal error"                the whole traceback
==================================  ======================================  ====================================

A masked text has a random reference, which is in the log as well, in place of the exception.
"""

from __future__ import annotations

import os
import secrets
import sys
from types import TracebackType
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import shown_target
from mcp_actors.errors import INTERNAL_ERROR, ConnectionLost, McpError, RpcError, SessionExpired, ToolError
from mcp_actors.supervision.blockages import blockage_log
from mcp_actors.supervision.containment import sole_cause
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import encodable, text_of
from mcp_actors.supervision.tracebacks import is_users_module, module_of, users_frames
from mcp_actors.types import CallToolResult, TextContent

__all__ = [
    "DependencyFailed",
    "LineNamed",
    "OutOfTime",
    "ProcessEnded",
    "RaisedElsewhere",
    "answer_to",
    "failed",
    "passes_through",
    "summary",
    "tool_error_in",
    "users_frames",
]


ENDED = "mcp-actors/ended"
"""The member of a result's ``_meta`` that says in one word why the process of a tool has ended: see `ProcessEnded`."""
# Characters of an exception's text that are sent: a model reads all of it.
MAX_TEXT = 2000
# Characters of a URI or name in a message; a client may have made it up.
MAX_TARGET = 200
# Exceptions of a group whose texts are sent.
MAX_GROUP = 5

# The feature that answers a method; its name is the key under which the log has the target, too.
_FEATURES = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}

# Where functions of the user are called: what one raises that is written in C has no frame of its own.
_CALLS = "mcp_actors._server.invoke"
# Where functions of the user run in an asyncio loop; their failures have no frame of `_CALLS`.
_ASYNCIO = "mcp_actors._server.asyncio_context"
# The beginnings of what asyncio and Trio say when a function on the event loop awaits something of asyncio.
_NEEDS_ASYNCIO = ("no running event loop", "trio.run received unrecognized yield message")
# Where functions of the user ask the client.
_QUESTIONS = "mcp_actors._server.questions"


class OutOfTime(Exception):
    """A tool has reached the time limit that it was registered with. The text is for the model."""

    def __init__(self, text: str, took: float) -> None:
        super().__init__(text)
        self.blockage = blockage_log.within(took)
        """The blockage of an event loop that took a part of that time."""


class ProcessEnded(Exception):
    """The process of an isolated function has ended before the function. The text is for the model.

    Args:
        kind: The reason in one word: ``"memory"``, ``"cpu"``, ``"threads"``, ``"exit"``, ``"crash"``, ``"killed"``, or
            ``"start"`` where there is no process, or the module of the function cannot be imported in one.
        text: The tool and the reason.
        detail: More of the reason, from the user's code, which a masked text leaves out.
    """

    def __init__(self, kind: str, text: str, detail: str = "") -> None:
        super().__init__(f"{text}: {detail}" if detail else text)
        self.kind = kind
        self.detail = detail
        self.masked = f"{text}; the server's operator finds the reason in the log" if detail else text


class RaisedElsewhere(Exception):
    """An isolated function has raised an exception in its process.

    Args:
        summary: Its type and text.
        shown: Its traceback, from the user's own frames on.
    """

    def __init__(self, summary: str, shown: str) -> None:
        super().__init__(summary)
        self.shown = shown


class DependencyFailed(Exception):
    """Something that a function needs could not be made, or not be closed. The cause is the exception."""


def failed(error: Exception) -> CallToolResult:
    """Returns the result that the author of a tool, or the check of its arguments, wants the model to read."""
    return CallToolResult([TextContent(encodable(str(error)))], is_error=True)


def tool_error_in(group: ExceptionGroup[Exception]) -> ToolError | None:
    """Returns the `ToolError` that a nursery of the tool has put into a group, if nothing else is in it."""
    cause = sole_cause(group)
    return cause if isinstance(cause, ToolError) else None


def answer_to(call: InboundCall, error: BaseException, mask: bool | None) -> Any:
    """Logs a failure and returns what answers the call: a result, an `RpcError`, or ``error`` if it is the engine's.

    Args:
        mask: `Server`'s ``mask_errors``.
    """
    if not _is_users(error):
        return error
    method = call.invocation.method.name
    target = _target(call)
    feature = _FEATURES.get(method)
    principal = call.invocation.principal
    details: dict[str, Any] = {
        **({"method": method} if feature is None else {feature: target}),
        "session": call.owner.name,
        "id": call.id,
        "principal": principal.subject if principal is not None else None,
        "seconds": round(trio.current_time() - call.started, 3),
    }
    masked = mask or (mask is None and principal is not None)
    if isinstance(error, OutOfTime):
        blocked = {} if error.blockage is None else {"blocked": error.blockage.sentence()}
        log.warning("a tool ran out of its time", **details, **blocked)
        told = "" if error.blockage is None else f"; {error.blockage.sentence(in_full=not masked)}"
        return failed(ToolError(f"{error}{told}"))
    if isinstance(error, ProcessEnded):
        if error.kind == "start":
            log.error("a tool cannot be started in a process", **details, why=error.kind, reason=error.detail)
        else:
            log.warning("the process of a tool has ended, and is replaced", **details, why=error.kind)
        text = _cut(encodable(error.masked if masked else str(error)), MAX_TEXT)
        return CallToolResult([TextContent(text)], is_error=True, meta={ENDED: error.kind})
    reference = secrets.token_hex(4)
    # A client may leave while it is asked something, which is no failure of the function that asks.
    left = isinstance(error, ConnectionLost | SessionExpired) and passes_through(
        error.__traceback__, _QUESTIONS
    )
    write = log.debug if left else log.error
    write("handler failed", **details, reference=reference, **_logged(error))
    name = f"{feature} {target}" if feature not in (None, "tool") else target or method
    if masked:
        text = f"{name}: failed; the server's operator finds the reason under the reference {reference}"
    else:
        text = f"{name}: {summary(error)}"
    if feature == "tool":
        return CallToolResult([TextContent(text)], is_error=True)
    return RpcError(INTERNAL_ERROR, text)


def _logged(error: BaseException) -> dict[str, Any]:
    """The members of the log line that say what was raised, the engine's frames before the user's left out."""
    raised = error.__cause__ or error if isinstance(error, InvalidResult | DependencyFailed) else error
    traceback = users_frames(raised.__traceback__)
    if isinstance(error, InvalidResult) and traceback is None:
        # No frame leads to the function, which has returned.
        return {"error": summary(error)}
    if isinstance(error, RaisedElsewhere):
        return {"error": summary(error), "traceback": error.shown}
    return {"exc_info": (type(raised), raised, traceback or raised.__traceback__)}


def _target(call: InboundCall) -> str:
    target = shown_target(call.invocation)
    return "" if target is None else _cut(encodable(target), MAX_TARGET)


def summary(error: BaseException) -> str:
    """The type and text of an exception, or of the first ones in a group."""
    if isinstance(error, InvalidResult):
        return _cut(f"it returned what cannot be sent: {text_of(error)}", MAX_TEXT)
    if isinstance(error, DependencyFailed) and error.__cause__ is not None:
        return _cut(f"{text_of(error)}: {summary(error.__cause__)}", MAX_TEXT)
    if isinstance(error, RaisedElsewhere):
        return _cut(text_of(error), MAX_TEXT)
    if isinstance(error, BaseExceptionGroup):
        leaves = _leaves(error)
        more = [f"and {len(leaves) - MAX_GROUP} more"] if len(leaves) > MAX_GROUP else []
        return _cut("; ".join([*map(summary, leaves[:MAX_GROUP]), *more]), MAX_TEXT)
    text, kind = text_of(error), type(error).__qualname__
    if isinstance(error, (RuntimeError, TypeError)) and text.startswith(_NEEDS_ASYNCIO):
        text = 'it awaits something of asyncio, and runs on Trio: declare it with loop="asyncio"'
    return _cut(f"{kind}: {text}" if text else kind, MAX_TEXT)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        each = stack.pop()
        if isinstance(each, BaseExceptionGroup):
            stack.extend(reversed(each.exceptions))
        else:
            found.append(each)
    return found


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _is_users(error: BaseException) -> bool:
    """Whether a function of the user raised it, or returned what cannot be sent: clients learn of nothing else."""
    if isinstance(error, InvalidResult | OutOfTime | DependencyFailed | ProcessEnded | RaisedElsewhere):
        return True
    if isinstance(error, BaseExceptionGroup) and any(map(_is_users, error.exceptions)):
        return True
    frames = error.__traceback__
    return (
        users_frames(frames) is not None or passes_through(frames, _CALLS) or passes_through(frames, _ASYNCIO)
    )


# -- Frames of the user's own code: in the traceback of a failure, and in the call that registers something ---


def passes_through(traceback: TracebackType | None, module: str) -> bool:
    """Whether one of the frames is in ``module``."""
    while traceback is not None:
        if module_of(traceback) == module:
            return True
        traceback = traceback.tb_next
    return False


class LineNamed:
    """A context manager that puts the file and line of the user's code before the text of what leaves the block."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (TypeError, ValueError, McpError)) and len(error.args) == 1:
            place = _calling_line()
            if place and not str(error).startswith(place):
                error.args = (f"{place}: {error}",)


def _calling_line() -> str:
    """The innermost line of the user's code that is being executed, or an empty text outside of it."""
    frame = sys._getframe(1)
    while not is_users_module(frame.f_globals.get("__name__", "")):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}, line {frame.f_lineno}"
