"""The log of the engine and the bindings. Writing a line never raises and never blocks.

The lines go to structlog if the program has configured it; what the program's own sinks do then, and how long they
take, is the program's choice. If it has not, warnings and worse go to standard error, because a library that nobody
configured stays quiet and standard output may belong to a protocol.

Standard error may be a pipe without a reader, a full disk or closed. So a thread writes it, from a queue that is
bounded by its bytes; a line that does not fit is dropped and counted, and the count is written with the next
line that goes through. Of the lines that say the same, `BURST` are written in `WINDOW` seconds; the others are
counted, and the next one that is written tells their number. What a peer can cause over and over must not fill a disk.

structlog is imported at the first line: it takes a third of the time in which a stdio server starts.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from mcp_actors.supervision.printable import safe

__all__ = ["RareWarning", "flush_to_stderr", "log", "logger", "wait_until_written", "write_to_stderr"]

# Levels that are written only by programs that have configured structlog.
_QUIET = frozenset({"debug", "info"})
# Bytes of lines that wait to be written: some thousand lines, or one burst of long tracebacks.
QUEUE_BYTES = 1024 * 1024
# Characters of one line; a traceback of some hundred frames fits.
LINE_CHARACTERS = 32 * 1024
# Lines with the same text, whatever their details are, that are written in so many seconds.
BURST = 50
WINDOW = 10.0
# Different texts that are remembered for that. There are some hundred; a program's own may be without end.
TEXTS = 1024
# Seconds in which the process writes what is queued before it ends.
EXIT_TIMEOUT = 1.0
# Seconds between two looks of a task whether everything is written.
_LOOK_AGAIN = 0.001
# Seconds between two lines of a `RareWarning`, and for which its cause counts.
REPEATED_AFTER = 60.0


class StderrWriter:
    """Writes lines to standard error from a thread of its own, so that no caller ever waits for its reader."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Sets everything up; called again in a forked child, which has no threads."""
        self._lines: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def msg(self, line: str) -> None:
        """Queues a line, or drops it if the queue is full."""
        stream = sys.stderr
        if stream is None:
            return
        line = line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} …"
        # A stream in memory, as tests put one there, cannot block. And once the interpreter ends, which lets objects of
        # programs go that were never closed, a thread that is started never begins, and nobody would wait for it.
        if not _has_descriptor(stream) or sys.is_finalizing() or not self._has_thread():
            _write(line)
            return
        with self._changed:
            if self._size + len(line) > QUEUE_BYTES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def _has_thread(self) -> bool:
        """Whether there is a thread that writes; it is started by the first line."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="mcp-actors log", daemon=True)
                try:
                    thread.start()
                except (RuntimeError, MemoryError):
                    # The system has no room for one, or, from CPython 3.12 on, the program is about to end.
                    return False
                self._thread = thread
        return True

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg

    def flush(self, seconds: float) -> None:
        """Waits until everything is written, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_idle, seconds)

    @property
    def is_idle(self) -> bool:
        """Whether everything is written."""
        return not self._lines and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, dropped = self._lines.popleft(), self._dropped
                self._size -= len(line)
                self._dropped = 0
                self._writing = True
            if dropped:
                line = f"{dropped} log lines were dropped: standard error is not read\n{line}"
            _write(line)
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class RepeatLimit:
    """Drops lines that repeat others too often; a processor of structlog.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By level and text: when its window began, and the lines since then.
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}

    def __call__(self, _: Any, level: str, line: dict[str, Any]) -> dict[str, Any]:
        """Returns the line, with the number of those that were dropped before it; raises `structlog.DropEvent`."""
        key, now = (level, str(line.get("event"))), self._clock()
        began, lines = self._windows.get(key, (now, 0))
        if now - began >= WINDOW:
            dropped = lines - BURST
            began, lines = now, 0
            if dropped > 0:
                line["dropped_before"] = dropped
        if key not in self._windows and len(self._windows) >= TEXTS:
            self._windows.clear()
        self._windows[key] = (began, lines + 1)
        if lines >= BURST:
            raise importlib.import_module("structlog").DropEvent
        return line


class RareWarning:
    """Logs an event at most once in `REPEATED_AFTER` seconds, so that what fails with each call fills no log.

    Args:
        event: The event.
        clock: Returns the time in seconds; it must not be one that is set, as the time of day is.
        over: The event that the first one is over, logged once for each time that it was logged.
    """

    def __init__(
        self, event: str, clock: Callable[[], float] = time.monotonic, *, over: str | None = None
    ) -> None:
        self._event = event
        self._over = over
        self._is_logged = False
        self._details: dict[str, Any] = {}
        self._clock = clock
        self._quiet_until = -math.inf
        self._unlogged = 0
        self._cause: str | None = None
        self._caused_at = -math.inf

    def __call__(self, cause: str, **details: Any) -> None:
        """Logs the event with its cause, and with how often it has come since it was logged last."""
        self._cause = details["cause"] = cause
        self._caused_at = now = self._clock()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        self._quiet_until = now + REPEATED_AFTER
        self._is_logged = True
        self._details = {name: value for name, value in details.items() if name != "cause"}
        log.warning(self._event, **details, **({"again": self._unlogged} if self._unlogged else {}))
        self._unlogged = 0

    @property
    def cause(self) -> str | None:
        """The cause that came last, ``None`` once it is `over`, or `REPEATED_AFTER` seconds old.

        What is not used any more is not seen to work again either.
        """
        return self._cause if self._clock() - self._caused_at < REPEATED_AFTER else None

    def over(self) -> None:
        """Notes that nothing fails any more.

        What is full still has place for something small, and can be read: only a success of what failed shows that.
        """
        self._cause = None
        if self._is_logged and self._over is not None:
            log.warning(self._over, **self._details)
        self._is_logged = False


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False


def _write(line: str) -> None:
    """Writes to what standard error is now, so that a redirection gets what is written from then on."""
    try:
        stream = sys.stderr
        if getattr(stream, "isatty", bool)():
            # Children, upstreams and peers wrote parts of it.
            line = safe(line)
        buffer = getattr(stream, "buffer", None)
        if buffer is None:
            # With its newline, as `print` writes that by itself: another thread's words would come between the two.
            stream.write(f"{line}\n")
            stream.flush()
            return
        stream.flush()
        # Past the buffer of the stream: what could not be written would stay in it, and the interpreter tries that
        # again when it ends, waits for whoever does not read, or exits with 120.
        raw = getattr(buffer, "raw", buffer)
        left = memoryview(
            f"{line}{os.linesep}".encode(stream.encoding or "utf-8", stream.errors or "backslashreplace")
        )
        while left:
            left = left[raw.write(left) or len(left) :]
    except (OSError, ValueError, AttributeError):
        # A closed pipe, a full disk, a closed or missing stream: nothing is left to write to.
        return


_stderr = StderrWriter()
atexit.register(_stderr.flush, EXIT_TIMEOUT)
if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_stderr._begin)


def _with_call(_: Any, level: str, line: dict[str, Any]) -> dict[str, Any]:
    """Adds what telemetry says of a call to a line that a function writes through `Context.logger`."""
    return {**members_of_call(), **line}


@functools.cache
def _unconfigured() -> Any:
    structlog = importlib.import_module("structlog")
    return structlog.wrap_logger(
        _stderr,
        processors=[
            RepeatLimit(),
            _with_call,
            # Such as the number of the worker, in a process that is one of several.
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            # Not padded, and plain: pretty tracebacks take long and print local variables, secrets among them.
            structlog.dev.ConsoleRenderer(0, colors=False, exception_formatter=structlog.dev.plain_traceback),
            # It may be shown on a terminal, and has texts of peers in it.
            lambda _, __, line: safe(line),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


def write_to_stderr(line: str) -> None:
    """Writes a line, given without its newline, to standard error in the way of the log: it never raises or blocks."""
    _stderr.msg(line)


async def wait_until_written() -> None:
    """Waits until the lines are on standard error that were given before. Whoever waits bounds it by cancelling."""
    while not _stderr.is_idle:  # noqa: ASYNC110 - a thread that writes sets no event of a loop
        await trio.sleep(_LOOK_AGAIN)


def flush_to_stderr() -> None:
    """Waits until the lines of the log are written, for `EXIT_TIMEOUT` seconds at most, before a command's last words.

    It blocks, so no task may call it.
    """
    _stderr.flush(EXIT_TIMEOUT)


def logger() -> Any:
    """Returns a structlog logger for the moment: bind to it, log with it, do not keep it."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        return structlog.get_logger("mcp_actors")
    return _unconfigured()


def _say_nothing(event: str, **details: Any) -> None:
    pass


class _Log:
    """Asks for the logger at each line, because a program may configure structlog after it imported this module."""

    def __getattr__(self, level: str) -> Any:
        if level in _QUIET and "structlog" not in sys.modules:
            return _say_nothing
        return functools.partial(_emit, level)


def _nothing_more() -> dict[str, Any]:
    return {}


members_of_call: Callable[[], dict[str, Any]] = _nothing_more
"""Returns what every line says of the call that it belongs to; telemetry puts its own function here."""


def _emit(level: str, event: str, **details: Any) -> None:
    try:
        if members_of_call is not _nothing_more:
            details = {**members_of_call(), **details}
        getattr(logger(), level)(event, **details)
    except Exception as error:
        # A sink, a processor or the `repr` of a detail failed, or structlog could not be imported for want of a
        # descriptor. The task that logs must not fail because of it.
        try:
            said = " ".join(f"{name}={_text(value)}" for name, value in details.items())
            _stderr.msg(f"a log line could not be written: {event!r} {said} ({type(error).__name__})")
        except MemoryError:
            return


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


log: Any = _Log()
"""The engine's logger: ``log.warning("event", detail=…)`` and so on. Takes an event and details, never raises."""
