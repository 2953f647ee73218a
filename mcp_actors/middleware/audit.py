"""A line for each call: who called what, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from mcp_actors.context import Context
from mcp_actors.errors import RpcError
from mcp_actors.logging import log, write_wanted
from mcp_actors.middleware.callers import as_json, target_of
from mcp_actors.server import CallNext
from mcp_actors.supervision import is_cancelled
from mcp_actors.types import CallToolResult

__all__ = ["AuditEntry", "AuditLog", "masked"]

# Arguments that are named in an entry, and characters of a name: a client may send any number of any length.
MOST_ARGUMENTS = 32
LONGEST_NAME = 100

Write = Callable[["AuditEntry"], object]


@attrs.frozen
class AuditEntry:
    """One call that has ended, or one notification."""

    at: float
    """Seconds since the epoch at which it began."""
    principal: str | None
    """The subject of the caller that the transport has authenticated."""
    issuer: str | None
    """The authorization server that vouches for the subject."""
    client: str | None
    """The OAuth client that acts for the subject."""
    session: str
    """The name of the session in the log and in `Server.tree`."""
    method: str
    target: str | None
    """The tool, prompt or resource, as the client named it, at most 200 characters."""
    arguments: Mapping[str, Any]
    """What ``AuditLog(arguments=)`` has made of the arguments."""
    ending: str
    """``answered``, ``tool error``, ``error CODE`` (-32603 where an operator has ended it), ``failed``, ``cancelled``
    or ``replaced by questions``: then the client is asked, and makes the call again."""
    seconds: float
    size: int | None
    """Bytes of the result as JSON; ``None`` without one."""


def masked(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of arguments with ``***`` in place of each value."""
    names = list(arguments)[:MOST_ARGUMENTS]
    return {name[:LONGEST_NAME]: "***" for name in names}


class AuditLog:
    """Middleware of a server: writes an entry for each call when it has ended, and for each notification.

    Added first, it sees what other middleware refuses as well. What ``ping``, ``initialize`` and a missing scope are
    answered with passes no middleware.

    Args:
        write: Is called with each `AuditEntry`, in the event loop: it must not block. By default the entry is a line of
            the level info in the package's log, or on standard error if the program has not configured structlog.
            What it raises is logged, and the call is answered all the same.
        arguments: Makes of the arguments of a tool or prompt, and of the params of other methods, what is written. By
            default their values are masked, because nobody knows which of them are secrets.

    Raises:
        TypeError: One of them is no function.
    """

    def __init__(
        self,
        write: Write | None = None,
        *,
        arguments: Callable[[Mapping[str, Any]], Mapping[str, Any]] = masked,
    ) -> None:
        if not callable(arguments) or (write is not None and not callable(write)):
            raise TypeError("write and arguments are functions: AuditLog(write, arguments=shown)")
        self._write = write or _as_log_line
        self._arguments = arguments

    def __repr__(self) -> str:
        return "<AuditLog>"

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Writes down a call."""
        at, began = time.time(), trio.current_time()
        ending, size = "failed", None
        try:
            result = await call_next()
            ending = "tool error" if isinstance(result, CallToolResult) and result.is_error else "answered"
            size = _size(ctx, result)
            return result
        except RpcError as error:
            ending = f"error {error.code}"
            raise
        except BaseException:
            if isinstance(ctx.call.replacement, RpcError):
                ending = f"error {ctx.call.replacement.code}"
            elif is_cancelled():
                ending = "replaced by questions" if ctx.call.state == "replaced" else "cancelled"
            raise
        finally:
            self._note(ctx, at, trio.current_time() - began, ending, size)

    async def notification(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Writes down a notification."""
        return await self(ctx, call_next)

    def _note(self, ctx: Context, at: float, seconds: float, ending: str, size: int | None) -> None:
        principal = ctx.principal
        try:
            self._write(
                AuditEntry(
                    at,
                    None if principal is None else principal.subject,
                    None if principal is None else principal.issuer,
                    None if principal is None else principal.client,
                    ctx.call.owner.name,
                    ctx.method,
                    target_of(ctx.call.invocation),
                    self._arguments(_arguments_of(ctx)),
                    ending,
                    seconds,
                    size,
                )
            )
        except Exception as error:
            log.error("an audit entry could not be written", method=ctx.method, exc_info=error)


def _arguments_of(ctx: Context) -> Mapping[str, Any]:
    arguments = ctx.params.get("arguments")
    return arguments if isinstance(arguments, Mapping) else ctx.params


def _size(ctx: Context, result: Any) -> int | None:
    try:
        return 0 if result is None else len(as_json(ctx, result))
    except (TypeError, ValueError):
        # It cannot be sent either, and the client is told so.
        return None


def _as_log_line(entry: AuditEntry) -> None:
    members = {name: value for name, value in attrs.asdict(entry).items() if value is not None}
    write_wanted("audit", **members | {"at": round(entry.at, 3), "seconds": round(entry.seconds, 6)})
