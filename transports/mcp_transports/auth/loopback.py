"""The login of a person in the system's browser, which comes back to a port of this machine (RFC 8252 section 7.3)."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import SplitResult, parse_qsl, urlsplit

import trio

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.urls import is_loopback, require_usable
from mcp_actors.errors import LoginFailed, UrlRefused
from mcp_actors.logging import log
from mcp_actors.supervision import LOGIN_LISTENER, reraised, start_and_wait
from mcp_transports._sockets import ListenError
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.h1.server import HttpListener, HttpServer, open_tcp

__all__ = ["LoopbackBrowser", "answer_of", "open_system_browser", "show_url"]

CALLBACK_PATH = "/callback"
# Seconds for the system's browser to take the URL; one that goes on in the foreground is not waited for.
OPEN_TIMEOUT = 5.0
# Seconds for the browser to take the last page, once the login is over.
CLOSE_TIMEOUT = 1.0
# Parameters of an answer; authorization servers send about four.
MAX_PARAMETERS = 64
# Few, because there is one person: everything else that connects is not meant to.
LIMITS = HttpLimits(
    head_bytes=16 * 1024,
    target_bytes=16 * 1024,
    body_bytes=1,
    held_bytes=1024,
    held_bytes_per_address=1024,
    head_time=10.0,
    body_time=10.0,
    idle_time=10.0,
    connections=64,
    connections_per_address=64,
    pipelined_requests=1,
    linger_time=0.5,
)
PAGE_HEADERS = (
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
)

OPENER = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"

OpenUrl = Callable[[str], object | Awaitable[object]]
"""Shows a URL to a person. It is called in Trio's thread: a function that may block is to be async."""


def _page(text: str) -> bytes:
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Login</title><p>{text}</p></html>\n'.encode()


ARRIVED = _page("The login is over. Close this page and go back to the program.")
NOT_OURS = _page("This is not the answer to the login that the program is waiting for.")
NOT_HERE = _page("There is nothing here.")


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
            [sys.executable, "-c", OPENER, url],
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
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[_LoopbackLogin]:
        """Listens for the length of the block. Left, also by cancellation, nothing listens any more.

        Raises:
            LoginFailed: No port can be had, or not the one that was asked for.
        """
        listeners, uri = await self._listen([each for each in registered if _is_ours(each)])
        login = _LoopbackLogin(uri, self._open)
        stopping = trio.Event()
        serve = partial(HttpServer(login.answer, listeners, LIMITS).serve, stopping=stopping)
        try:
            with reraised() as body:
                async with trio.open_nursery() as nursery:
                    await start_and_wait(nursery, LOGIN_LISTENER, serve, on_crash=login.break_off)
                    with body:
                        yield login
                    stopping.set()
                    nursery.cancel_scope.deadline = trio.current_time() + CLOSE_TIMEOUT
        finally:
            for each in listeners:
                each.close()

    async def _listen(self, registered: Sequence[str]) -> tuple[list[HttpListener], str]:
        """Returns the listeners and the redirect URI: one that is registered, or one that has another port."""
        own = urlsplit(f"http://{self._host}:{self._port}{CALLBACK_PATH}")
        known = sorted(map(urlsplit, registered), key=lambda each: each.hostname != self._host)
        wanted = [own] if self._port or not known else known
        for each in wanted:
            try:
                return await _bound(each, each.port or 0)
            except ListenError:
                continue
        if self._port:
            raise LoginFailed(
                f"the port {self._port}, to which the login is to come back, is taken: end the program that has it, or"
                " give LoopbackBrowser another port that is registered"
            )
        try:
            return await _bound(wanted[0], 0)
        except ListenError as error:
            raise LoginFailed(f"the login has no port to come back to: {error}") from error


def _is_ours(uri: str) -> bool:
    try:
        require_usable(uri, "a redirect URI")
    except UrlRefused:
        return False
    return uri.startswith("http:") and is_loopback(uri) and "?" not in uri


async def _bound(uri: SplitResult, port: int) -> tuple[list[HttpListener], str]:
    """Listens at both loopback addresses, so that no other program of this machine can have one of them.

    Raises:
        ListenError: The port is taken.
    """
    listeners = await open_tcp(None, port)
    if uri.port == listeners[0].port:
        return listeners, uri.geturl()
    host = f"[{uri.hostname}]" if ":" in (uri.hostname or "") else uri.hostname
    return listeners, uri._replace(netloc=f"{host}:{listeners[0].port}").geturl()


class _LoopbackLogin:
    """A redirect to this machine; a `Redirect`."""

    def __init__(self, uri: str, open: OpenUrl) -> None:
        self._uri = uri
        self._parts = urlsplit(uri)
        self._open = open
        self._accepts: Callable[[RedirectAnswer], bool] | None = None
        self._answer: RedirectAnswer | None = None
        self._over = trio.Event()
        self._opening = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._uri}>"

    @property
    def uri(self) -> str:
        """The redirect URI."""
        return self._uri

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        """Opens ``url`` in a browser and waits for the answer; see `Redirect.log_in`.

        Raises:
            UrlRefused: The URL is not ``https``, nor ``http`` to this machine.
            LoginFailed: Nothing listens any more.
        """
        require_usable(url, "the authorization endpoint")
        self._accepts = accepts
        try:
            with self._opening:
                self._opening.deadline = trio.current_time() + OPEN_TIMEOUT
                await shown_by(self._open, url)
            await self._over.wait()
        finally:
            self._accepts = None
        if self._answer is None:
            raise LoginFailed("the port to which the login was to come back broke: log in again")
        return self._answer

    def break_off(self, crash: BaseException) -> None:
        """Ends the wait for an answer: nothing listens any more."""
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._opening.cancel()

    def answer(self, request: Request, response: Response) -> None:
        """Answers a request to the port. Of those that are the login's answer only the first one is taken."""
        if request.path != (self._parts.path or "/"):
            _show(response, 404, NOT_HERE)
        elif request.method != "GET":
            _show(response, 405, NOT_HERE, ("allow", "GET"))
        elif request.headers.get("host", "").lower() != self._parts.netloc.lower():
            # A page of another site can have its own name lead to this port.
            _show(response, 400, NOT_OURS)
        elif not self._takes(answer_of(f"?{request.query}")):
            _show(response, 400, NOT_OURS)
        else:
            _show(response, 200, ARRIVED)

    def _takes(self, answer: RedirectAnswer) -> bool:
        if self._accepts is None or self._over.is_set() or not self._accepts(answer):
            return False
        self._answer = answer
        self._end()
        return True


async def shown_by(open: OpenUrl, url: str) -> None:
    """Has a function, sync or async, show a URL."""
    result = open(url)
    if inspect.isawaitable(result):
        await result


def _show(response: Response, status: int, page: bytes, *more: tuple[str, str]) -> None:
    response.answer(status, page, content_type="text/html; charset=utf-8", headers=(*PAGE_HEADERS, *more))
