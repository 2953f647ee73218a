"""A terminal from which a secret line is read, in a way that can be cancelled."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("on Windows a line is read by mcp_transports.auth.console")

import os
import termios
from types import TracebackType
from typing import Any, Self

from mcp_actors.errors import LoginFailed, LoginRequired
from mcp_actors.supervision.platform import wait_for_input

__all__ = ["TERMINAL", "Terminal"]

TERMINAL = "/dev/tty"

# Bytes of a line that is pasted.
MAX_LINE = 16 * 1024
END_OF_INPUT, BACKSPACE = b"\x04", b"\x7f\x08"


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
            LoginRequired: There is none.
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
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
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
            if not typed or END_OF_INPUT in typed:
                raise LoginFailed("the login was given up: no answer was pasted")
            for each in typed:
                if each in b"\r\n":
                    return line.decode("utf-8", "replace")
                if each in BACKSPACE:
                    del line[-1:]
                else:
                    line.append(each)
            if len(line) > MAX_LINE:
                raise LoginFailed(f"the login was given up: a line of more than {MAX_LINE} bytes was pasted")
