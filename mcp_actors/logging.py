"""The log of the engine and the bindings. Writing a line never raises and never blocks.

The lines go to structlog if the program has configured it; what the program's own sinks do then, and how long they
take, is the program's choice. If it has not, warnings and worse go to standard error, because a library that nobody
configured stays quiet and standard output may belong to a protocol.

Standard error may be a pipe that nobody reads, a full disk or closed. So a thread writes it, from a queue that is
bounded by its bytes; a line for which there is no room is dropped and counted, and the count is written with the next
line that goes through.

structlog is imported at the first line: it takes a third of the time in which a stdio server starts.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import os
import sys
import threading
from collections import deque
from typing import Any

__all__ = ["log", "logger", "write_to_stderr"]

# Levels that are written only by programs that have configured structlog.
_QUIET = frozenset({"debug", "info"})
# Bytes of lines that wait to be written: some thousand lines, or one burst of long tracebacks.
QUEUE_BYTES = 1024 * 1024
# Characters of one line; a traceback of some hundred frames fits.
LINE_CHARACTERS = 32 * 1024
# Seconds in which the process writes what is queued before it ends.
EXIT_TIMEOUT = 1.0


class StderrWriter:
    """Writes lines to standard error from a thread of its own, so that no caller ever waits for whoever reads it."""

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
        if not _has_descriptor(stream):
            # A stream in memory, as tests put one there, cannot block.
            _write(line)
            return
        with self._changed:
            if self._size + len(line) > QUEUE_BYTES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mcp-actors log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg

    def flush(self, seconds: float) -> None:
        """Waits until everything is written, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, dropped = self._lines.popleft(), self._dropped
                self._size -= len(line)
                self._dropped = 0
                self._writing = True
            if dropped:
                line = f"{dropped} log lines were dropped: nobody reads standard error\n{line}"
            _write(line)
            with self._changed:
                self._writing = False
                self._changed.notify_all()


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False


def _write(line: str) -> None:
    """Writes to what standard error is now, so that whoever redirects it gets what is written from then on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        # A closed pipe, a full disk, a closed or missing stream: there is no place left to say so.
        return


_stderr = StderrWriter()
atexit.register(_stderr.flush, EXIT_TIMEOUT)
os.register_at_fork(after_in_child=_stderr._begin)


@functools.cache
def _unconfigured() -> Any:
    structlog = importlib.import_module("structlog")
    return structlog.wrap_logger(
        _stderr,
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            # Plain: the pretty one takes long and prints local variables, secrets among them.
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


def write_to_stderr(line: str) -> None:
    """Writes a line, given without its newline, to standard error in the way of the log: it never raises or blocks."""
    _stderr.msg(line)


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


def _emit(level: str, event: str, **details: Any) -> None:
    try:
        getattr(logger(), level)(event, **details)
    except Exception as error:
        # A sink, a processor or the `repr` of a detail failed, or structlog could not be imported for want of a
        # descriptor. The task that logs must not fail because of it.
        said = " ".join(f"{name}={_text(value)}" for name, value in details.items())
        _stderr.msg(f"a log line could not be written: {event!r} {said} ({type(error).__name__})")


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


log: Any = _Log()
"""The engine's logger: ``log.warning("event", detail=…)`` and so on. Takes an event and details, never raises."""
