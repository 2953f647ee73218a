"""The port of this machine that a login comes back to (RFC 8252 section 7.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import SplitResult, urlsplit

import trio

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.urls import require_usable
from mcp_actors.errors import LoginFailed
from mcp_actors.supervision.containment import reraised, start_and_wait
from mcp_actors.supervision.task_kinds import LOGIN_LISTENER
from mcp_transports._sockets import ListenError
from mcp_transports.auth.login import AwaitedAnswer, OpenUrl, answer_of, shown_by
from mcp_transports.http.h1.http_server import HttpListener, HttpServer, open_tcp
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

__all__ = ["listening"]

CALLBACK_PATH = "/callback"
# Seconds for the system's browser to take the URL; one that goes on in the foreground is not waited for.
OPEN_TIMEOUT = 5.0
# Seconds for the browser to take the last page, once the login is over.
CLOSE_TIMEOUT = 1.0
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


def _page(text: str) -> bytes:
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Login</title><p>{text}</p></html>\n'.encode()


ARRIVED = _page("The login is over. Close this page and go back to the program.")
NOT_OURS = _page("This is not the answer to the login that the program is waiting for.")
NOT_HERE = _page("There is nothing here.")


@asynccontextmanager
async def listening(
    host: str, port: int, registered: Sequence[str], open: OpenUrl
) -> AsyncIterator[_LoopbackLogin]:
    """Listens for the length of the block. Left, also by cancellation, nothing listens any more.

    Args:
        host: The host of the redirect URI.
        port: Its port; with 0 that of a registered one, or a free one.
        registered: The redirect URIs of the client's registration that lead to this machine.
        open: Shows a URL to the person.

    Raises:
        LoginFailed: No port can be had, or not the one that was asked for.
    """
    listeners, uri = await _listen(host, port, registered)
    login = _LoopbackLogin(uri, open)
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


async def _listen(host: str, port: int, registered: Sequence[str]) -> tuple[list[HttpListener], str]:
    """Returns the listeners and the redirect URI: one that is registered, or one that has another port."""
    own = urlsplit(f"http://{host}:{port}{CALLBACK_PATH}")
    known = sorted(map(urlsplit, registered), key=lambda each: each.hostname != host)
    wanted = [own] if port or not known else known
    for each in wanted:
        try:
            return await _bound(each, each.port or 0)
        except ListenError:
            continue
    if port:
        raise LoginFailed(
            f"the port {port}, to which the login is to come back, is taken: end the program that has it, or"
            " give LoopbackBrowser another port that is registered"
        )
    try:
        return await _bound(wanted[0], 0)
    except ListenError as error:
        raise LoginFailed(f"the login has no port to come back to: {error}") from error


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
        self._awaited = AwaitedAnswer()
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
        awaited = self._awaited
        awaited.accepts = accepts
        try:
            with self._opening:
                self._opening.deadline = trio.current_time() + OPEN_TIMEOUT
                await shown_by(self._open, url)
            await awaited.over.wait()
        finally:
            awaited.accepts = None
        if awaited.value is None:
            raise LoginFailed("the port to which the login was to come back broke: log in again")
        return awaited.value

    def break_off(self, crash: BaseException) -> None:
        """Ends the wait for an answer: nothing listens any more."""
        self._end()

    def _end(self) -> None:
        self._awaited.over.set()
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
        taken = self._awaited.takes(answer)
        if taken:
            self._end()
        return taken


def _show(response: Response, status: int, page: bytes, *more: tuple[str, str]) -> None:
    response.answer(status, page, content_type="text/html; charset=utf-8", headers=(*PAGE_HEADERS, *more))
