"""The log of the engine and the bindings. Writing a line never raises and never blocks.

The lines go to structlog if the program has configured it; what the program's own sinks do then, and how long they
take, is the program's choice. If it has not, warnings and worse go to standard error, because a library that nobody
configured stays quiet and standard output may belong to a protocol. A command that an operator has started with options
for its log (`configure_log`) obeys these, whatever the program says.

Standard error may be a pipe without a reader, a full disk or closed. So a thread writes it, from a queue that is
bounded by its bytes; a line that does not fit is dropped and counted, and the count is written with the next
line that goes through. Of the lines that say the same, `BURST` are written in `WINDOW` seconds; the others are
counted, and the next one that is written tells their number. What a peer can cause over and over must not fill a disk.

structlog is imported at the first line, and what writes JSON at the first that is JSON: together they take a third of
the time in which a stdio server starts.

As JSON each line is an object, also what children, libraries and commands write there through this module, so that a
collector of logs has nothing to guess. A traceback is the member ``exception``.
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
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import trio

from mcp_actors.supervision.printable import safe, safe_json, spelled_out

__all__ = [
    "LogFormat",
    "LogLevel",
    "RareWarning",
    "configure_log",
    "flush_to_stderr",
    "given_log",
    "log",
    "logger",
    "members_of_process",
    "note_process",
    "wait_until_written",
    "write_line",
    "write_to_stderr",
    "writes_json",
]

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["text", "json"]
_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
# The members that each line has, in this order, before its own.
_FIRST = ("timestamp", "level", "event")
# Lines of standard error that are written in one piece.
_TOGETHER = 256
# Bytes of lines that wait to be written: some thousand lines, or one burst of long tracebacks.
QUEUE_BYTES = 1024 * 1024
# Characters of one line; a traceback of some hundred frames fits.
LINE_CHARACTERS = 32 * 1024
# Lines with the same text, whatever their details are, that are written in so many seconds.
BURST = 50
WINDOW = 10.0
# Different texts that are remembered for that. There are some hundred; a program's own may be without end.
TEXTS = 1024
# Seconds for which a line of which there are many waits for others, so that they are written in one piece.
GATHERED = 0.05
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
        self._is_urgent = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def msg(self, line: str, *, can_wait: bool = False) -> None:
        """Queues a line, or drops it if the queue is full.

        Args:
            line: The line.
            can_wait: Whether it may wait for others for `GATHERED` seconds: to wake the thread that writes for each of
                many lines takes four times as long as to make them.
        """
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
            if can_wait and len(self._lines) > 1 and len(self._lines) < _TOGETHER:
                return
            self._is_urgent = self._is_urgent or not can_wait or len(self._lines) >= _TOGETHER
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
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_idle, seconds)

    @property
    def is_idle(self) -> bool:
        """Whether everything is written."""
        return not self._lines and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                self._changed.wait_for(lambda: self._is_urgent, GATHERED)
                lines = [self._lines.popleft() for _ in range(min(len(self._lines), _TOGETHER))]
                dropped = self._dropped
                self._size -= sum(map(len, lines))
                self._dropped = 0
                self._is_urgent = bool(self._lines)
                self._writing = True
            if dropped:
                lines.insert(0, raw_line(f"{dropped} log lines were dropped: standard error is not read"))
            # Each write is a call of the system and a turn of the interpreter's lock.
            _write("\n".join(lines))
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
    in_form: list[Any] = (
        [structlog.processors.format_exc_info, lambda _, __, line: json_line(line)]
        if _settings.form == "json"
        else [
            # Not padded, and plain: pretty tracebacks take long and print local variables, secrets among them.
            structlog.dev.ConsoleRenderer(0, colors=False, exception_formatter=structlog.dev.plain_traceback),
            # It may be shown on a terminal, and has texts of peers in it.
            lambda _, __, line: safe(line),
        ]
    )
    return structlog.wrap_logger(
        _stderr,
        processors=[
            RepeatLimit(),
            _with_call,
            # Such as the number of the worker, in a process that is one of several.
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *in_form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_settings.level),
    )


# -- as an operator has said ---------------------------------------------------------------------------


class _LogSettings:
    """The level and the form of the lines, and what every line says of the process."""

    def __init__(self) -> None:
        self.is_given = False
        """Whether an operator has said so, and not the program."""
        self.level: LogLevel = "warning"
        self.form: LogFormat = "text"
        self.process: dict[str, Any] = {}


_settings = _LogSettings()


def configure_log(level: LogLevel | None = None, form: LogFormat | None = None) -> None:
    """Says which lines are written to standard error from now on, and in which form, whatever the program configures.

    Lines of the standard library's `logging`, as other libraries write them, go there too, unless the program has a
    handler for them. For commands: a program of its own configures structlog.

    Args:
        level: The least severe level that is written, by default ``"warning"``.
        form: ``"json"`` for an object a line; by default ``"text"``.
    """
    _settings.level, _settings.form = level or "warning", form or "text"
    _settings.is_given = True
    _unconfigured.cache_clear()
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_StandardHandler())
        root.setLevel(_settings.level.upper())


def given_log() -> tuple[LogLevel, LogFormat] | None:
    """Returns what `configure_log` was given, for a process that belongs to this one; ``None`` if it was not called."""
    return (_settings.level, _settings.form) if _settings.is_given else None


def members_of_process() -> dict[str, Any]:
    """Returns what `note_process` was given."""
    return dict(_settings.process)


def writes_json() -> bool:
    """Whether each line is an object of JSON."""
    return _settings.form == "json"


def note_process(**members: Any) -> None:
    """Has each line say something of this process, such as its number among several."""
    _settings.process.update(members)


class _StandardHandler(logging.Handler):
    """Writes what other libraries log as this module writes its own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        details: dict[str, Any] = {"logger": record.name}
        if record.exc_info is not None and record.exc_info[1] is not None:
            details["exc_info"] = record.exc_info[1]
        try:
            text = record.getMessage()
        except Exception as error:
            text = f"{record.msg!r} ({type(error).__name__})"
        _emit(level if level in _LEVELS else "info", text, **details)


