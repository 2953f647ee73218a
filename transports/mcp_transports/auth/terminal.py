"""The terminal of a person, from which a secret line is read in a way that can be cancelled.

`Terminal` is the one of POSIX, and on Windows the `Console`. Nothing of the line is shown while it is typed.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import TracebackType
from typing import Any, Self

import trio

from mcp_actors.errors import LoginFailed, LoginRequired
from mcp_actors.supervision.platform import wait_for_input

if sys.platform != "win32":
    import termios

__all__ = ["TERMINAL", "Console", "Terminal"]

TERMINAL = "CONIN$" if sys.platform == "win32" else "/dev/tty"
"""The device of the terminal that this process was started on."""

# The longest line that may be pasted: in bytes, and on Windows in characters.
MAX_LINE = 16 * 1024
_END_OF_INPUT, _BACKSPACE = b"\x04", b"\x7f\x08"

# Seconds between two looks for keys at the console: Windows has no way to wait for them that could be cancelled.
_LOOK_AGAIN = 0.03
_INTERRUPT, _CONSOLE_END, _CONSOLE_BACKSPACE = "\x03", "\x04\x1a", "\x08\x7f"
# A key without a character comes as one of these and another one.
_SPECIAL = "\x00\xe0"


class Console:
    """A console, for the length of a ``with`` block. What is typed is not shown.

    Args:
        path: The console's device.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # The types of msvcrt are there on Windows only.
        self._keys: Any = None

    def __repr__(self) -> str:
        return f"<Console {self._path}>"

    def __enter__(self) -> Self:
        """Looks for the console.

        Raises:
            LoginRequired: There is no console.
        """
        try:
            os.close(os.open(self._path, os.O_RDWR))
        except OSError:
            raise LoginRequired(
                f"a person must log in, and there is no console at {self._path}: run 'mcp-actors login' in one,"
                " with the URL of the server"
            ) from None
        self._keys = importlib.import_module("msvcrt")
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    async def read_line(self) -> str:
        """Waits for a line. Cancelled, what was typed of it is lost.

        Raises:
            LoginFailed: The input was ended by Ctrl-Z or Ctrl-D, or the line is too long.
            KeyboardInterrupt: It was ended by Ctrl-C.
        """
        line: list[str] = []
        while True:
            await trio.sleep(_LOOK_AGAIN)
            while self._keys.kbhit():
                key = self._keys.getwch()
                if key in "\r\n":
                    return "".join(line)
                if key in _SPECIAL:
                    self._keys.getwch()
                elif key in _INTERRUPT:
                    # Ctrl-C that is read as a character is not a signal.
                    raise KeyboardInterrupt
                elif key in _CONSOLE_END:
                    raise LoginFailed("the login was given up: no answer was pasted")
                elif key in _CONSOLE_BACKSPACE:
                    del line[-1:]
                else:
                    line.append(key)
                if len(line) > MAX_LINE:
                    raise LoginFailed(
                        f"the login was given up: a line of more than {MAX_LINE} characters was pasted"
                    )


if sys.platform == "win32":
    Terminal = Console
else:

    class Terminal:
        """A terminal, open for the length of a ``with`` block, after which it is set as it was before.

        What is typed is not shown. The terminal's own editing of lines is off, because it would cut a line after 4,095
        bytes; its signals are on, so that Ctrl-C interrupts.

        Args:
            path: The terminal's device.
        """

        def __init__(self, path: str) -> None:
            self._path = path
            self._descriptor = -1
            self._before: list[Any] = []

        def __repr__(self) -> str:
            return f"<Terminal {self._path}>"

        def __enter__(self) -> Self:
            """Opens the terminal.

            Raises:
                LoginRequired: There is no terminal.
            """
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
                self._before = termios.tcgetattr(self._descriptor)
                silent = termios.tcgetattr(self._descriptor)
                silent[3] &= ~(termios.ECHO | termios.ICANON)
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, silent)
            except (OSError, termios.error):
                self._close()
                raise LoginRequired(
                    f"a person must log in, and there is no terminal at {self._path}: run 'mcp-actors login' on one,"
                    " with the URL of the server"
                ) from None
            return self

        def __exit__(
            self,
            cls: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            try:
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            except (OSError, termios.error):
                pass  # the terminal is gone, and its settings with it
            finally:
                self._close()

        def _close(self) -> None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

        async def read_line(self) -> str:
            """Waits for a line. Cancelled, what was typed of it is lost.

            Raises:
                LoginFailed: The input was ended by Ctrl-D, the terminal is gone, or the line is too long.
            """
            line = bytearray()
            while True:
                await wait_for_input(self._descriptor)
                try:
                    typed = os.read(self._descriptor, MAX_LINE)
                except BlockingIOError:
                    continue
                except OSError:
                    typed = b""
                if not typed or _END_OF_INPUT in typed:
                    raise LoginFailed("the login was given up: no answer was pasted")
                for each in typed:
                    if each in b"\r\n":
                        return line.decode("utf-8", "replace")
                    if each in _BACKSPACE:
                        del line[-1:]
                    else:
                        line.append(each)
                if len(line) > MAX_LINE:
                    raise LoginFailed(
                        f"the login was given up: a line of more than {MAX_LINE} bytes was pasted"
                    )
