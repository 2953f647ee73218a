"""A line for each call: who called what, and how it ended."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs
import trio

from mcp_actors._wire.codec import encode_value
from mcp_actors.context import Context
from mcp_actors.errors import RpcError
from mcp_actors.logging import log, write_to_stderr
from mcp_actors.middleware.callers import as_json, target_of
from mcp_actors.middleware.entry_thread import EntryThread, weight_of
from mcp_actors.server import CallNext
from mcp_actors.supervision import is_cancelled
from mcp_actors.types import CallToolResult

__all__ = ["AuditEntry", "AuditLog", "masked"]

# Arguments that are named in an entry, and characters of a name: a client may send any number of any length.
MOST_ARGUMENTS = 32
LONGEST_NAME = 100
# Seconds for which nothing more is said of entries that are lost: a full disk loses one with each call.
LOGGED_EVERY = 10.0

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
    """The tool, prompt or resource, as the client named it, at most 200 characters. Of a URI, what may hold a secret is
    ``***``: the user information, the query and the fragment."""
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
        write: Is called with each `AuditEntry`, in the event loop: it must not block, unless ``in_thread`` is set. By
            default the entry is a line of the program's structlog or, if that is not configured, of standard error,
            which a thread writes. What it raises is logged, and the call is answered all the same.
        arguments: Makes of the arguments of a tool or prompt, and of the params of other methods, what is written. By
            default their values are masked, because nobody knows which of them are secrets. Where it fails they are
            masked too, so that nobody can keep a call out of the log by odd arguments.
        in_thread: Whether a thread calls ``write``, for files, databases and networks, which may be slow or full. Then
            10,000 entries may wait, with 64 MiB of arguments; beyond it they are lost, which is logged and counted in
            ``lost``. When the process ends it writes what waits, for 5 seconds at most.

    Raises:
        TypeError: One of them is no function, or an ``async def``.
    """

    for_side: ClassVar = "server"

    def __init__(
        self,
        write: Write | None = None,
        *,
        arguments: Callable[[Mapping[str, Any]], Mapping[str, Any]] = masked,
        in_thread: bool = False,
    ) -> None:
        for given in (arguments, write or masked):
            if not callable(given) or inspect.iscoroutinefunction(given):
                raise TypeError("write and arguments are plain functions: AuditLog(write, arguments=shown)")
        self.lost = 0
        """Entries that could not be written, since the start."""
        self._logged_at = -LOGGED_EVERY
        self._write = write or _as_log_line
        self._arguments = arguments
        self._thread = EntryThread(self._write, self._lose) if in_thread else None

    def __repr__(self) -> str:
        return f"<AuditLog lost={self.lost}>"

    def flush(self, seconds: float = 5.0) -> bool:
        """Waits, with ``in_thread``, until all entries are written, and returns whether they are. It blocks.

        Args:
            seconds: The longest time to wait.
        """
        return self._thread is None or self._thread.flush(seconds)

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
            entry = AuditEntry(
                at,
                None if principal is None else principal.subject,
                None if principal is None else principal.issuer,
                None if principal is None else principal.client,
                ctx.call.owner.name,
                ctx.method,
                target_of(ctx.call.invocation),
                self._shown(_arguments_of(ctx)),
                ending,
                seconds,
                size,
            )
            if self._thread is None:
                self._write(entry)
            elif not self._thread.put(entry, weight_of(entry.arguments)):
                self._lose(None)
        except Exception as error:
            self._lose(error)

    def _shown(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._arguments(arguments)
        except Exception as error:
            # Without its text, which may hold the value of an argument.
            log.error(
                "arguments of an audit entry are masked: the function failed", error=type(error).__name__
            )
            return masked(arguments)

    def _lose(self, error: Exception | None) -> None:
        """Counts an entry that is lost, and says so now and then; ``error`` is ``None`` if too many wait."""
        self.lost += 1
        now = time.monotonic()
        if now - self._logged_at >= LOGGED_EVERY:
            self._logged_at = now
            log.error(
                "an audit entry could not be written",
                lost=self.lost,
                reason="too many wait to be written" if error is None else None,
                exc_info=error,
            )


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
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        log.info("audit", **members)
    else:
        # The log of a program that has configured nothing shows warnings only.
        write_to_stderr(f"audit {encode_value(members).decode()}")