def write_line(event: str, members: Mapping[str, Any]) -> None:
    """Writes a line of the process itself, which has no level and is written at any: it never raises or blocks.

    Args:
        event: What it is about, such as ``"access"``.
        members: Its members. Those that are ``None`` are left out.
    """
    at = _now()
    given = {name: value for name, value in {**_settings.process, **members}.items() if value is not None}
    if _settings.form == "json":
        _stderr.msg(json_line({"timestamp": at, "level": "info", "event": event, **given}), can_wait=True)
    else:
        said = " ".join([f"{name}={_plain(value)}" for name, value in given.items()])
        _stderr.msg(f"{at} [{event}] {said}", can_wait=True)


def _now() -> str:
    """Returns the time as every line of the log has it, so that lines can be sorted by it."""
    now = time.time()
    return f"{_second(int(now))}.{int(now % 1 * 1e6):06d}Z"


@functools.lru_cache(maxsize=2)
def _second(now: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))


def _plain(value: object) -> str:
    """Returns a value on one line and as one word: with quotation marks where it has blanks or characters that hide."""
    if type(value) is not str:
        return str(value)
    if value.isascii() and value.isprintable() and value and not _NEEDS_QUOTES.intersection(value):
        return value
    return f'"{spelled_out(value).replace(chr(34), chr(92) + chr(34))}"'


_NEEDS_QUOTES = frozenset(' "=\\')


def json_line(line: Mapping[str, Any]) -> str:
    """Returns a line of the log as a JSON object that no terminal obeys, no longer than a line may be."""
    members = {name: line[name] for name in _FIRST if name in line}
    members |= {name: _as_json(value) for name, value in line.items() if name not in members}
    longest = LINE_CHARACTERS // 2
    dumps = importlib.import_module("json").dumps
    while len(text := safe_json(dumps(members, default=repr, ensure_ascii=False))) > LINE_CHARACTERS:
        members = {name: _shortened(value, longest) for name, value in members.items()}
        longest //= 2
        if not longest:
            return json_line({name: members.get(name, "") for name in _FIRST})
    return text


def _as_json(value: object) -> object:
    # JSON has no words for these.
    return str(value) if type(value) is float and not math.isfinite(value) else value


def _shortened(value: object, longest: int) -> object:
    text = value if isinstance(value, str) else None if isinstance(value, int | float | bool) else repr(value)
    if text is None:
        return value
    return value if len(text) <= longest else f"{text[:longest]} …"


def raw_line(line: str) -> str:
    """Returns a text that is no line of the log, such as one of a child, in the form of the log."""
    if _settings.form != "json":
        return line
    return json_line({"timestamp": _now(), "level": "info", "event": line, **_settings.process})


def write_to_stderr(line: str) -> None:
    """Writes a line, given without its newline, to standard error in the way of the log: it never raises or blocks.

    Where the log is JSON, it becomes the event of an object.
    """
    _stderr.msg(raw_line(line))


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
    if "structlog" in sys.modules and not _settings.is_given:
        # What another thread is importing is there already, and half: to import it as well waits for the other half.
        structlog = importlib.import_module("structlog")
        if structlog.is_configured():
            return structlog.get_logger("mcp_actors")
    return _unconfigured()


def _say_nothing(event: str, **details: Any) -> None:
    pass


def is_below(level: str) -> bool:
    """Whether a level is not written, unless the program has configured structlog."""
    return level in _LEVELS[: _LEVELS.index(_settings.level)]


class _Log:
    """Asks for the logger at each line, because a program may configure structlog after it imported this module."""

    def __getattr__(self, level: str) -> Any:
        if "structlog" not in sys.modules and is_below(level):
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
            write_to_stderr(f"a log line could not be written: {event!r} {said} ({type(error).__name__})")
        except MemoryError:
            return


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


log: Any = _Log()
"""The engine's logger: ``log.warning("event", detail=…)`` and so on. Takes an event and details, never raises."""
