"""The console of Windows, from which a secret line is read in a way that can be cancelled."""

from __future__ import annotations

import importlib
import os
from types import TracebackType
from typing import Any, Self

import trio

from mcp_actors.errors import LoginFailed, LoginRequired

__all__ = ["CONSOLE", "Console"]

CONSOLE = "CONIN$"
# Characters of a line that is pasted.
MAX_LINE = 16 * 1024
# Seconds between two looks for keys: the system has no way to wait for them that could be cancelled.
LOOK_AGAIN = 0.03
INTERRUPT, END_OF_INPUT, BACKSPACE = "\x03", "\x04\x1a", "\x08\x7f"
# A key without a character comes as one of these and another one.
SPECIAL = "\x00\xe0"


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
            LoginRequired: There is none.
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
            await trio.sleep(LOOK_AGAIN)
            while self._keys.kbhit():
                key = self._keys.getwch()
                if key in "\r\n":
                    return "".join(line)
                if key in SPECIAL:
                    self._keys.getwch()
                elif key in INTERRUPT:
                    # Read as a character, it is no signal.
                    raise KeyboardInterrupt
                elif key in END_OF_INPUT:
                    raise LoginFailed("the login was given up: no answer was pasted")
                elif key in BACKSPACE:
                    del line[-1:]
                else:
                    line.append(key)
                if len(line) > MAX_LINE:
                    raise LoginFailed(
                        f"the login was given up: a line of more than {MAX_LINE} characters was pasted"
                    )
