"""The login of a person in the system's browser, which comes back to a port of this machine (RFC 8252 section 7.3)."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

import trio

from mcp_actors.auth.client.settings import Redirect
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.urls import is_loopback, require_usable
from mcp_actors.errors import UrlRefused
from mcp_actors.supervision.logging import log

__all__ = [
    "AwaitedAnswer",
    "LoopbackBrowser",
    "OpenUrl",
    "answer_of",
    "open_system_browser",
    "show_url",
    "shown_by",
]


# -- The answer that a login waits for: the first one that is accepted, and no other ---------------------


class AwaitedAnswer:
    """The answer of one login. It is taken while ``accepts`` is set, once, if it is accepted."""

    def __init__(self) -> None:
        self.value: RedirectAnswer | None = None
        """The answer, once it was taken."""
        self.over = trio.Event()
        """Set when it was taken, or when none can come any more."""
        self.accepts: Callable[[RedirectAnswer], bool] | None = None
        """Whether an answer is that of the login; ``None`` while none is waited for."""

    def takes(self, answer: RedirectAnswer) -> bool:
        """Takes the answer if it is the first one that is accepted, and returns whether it was."""
        if self.accepts is None or self.over.is_set() or not self.accepts(answer):
            return False
        self.value = answer
        self.over.set()
        return True


# ----------------------------------------------------------------------------------------------------

# Parameters of an answer; authorization servers send about four.
MAX_PARAMETERS = 64
OPENER = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"

OpenUrl = Callable[[str], object | Awaitable[object]]
"""Shows a URL to a person. It is called in Trio's thread: a function that may block is to be async."""


def show_url(url: str) -> None:
    """Writes the URL of a login to the standard error output, for the person there to open it."""
    sys.stderr.write(f"To log in, open this in a browser:\n\n  {url}\n\n")
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


class LoopbackBrowser:
    """Has a person log in in a browser on this machine, and waits for the answer on a port of it. A `Browser`.

    The port is open while a login runs, at the loopback addresses only. Requests that are not the answer are refused,
    and the login goes on. Nothing of a request is shown.

    Args:
        host: The host of the redirect URI; ``"localhost"`` for an authorization server that knows nothing else.
        port: The port of the redirect URI, if it was registered so that no other will do. With 0 it is that of the
            client's registration, or a free one if that is taken.
        open: Shows a URL to the person: a function, sync or async, which must not block. By default it is opened in
            the system's browser, and written to the standard error output.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, open: OpenUrl = open_system_browser
    ) -> None:
        self._host = host
        self._port = port
        self._open = open

    def __repr__(self) -> str:
        return f"<LoopbackBrowser {self._host}:{self._port}>"

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[Redirect]:
        """Listens for the length of the block. Left, also by cancellation, nothing listens any more.

        Raises:
            LoginFailed: No port can be had, or not the one that was asked for.
        """
        # An HTTP server is only loaded by those who need one.
        listener: Any = importlib.import_module("mcp_transports.auth.loopback_listener")
        ours = [each for each in registered if _is_ours(each)]
        async with listener.listening(self._host, self._port, ours, self._open) as login:
            yield login


def _is_ours(uri: str) -> bool:
    try:
        require_usable(uri, "a redirect URI")
    except UrlRefused:
        return False
    return uri.startswith("http:") and is_loopback(uri) and "?" not in uri


async def shown_by(open: OpenUrl, url: str) -> None:
    """Has a function, sync or async, show a URL."""
    result = open(url)
    if inspect.isawaitable(result):
        await result
