"""A line for a person who has typed the name of a stdio server's program, and sees nothing happen."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from mcp_actors.platform.command_lines import join_words

__all__ = ["write_terminal_hint"]

_STDIN, _STDERR = 0, 2


def write_terminal_hint(server: str) -> None:
    """Writes to stderr what ``server`` waits for, how to try it and how to stop it, if a person sits there.

    Nothing is written unless both stdin and stderr are a terminal: a client that starts the server connects its stdin
    to a pipe or socket.
    """
    if not (os.isatty(_STDIN) and os.isatty(_STDERR)):
        return
    target = join_words([f"stdio:{join_words(sys.orig_argv)}"])
    line = (
        f"{server} speaks MCP over standard input and output, and waits for a client's messages."
        f" To try it: mcp-actors list {target}. Ctrl-C stops it.\n"
    )
    with suppress(OSError):  # the terminal has gone: nobody reads it
        os.write(_STDERR, line.encode("utf-8", "replace"))
