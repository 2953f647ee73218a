"""The signals that stop a command, from its first moment until it catches them itself, and behind that.

Python lets SIGTERM end a process without a word, and Ctrl-C raise `KeyboardInterrupt` wherever it happens to be: a
traceback in the middle of an import, a crash in a library written in C, or nothing at all, because many callbacks
swallow what is raised in them. Before the first line of this package nothing can be done about that. From then on:

========================================== ===========================================================================
while                                      SIGINT and SIGTERM
========================================== ===========================================================================
a command and what it needs are imported   end the process at once, because there is nothing to clean up
the program of a target is loaded          raise `KeyboardInterrupt` there, so that it can clean up, and end the process
                                           soon in any case
a person is asked                          raise `KeyboardInterrupt` there; the command says what it leaves undone
it is loaded, or a file is being changed   wait until the command catches them, or the file is changed, but not long
the command catches them                   are its own; servers stop, and calls are cancelled
the command has ended                      end the process at once; while only the interpreter has to end, nothing
========================================== ===========================================================================

SIGHUP does nothing to a supervisor of workers before there are any, nor to a gateway before it serves, unless it says
that the terminal was closed.

Little is imported here, because nothing is caught before that.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["EXIT_INTERRUPTED", "Start", "asking", "has_terminal", "loading", "uninterrupted"]

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
# What a shell reports for a program that SIGHUP has ended.
_HUNG_UP = 129
# The commands that these signals are meant to end, and the option that makes another command of one of them.
_SERVING = ("serve", "gateway", "bridge", "from-openapi", "rest")
_CHECK = "--check"
# What makes a process a supervisor; and what makes it a worker, see `mcp_actors.cli.workers.worker`.
_WORKERS = "--workers"
_ASSIGNMENT = "MCP_ACTORS_WORKER"
# Seconds from the signal to the end, for a program that is being loaded to clean up, or not to obey: less than those
# have who wait for it.
_SOON = 3.0
# Seconds between two looks at whether the command catches signals by now.
_LOOK_AGAIN = 0.005

_STDERR = 2

# What a signal does.
_END, _RAISE, _WAIT = range(3)


def has_terminal() -> bool:
    """Whether standard error is a terminal. After SIGHUP it tells whether that was closed."""
    return os.isatty(_STDERR)


class Start:
    """The signals of a process that is the command line.

    Args:
        words: The words after the name of the program.
    """

    current: Start | None = None
    """That of this process; ``None`` where another program has called the command line, and owns the signals."""

    def __init__(self, words: Sequence[str]) -> None:
        serves = bool(words) and words[0] in _SERVING and _CHECK not in words
        self.exit_code = 0 if serves else EXIT_INTERRUPTED
        """The exit code of the process when a signal has ended it."""
        self.stopped = False
        """Whether a signal has come that did not end the process at once, and was not caught by the command."""
        self._does = _END
        # A gateway reads its configuration again.
        self._keeps_hangup = words[:1] == ["gateway"] or any(word.startswith(_WORKERS) for word in words)
        self._had_terminal = has_terminal()

    def catch(self) -> None:
        """Takes the signals, but for those that are ignored, as by a shell for what it runs in the background."""
        for name in ("SIGINT", "SIGTERM", "SIGBREAK"):  # the last one is known to Windows alone
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)
        if sys.platform != "win32":
            if self._keeps_hangup:
                signal.signal(signal.SIGHUP, self._hung_up)
            os.register_at_fork(after_in_child=self._forget)
        # What is registered first is called last.
        atexit.register(self._ignore)
        Start.current = self

    def keep_hangup(self) -> None:
        """Called by a command that SIGHUP does not end, where the words do not say so: settings may."""
        if sys.platform != "win32":
            signal.signal(signal.SIGHUP, self._hung_up)

    def ended(self) -> None:
        """Called when the command has ended, with all that it has begun."""
        self._does = _END

    @contextmanager
    def block(self, does: int, behind: int) -> Iterator[None]:
        """See `loading` and `uninterrupted`."""
        self._does = does
        try:
            yield
        finally:
            self._does = behind
            if self.stopped:
                # The program may have caught what was raised in it, or raised something else.
                raise KeyboardInterrupt

    def _stop(self, number: int, _frame: object) -> None:
        if self._does == _END or self.stopped:
            self._end("interrupted")
        self.stopped = True
        # Not a thread of `threading`, whose locks may be held by what is interrupted here.
        _thread.start_new_thread(self._end_soon, (number,))
        if self._does == _RAISE:
            raise KeyboardInterrupt

    def _end_soon(self, number: int) -> None:
        until = time.monotonic() + _SOON
        while time.monotonic() < until:
            if self._does == _WAIT and signal.getsignal(number) != self._stop:
                self.stopped = False
                os.kill(os.getpid(), number)
                return
            time.sleep(_LOOK_AGAIN)
        self._end(f"ended {_SOON:g} s after the signal")

    def _end(self, why: str) -> None:
        if self.exit_code:
            try:
                os.write(_STDERR, f"mcp-actors: {why}\n".encode())
            except OSError:
                pass  # nobody reads it
        os._exit(self.exit_code)

    def _hung_up(self, _number: int, _frame: object) -> None:
        # Whether a worker goes on is for its supervisor to say.
        if self._had_terminal and not has_terminal() and _ASSIGNMENT not in os.environ:
            os._exit(_HUNG_UP)

    def _forget(self) -> None:
        """Gives a process that the program of a target has forked what Python gives to any."""
        if signal.getsignal(signal.SIGINT) == self._stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGTERM) == self._stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _ignore(self) -> None:
        """Ignores what comes while the interpreter ends, which would be ended by it: it has no handlers then."""
        for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None)):
            if number is not None and signal.getsignal(number) in (self._stop, self._hung_up):
                signal.signal(number, signal.SIG_IGN)


def loading() -> AbstractContextManager[None]:
    """For the length of the block a program is loaded that may do anything, and is interrupted by a signal.

    Behind it a signal waits until the command catches it.

    Raises:
        KeyboardInterrupt: A signal came, whatever the program has made of that.
    """
    return nullcontext() if Start.current is None else Start.current.block(_RAISE, _WAIT)


def asking() -> AbstractContextManager[None]:
    """For the length of the block a person is asked something, which a signal interrupts.

    Raises:
        KeyboardInterrupt: A signal came.
    """
    return nullcontext() if Start.current is None else Start.current.block(_RAISE, _END)


def uninterrupted() -> AbstractContextManager[None]:
    """For the length of the block a signal waits for its end, or until it is caught within.

    Raises:
        KeyboardInterrupt: A signal came that was not caught.
    """
    return nullcontext() if Start.current is None else Start.current.block(_WAIT, _END)
