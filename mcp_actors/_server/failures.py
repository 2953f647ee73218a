"""The policy for calls that fail: who sees what of it. ``docs/failures.md`` is the same table for users.

==================================  ======================================  ====================================
what the call ended with            what the client is sent                 what the log says
==================================  ======================================  ====================================
`ToolError`                         a result with ``isError``, its text     nothing
arguments that do not fit a tool    a result with ``isError``, each one     nothing
`RpcError`                          that error                              nothing
the time limit of a tool            a result with ``isError``, the limit    a warning
any other exception of a tool       a result with ``isError``: the tool,    tool, session, principal, duration,
                                    the exception's type and text           reference, and the user's own frames
the same of another feature         -32603 with the same text               the same
a defect of the engine              -32603, "internal error"                the whole traceback
==================================  ======================================  ====================================

A masked text has a random reference, which is in the log as well, in place of the exception.
"""

from __future__ import annotations

import secrets
import sys
from types import TracebackType
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._exception_groups import sole_cause
from mcp_actors.errors import INTERNAL_ERROR, RpcError, ToolError
from mcp_actors.logging import log
from mcp_actors.types import CallToolResult, TextContent

__all__ = ["OutOfTime", "answer_to", "failed", "tool_error_in"]

# Characters of an exception's text that are sent: a model reads all of it.
MAX_TEXT = 2000
# Characters of a URI or name in a message; a client may have made it up.
MAX_TARGET = 200
# Exceptions of a group whose texts are sent.
MAX_GROUP = 5

# The feature that answers a method; its name is the key under which the log has the target, too.
_FEATURES = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}

# The packages whose frames say nothing about the user's function, and those within them that are the user's.
_ENGINE = frozenset({"mcp_actors", "mcp_transports", "trio", "outcome", "attr", "attrs", "msgspec"})
_USERS = ("mcp_actors.examples", "mcp_actors.simulate", "mcp_actors.testing")
# Where functions of the user are called: what one raises that is written in C has no frame of its own.
_CALLS = "mcp_actors._server.invoke"


class OutOfTime(Exception):
    """A tool has reached the time limit that it was registered with. The text is for the model."""


def failed(error: Exception) -> CallToolResult:
    """Returns the result that the author of a tool, or the check of its arguments, wants the model to read."""
    return CallToolResult([TextContent(_readable(str(error)))], is_error=True)


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
    details: dict[str, Any] = {
        **({"method": method} if feature is None else {feature: target}),
        "session": call.owner.name,
        "id": call.id,
        "principal": call.invocation.principal,
        "seconds": round(trio.current_time() - call.started, 3),
    }
    if isinstance(error, OutOfTime):
        log.warning("a tool ran out of its time", **details)
        return failed(error)
    reference = secrets.token_hex(4)
    traceback = _users_frames(error.__traceback__)
    log.error("handler failed", **details, reference=reference, exc_info=(type(error), error, traceback))
    name = f"{feature} {target}" if feature not in (None, "tool") else target or method
    if mask or (mask is None and call.invocation.principal is not None):
        text = f"{name}: failed; the server's operator finds the reason under the reference {reference}"
    else:
        text = f"{name}: {_summary(error)}"
    if feature == "tool":
        return CallToolResult([TextContent(text)], is_error=True)
    return RpcError(INTERNAL_ERROR, text)


def _target(call: InboundCall) -> str:
    method = call.invocation.method
    target = call.invocation.params.get(method.target) if method.target else None
    return _cut(_readable(target), MAX_TARGET) if isinstance(target, str) else ""


def _summary(error: BaseException) -> str:
    """The type and text of an exception, or of the first ones in a group."""
    if isinstance(error, InvalidResult):
        return _cut(f"it returned what cannot be sent: {_text(error)}", MAX_TEXT)
    if isinstance(error, BaseExceptionGroup):
        leaves = _leaves(error)
        more = [f"and {len(leaves) - MAX_GROUP} more"] if len(leaves) > MAX_GROUP else []
        return _cut("; ".join([*map(_summary, leaves[:MAX_GROUP]), *more]), MAX_TEXT)
    text, kind = _text(error), type(error).__qualname__
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


def _text(error: BaseException) -> str:
    try:
        return _readable(str(error))
    except Exception as failure:
        return f"its text cannot be read ({type(failure).__name__})"


def _readable(text: str) -> str:
    """``text`` without the lone surrogates that JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _is_users(error: BaseException) -> bool:
    """Whether a function of the user raised it, or returned what cannot be sent: nothing else is told to clients."""
    if isinstance(error, InvalidResult | OutOfTime):
        return True
    if isinstance(error, BaseExceptionGroup) and any(map(_is_users, error.exceptions)):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        if _module(traceback) == _CALLS or _is_users_frame(traceback):
            return True
        traceback = traceback.tb_next
    return False


def _users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the user's on, or all of it if there is none."""
    each = traceback
    while each is not None:
        if _is_users_frame(each):
            return each
        each = each.tb_next
    return traceback


def _is_users_frame(traceback: TracebackType) -> bool:
    module = _module(traceback)
    package = module.partition(".")[0]
    if package in _ENGINE:
        return module.startswith(_USERS)
    return package not in sys.stdlib_module_names


def _module(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", ""))
