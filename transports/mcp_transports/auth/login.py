"""The login of a person, as far as all its ways are alike: a URL is shown, and one answer is awaited."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

import trio

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import safe

__all__ = ["AwaitedAnswer", "OpenUrl", "answer_of", "open_system_browser", "show_url", "shown_by"]

# Parameters of an answer; authorization servers send about four.
MAX_PARAMETERS = 64
OPENER = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"

OpenUrl = Callable[[str], object | Awaitable[object]]
"""Shows a URL to a person. It is called in Trio's thread: a function that may block is to be async."""


class AwaitedAnswer:
    """The answer of one login. It is taken while ``accepts`` is set, once, if it is accepted."""

    def __init__(self) -> None:
        self.value: RedirectAnswer | None = None
        """The answer, once it was taken."""
        self.over = trio.Event()
        """Set when it was taken, or when none can come any more."""
        self.accepts: Callable[[RedirectAnswer], bool] | None = None
        """Whether an answer is that of the login; ``None`` while no login waits."""

    def takes(self, answer: RedirectAnswer) -> bool:
        """Takes the answer if it is the first one that is accepted, and returns whether it was."""
        if self.accepts is None or self.over.is_set() or not self.accepts(answer):
            return False
        self.value = answer
        self.over.set()
        return True


def answer_of(text: str) -> RedirectAnswer:
    """Returns the parameters of a redirect URL, or of the query of one; too many of them are none."""
    # A person may paste anything: nothing of it but the query need be well-formed.
    beginning, mark, query = text.partition("#")[0].partition("?")
    if not mark and "://" not in beginning:
        query = beginning
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        return ()


async def shown_by(open: OpenUrl, url: str) -> None:
    """Has a function, sync or async, show a URL."""
    result = open(url)
    if inspect.isawaitable(result):
        await result


def show_url(url: str) -> None:
    """Writes the URL of a login to the standard error output, for the person there to open it."""
    sys.stderr.write(f"To log in, open this in a browser:\n\n  {safe(url)}\n\n")
    sys.stderr.flush()


async def open_system_browser(url: str) -> None:
    """Opens a URL in the system's browser, and writes it to the standard error output in case that fails.

    It goes to the browser as one argument, never through a shell. A process of its own opens it, so that what browsers
    write does not go to the program's output; cancelled, that process is ended, and the browser goes on.
    """
    show_url(url)
    try:
        opened = await trio.run_process(
            # Isolated: a module in the folder in which the program was started is not taken for one of Python's.
            [sys.executable, "-I", "-c", OPENER, url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        log.warning("no browser could be opened", reason=error.strerror)
    else:
        if opened.returncode:
            log.warning("no browser could be opened", reason="none of the system's browsers could be started")
