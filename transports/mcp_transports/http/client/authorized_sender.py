"""The sender that gives each request the credentials of its server, and sends one again that needs other ones."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx2
import trio

from mcp_actors.errors import LocalProtocolError
from mcp_transports.auth.authorizer import Answered, Authorizer, SentRequest
from mcp_transports.http.client.senders import (
    AccessWaiter,
    Headers,
    RawResponse,
    RequestBody,
    RequestSender,
    without_secrets,
)

__all__ = ["AuthorizedSender"]

# Bytes of a refusal that are kept while access is had, and seconds for them. The connection is free meanwhile.
MAX_REFUSAL_BYTES = 64 * 1024
REFUSAL_TIMEOUT = 5.0
# The headers by which a request carries a proof beside its token, and may get a nonce for the next one.
HEADERS_WITH_PROOF = 2


class AuthorizedSender:
    """Sends through another sender, with credentials, and to the origin of its first URL only.

    Args:
        inner: Sends the requests, and follows no redirection.
        authorizer: Has the credentials.
    """

    def __init__(self, inner: RequestSender, authorizer: Authorizer) -> None:
        self.url = inner.url
        self._target = _bare(inner.url)
        self._inner = inner
        self._authorizer = authorizer

    def with_url(self, url: httpx2.URL) -> AuthorizedSender:
        """Returns a sender for another URL of the same origin.

        Raises:
            LocalProtocolError: The URL has another origin, which must not get the credentials.
        """
        if (url.scheme, url.host, url.port) != (self.url.scheme, self.url.host, self.url.port):
            raise LocalProtocolError(f"{without_secrets(url)} must not get the credentials of {self._target}")
        sender = copy.copy(self)
        sender.url, sender._target, sender._inner = url, _bare(url), self._inner.with_url(url)
        return sender

    async def send(
        self, method: str, headers: Headers, body: RequestBody | None, waiter: AccessWaiter | None = None
    ) -> RawResponse:
        """Sends a request, as often as it takes, and waits for the head of its response; see `RequestSender.send`.

        Raises:
            AuthorizationError: Access could not be had, or was of no use.
        """
        authorizer = self._authorizer
        sent: SentRequest | None = None
        # The authorizer bounds this: it sends a request again with a few tokens only.
        while True:
            if not authorizer.is_ready:
                await authorizer.prepare(waiter)
            token = authorizer.token
            own = authorizer.headers(method, self._target)
            given = [(name.encode("ascii"), value.encode("ascii")) for name, value in own]
            response = await self._inner.send(method, [*headers, *given], body)
            if response.status not in (401, 403):
                authorizer.accepted_with(token)
                if len(given) >= HEADERS_WITH_PROOF or authorizer.is_stepping_up:
                    self._accepted(response, waiter)
                return response
            refusal = await _Refusal.of(response)
            if sent is None:
                operation = "" if waiter is None else waiter.operation
                sent = SentRequest(method, self._target, operation, token)
            else:
                sent.sent_again(token)
            if not await self._has_access(sent, refusal, waiter):
                return refusal

    def _accepted(self, response: RawResponse, waiter: AccessWaiter | None) -> None:
        stepping = self._authorizer.is_stepping_up and waiter is not None and response.status < 400
        operation = waiter.operation if waiter is not None and stepping else None
        self._authorizer.accepted(self._target, _first(response.headers, b"dpop-nonce"), operation)

    async def _has_access(self, sent: SentRequest, refusal: _Refusal, waiter: AccessWaiter | None) -> bool:
        """Whether there is other access than before, so that the request is to be sent again."""
        answer = Answered(
            refusal.status,
            _all(refusal.headers, b"www-authenticate"),
            _first(refusal.headers, b"dpop-nonce"),
        )
        if waiter is None:
            return await self._authorizer.react(sent, answer)
        waiter.is_refused = True
        try:
            return await self._authorizer.react(sent, answer, waiter)
        finally:
            waiter.is_refused = False


class _Refusal:
    """A response with its body, whose connection others may use already."""

    def __init__(self, response: RawResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.socket = None
        self._body = body

    @classmethod
    async def of(cls, response: RawResponse) -> _Refusal:
        """Reads the beginning of the body, and closes the response. Raises the errors of its library."""
        body = b""
        try:
            with trio.move_on_after(REFUSAL_TIMEOUT):
                async with aclosing(response.chunks()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) >= MAX_REFUSAL_BYTES:
                            break
        finally:
            await response.aclose()
        return cls(response, body)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def read(self, enough: int) -> bytes:
        return self._body

    async def aclose(self) -> None:
        """Does nothing: the response is closed."""


def _bare(url: httpx2.URL) -> str:
    return str(url.copy_with(userinfo=b"", fragment=None))


def _all(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in headers if each.lower() == name]


def _first(headers: Headers, name: bytes) -> str | None:
    return next(iter(_all(headers, name)), None)
