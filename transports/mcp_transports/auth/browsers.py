"""The ways for a person to log in, and the choice among them; each is a `Browser`.

`LoopbackBrowser` opens the system's browser, which comes back to a port of this machine (RFC 8252 section 7.3). Where
the browser cannot come back, a person pastes the answer (`PastedAnswer`), or a program that has a page of its own hands
it over (`ProgramRedirect`). A program without a person says so (`NoBrowser`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp_actors.auth.client.settings import Browser, Redirect
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.urls import is_loopback, require_usable
from mcp_actors.errors import LoginRequired, UrlRefused
from mcp_transports.auth.login import (
    AwaitedAnswer,
    OpenUrl,
    answer_of,
    open_system_browser,
    show_url,
    shown_by,
)
from mcp_transports.auth.terminal import TERMINAL, Terminal

__all__ = ["LoopbackBrowser", "NoBrowser", "PastedAnswer", "ProgramRedirect", "default_browser"]

# Nothing listens there: the browser shows an error, and the answer in its address bar.
PASTED_REDIRECT = "http://127.0.0.1:49731/callback"
# A variable of the environment for a display, or for a program that opens URLs on another machine.
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def default_browser() -> Browser:
    """Returns the way to log in that suits the process.

    On a terminal that is a `LoopbackBrowser` if there is a browser too, and a `PastedAnswer` if not. A process without
    a terminal has no person at it, so it gets `NoBrowser`.
    """
    if not (sys.stdin and sys.stderr and sys.stdin.isatty() and sys.stderr.isatty()):
        return NoBrowser()
    has_display = any(os.environ.get(each) for each in DISPLAYS)
    if has_display or (sys.platform in ("darwin", "win32") and "SSH_CONNECTION" not in os.environ):
        return LoopbackBrowser()
    return PastedAnswer()


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
        # Only a login that needs an HTTP server loads one.
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


class NoBrowser:
    """Says at once that a person must log in, for programs without one. A `Browser`."""

    def __repr__(self) -> str:
        return "<NoBrowser>"

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[_ProgramLogin]:
        """Never opens anything.

        Raises:
            LoginRequired: Always.
        """
        raise LoginRequired(
            "a person must log in, and nobody is there: run 'mcp-actors login' with the URL of the server on a terminal"
            " and share its store of tokens, or give AuthorizationCode a browser"
        )
        yield  # an async context manager is made of a generator


class PastedAnswer:
    """Has a person open a URL on any machine, and paste the address that the browser ends at. A `Browser`.

    Args:
        redirect_uri: The redirect URI, at which nothing need listen; by default that of the client's registration, or
            one of this machine.
        terminal: The terminal to read from: ``/dev/tty``, or ``CONIN$`` on Windows.
    """

    def __init__(self, redirect_uri: str | None = None, *, terminal: str = TERMINAL) -> None:
        self._redirect_uri = redirect_uri
        self._terminal = terminal

    def __repr__(self) -> str:
        return f"<PastedAnswer at {self._terminal}>"

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[_PastedLogin]:
        """Opens the terminal for the length of the block, after which it is as it was before.

        Raises:
            LoginRequired: There is no terminal.
        """
        known = [self._redirect_uri or "", *filter(is_loopback, registered), PASTED_REDIRECT]
        with Terminal(self._terminal) as terminal:
            yield _PastedLogin(next(filter(None, known)), terminal)


class _PastedLogin:
    """A redirect that a person carries over; a `Redirect`."""

    def __init__(self, uri: str, terminal: Terminal) -> None:
        self._uri = uri
        self._terminal = terminal

    @property
    def uri(self) -> str:
        """The redirect URI."""
        return self._uri

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        """Writes ``url`` to the standard error output and reads the answer from the terminal; see `Redirect.log_in`.

        Raises:
            UrlRefused: The URL is not ``https``, nor ``http`` to this machine.
            LoginFailed: The person ended the input, or the terminal is gone.
        """
        require_usable(url, "the authorization endpoint")
        show_url(url)
        sys.stderr.write(
            "After the login the browser shows a page that cannot be loaded. That is as it should be.\n"
        )
        say = "Paste the whole address of that page here, and press Enter (what you paste is not shown): "
        while True:
            sys.stderr.write(say)
            sys.stderr.flush()
            try:
                answer = answer_of((await self._terminal.read_line()).strip())
            finally:
                sys.stderr.write("\n")
            if accepts(answer):
                return answer
            say = "That is not the answer to this login. Paste the whole address, up to its last character: "


class ProgramRedirect:
    """Has an embedding program, such as a web server, show the URL and hand over the answer. A `Browser`.

    Args:
        redirect_uri: The redirect URI, which the program serves.
        open: Shows a URL to the person: a function, sync or async, which must not block.
    """

    def __init__(self, redirect_uri: str, open: OpenUrl) -> None:
        self._uri = redirect_uri
        self._open = open
        self._logins: list[_ProgramLogin] = []

    def __repr__(self) -> str:
        return f"<ProgramRedirect {self._uri}: {len(self._logins)} waiting>"

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[_ProgramLogin]:
        """Waits for an answer for the length of the block."""
        login = _ProgramLogin(self._uri, self._open)
        self._logins.append(login)
        try:
            yield login
        finally:
            self._logins.remove(login)

    def finish(self, answer: str | Mapping[str, str] | RedirectAnswer) -> bool:
        """Hands over what came to the redirect URI, and returns whether a login was waiting for it.

        An answer that no login was waiting for deserves an error page: it is a stray one, or an attack. To be called in
        Trio's thread.

        Args:
            answer: The URL, its query, or its parameters; as pairs they may be repeated, which is then noticed.
        """
        if isinstance(answer, str):
            answer = answer_of(answer)
        elif isinstance(answer, Mapping):
            answer = tuple(answer.items())
        return any(each.takes(answer) for each in self._logins)


class _ProgramLogin:
    """A login whose answer an embedding program hands over; a `Redirect`."""

    def __init__(self, uri: str, open: OpenUrl) -> None:
        self._uri = uri
        self._open = open
        self._awaited = AwaitedAnswer()
        self.takes = self._awaited.takes

    @property
    def uri(self) -> str:
        """The redirect URI."""
        return self._uri

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        """Has the program show ``url``, and waits for `ProgramRedirect.finish`; see `Redirect.log_in`.

        Raises:
            UrlRefused: The URL is not ``https``, nor ``http`` to this machine.
        """
        require_usable(url, "the authorization endpoint")
        awaited = self._awaited
        awaited.accepts = accepts
        try:
            await shown_by(self._open, url)
            await awaited.over.wait()
        finally:
            awaited.accepts = None
        return awaited.value or ()
