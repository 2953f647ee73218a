"""One HTTP request together with its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import LocalProtocolError
from mcp_actors.http_refusals import http_refusals
from mcp_actors.logging import log
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import HTTP_RESPONSE
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.authentication import Authentication
from mcp_transports.http.server.error_responses import INTERNAL_ERROR, RETRY_LATER, Header, Refusal
from mcp_transports.http.server.media_types import JSON

__all__ = ["Continuation", "HttpExchange"]

_NO_ROOM = 503

# Serves the rest of a request that has to wait for something. It runs in a task of the request's connection.
Continuation = Callable[[], Awaitable[None]]


class HttpExchange(msgspec.Struct, eq=False):
    """A request, its response, the headers that every answer to it carries (CORS), and what knows the callers.

    A struct, because one is made for every request: making it runs no Python code.
    """

    request: Request
    response: Response
    headers: Sequence[Header] = ()
    authentication: Authentication | None = None

    def __repr__(self) -> str:
        return f"<HttpExchange {self.request.method} {self.request.path}>"

    def answer(self, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
        """Sends a whole answer, whose body is JSON. A client that has left gets none.

        Raises:
            LocalProtocolError: The request was answered before.
        """
        self.response.answer(
            status, body, content_type=JSON if body else None, headers=(*self.headers, *headers)
        )

    def refuse(self, refusal: Refusal) -> None:
        """Sends ``refusal`` as the answer. Raises the errors of `answer`."""
        self.answer(refusal.status, refusal.body, refusal.headers)
        http_refusals[refusal.status] += 1

    def refusal_headers(self, status: int, frame: Frame, *, repeats_granted: bool) -> Sequence[Header]:
        """Returns the headers of an answer that the engine has marked as a refusal (`Frame.refusal`).

        For ``repeats_granted`` see `Authentication.lacking`.
        """
        if status == _NO_ROOM:
            return (*self.headers, *RETRY_LATER)
        if frame.scopes and self.authentication is not None:
            principal = self.request.principal
            refusal = self.authentication.lacking(principal, frame.scopes, repeats_granted=repeats_granted)
            return (*self.headers, *refusal.headers)
        return self.headers

    def fail(self) -> None:
        """Ends the exchange after a failure on this side: with 500, or by cutting off a stream that is open.

        An answer that is complete stays as it is.
        """
        try:
            self.refuse(INTERNAL_ERROR)
        except LocalProtocolError:
            self.response.abort()

    def containment(self, doing: str) -> Containment:
        """Returns a context manager for code that serves this request: an error of it ends this request alone.

        ``doing`` names the failed work in the log.
        """
        return Containment(HTTP_RESPONSE, lambda error: self.fail(), {"doing": doing, "exchange": self})

    def run(self, continuation: Continuation) -> None:
        """Runs ``continuation`` in a task of the connection, which is cancelled when the client leaves.

        An error of it is logged and ends this exchange as `fail` does.
        """
        self.response.run(partial(self._run, continuation))

    async def _run(self, continuation: Continuation) -> None:
        with self.containment("a request that had to wait"):
            try:
                await continuation()
            except trio.BrokenResourceError:
                if not self.response.gone:
                    raise
                # A client may leave at any time, so this is not an error.
                log.debug("a client left before it was answered", exchange=self)
