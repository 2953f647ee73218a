"""A line for each call: who called what, and how it ended.

A thread writes the entries, so that no call waits for a disk or a network.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs
import trio

from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import RpcError
from mcp_actors.middleware.callers import as_json, target_of
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.containment import is_cancelled
from mcp_actors.supervision.logging import log, write_to_stderr
from mcp_actors.types import CallToolResult

__all__ = [
    "EXIT_TIMEOUT",
    "MAX_WAITING",
    "MAX_WAITING_BYTES",
    "AuditEntry",
    "AuditLog",
    "EntryThread",
    "masked",
    "weight_of",
]


# Entries that wait to be written, and the bytes of what is shown of their arguments; beyond either of them new ones are
# lost, and that is logged. With masked arguments they take some 10 MiB.
MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
# Seconds in which the process writes what waits before it ends.
EXIT_TIMEOUT = 5.0


class EntryThread:
    """Calls ``write`` with one entry after the other, in a thread that begins with the first one.

    Args:
        write: Writes an entry; it may block.
        lose: Is called with each error of ``write``, in the thread.
    """

    def __init__(self, write: Callable[[Any], object], lose: Callable[[Exception], None]) -> None:
        self._write = write
        self._lose = lose
        self._begin()
        atexit.register(self.flush, EXIT_TIMEOUT)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, entry: Any, weight: int) -> bool:
        """Takes an entry; returns whether there was room for it.

        Args:
            entry: What is written.
            weight: Its bytes. One that is heavier than all may be is taken where nothing waits: a client chooses the
                size of its arguments, and must not keep its call out of a log by it.
        """
        if self._process != os.getpid():
            # A fork has a copy of what waits, which its parent writes, and no thread.
            self._begin()
        with self._changed:
            if len(self._waiting) >= MAX_WAITING or (
                self._waiting and self._bytes + weight > MAX_WAITING_BYTES
            ):
                return False
            self._waiting.append((entry, weight))
            self._bytes += weight
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mcp-actors audit", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def flush(self, seconds: float) -> bool:
        """Waits until everything is written, for at most ``seconds``; returns whether it is."""
        if self._process != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                entry, weight = self._waiting.popleft()
                self._bytes -= weight
                self._writing = True
            try:
                self._write(entry)
            except Exception as error:
                self._lose(error)
            # What a client sent is not kept until the next entry comes.
            del entry
            with self._changed:
                self._writing = False
                self._changed.notify_all()


def weight_of(value: Any) -> int:
    """Returns the bytes that a value and what is in it take, and no more than `MAX_WAITING_BYTES`."""
    weight, left = 0, [value]
    while left and weight < MAX_WAITING_BYTES:
        each = left.pop()
        weight += sys.getsizeof(each)
        if isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            left += each
    return min(weight, MAX_WAITING_BYTES)


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
            default their values are masked, because any of them may be a secret. Where it fails they are
            masked too, so that odd arguments keep no call out of the log.
        in_thread: Whether a thread calls ``write``, for files, databases and networks, which may be slow or full. Then
            10,000 entries may wait, with 64 MiB of arguments; beyond it they are lost, which is logged and counted in
            ``lost``. When the process ends it writes what waits, for 5 seconds at most.

    Raises:
        TypeError: One of them is not a function, or an ``async def``.
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
        # It cannot be sent either, and the client gets an error.
        return None


def _as_log_line(entry: AuditEntry) -> None:
    members = {name: value for name, value in attrs.asdict(entry).items() if value is not None}
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        log.info("audit", **members)
    else:
        # The log of a program that has configured nothing shows warnings only.
        write_to_stderr(f"audit {encode_value(members).decode()}")
