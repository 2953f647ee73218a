"""The client's side of the WebSocket binding."""

from __future__ import annotations

import base64
import importlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.auth.client.settings import BearerToken, ClientAuth, OAuth
from mcp_actors.errors import ConnectFailed
from mcp_actors.supervision.containment import reraised, start_again
from mcp_actors.supervision.task_kinds import TICKER
from mcp_transports._poller import Ticker
from mcp_transports._sockets import advice_about, why_not_connected
from mcp_transports.websocket.channel import KeepAliveTimes, WebSocketChannel
from mcp_transports.websocket.opening import HandshakeFailed, OpeningRefused, WebSocketRefused, ask

__all__ = ["WebSocketClientTransport", "WebSocketRefused"]

Headers = Sequence[tuple[bytes, bytes]]

DEFAULT_CONNECT_TIMEOUT = 10.0

_DEFAULT_PORTS = {"ws": 80, "wss": 443}
# Headers that the opening handshake sets itself.
_RESERVED = frozenset(
    {"host", "upgrade", "connection", "content-length", "transfer-encoding"}
    | {f"sec-websocket-{name}" for name in ("key", "version", "protocol", "extensions")}
)
# The operation that scopes are counted for: when a connection is opened, no call is known yet.
_OPERATION = "open"
# Characters that are shown of a refusal's body.
_LONGEST_TEXT = 200


class WebSocketClientTransport:
    """Speaks MCP over a WebSocket, a `ClientTransport`. One connection is one legacy session, or any modern requests.

    Compression is never offered, redirections are not followed.

    Args:
        url: ``ws://HOST:PORT/PATH`` or ``wss://…``, path ``/`` if absent. User and password in it become basic
            authorization; they are not shown anywhere.
        headers: come with the upgrade request, say ``{"Authorization": "Bearer …"}``. Those that WebSocket sets are
            not allowed.
        ssl_context: for ``wss``; absent, the system's trust store is used.
        subprotocol: offered to the server, which must choose it (``mcp``); None offers none.
        max_message_bytes: the longest message either way, 16 MiB by default; a longer one ends the connection with
            the close code 1009.
        connect_timeout: seconds for all of the opening: name, connection, TLS, handshake; 10 by default.
        auth: the authorization of the upgrade request: `~mcp_actors.auth.OAuth` or `~mcp_actors.auth.BearerToken`. A
            401 or 403 leads to a new token, or to a person who logs in, and the request is made again, with
            ``connect_timeout`` anew.
        ping_interval, ping_timeout, write_timeout, close_timeout: seconds, those of `KeepAliveTimes` (20, 20, 30 and
            0.5 by default).

    Raises:
        ValueError: for a URL or a header that cannot be used, an ``ssl_context`` for ``ws``, times and limits that are
            not greater than zero, and ``auth`` beside an ``authorization`` header or a user in the URL.
        TypeError: ``auth`` is nothing of the above.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        subprotocol: str | None = "mcp",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
        ping_interval: float = KeepAliveTimes().ping_interval,
        ping_timeout: float = KeepAliveTimes().ping_timeout,
        write_timeout: float = KeepAliveTimes().write_timeout,
        close_timeout: float = KeepAliveTimes().close_timeout,
        auth: ClientAuth | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.fragment:
            raise ValueError(
                "a WebSocket server's URL is ws://HOST[:PORT]/PATH or wss://…, without a fragment"
            )
        if ssl_context is not None and parts.scheme != "wss":
            raise ValueError("ws takes no ssl_context; wss does")
        self._name = parts.hostname
        self._port = parts.port or _DEFAULT_PORTS[parts.scheme]
        name = f"[{self._name}]" if ":" in self._name else self._name
        self._host = name if self._port == _DEFAULT_PORTS[parts.scheme] else f"{name}:{self._port}"
        path = parts.path or "/"
        self._target = f"{path}?{parts.query}" if parts.query else path
        self._peer = f"{parts.scheme}://{self._host}{path}"
        if not (self._target + self._host).isascii() or any(c <= " " for c in self._target):
            raise ValueError(f"percent-encode what is not ASCII in a URL: {self._peer}")
        self._headers = _checked(headers or {})
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers.append((b"Authorization", b"Basic " + base64.b64encode(secret)))
        self._auth = auth
        if auth is not None:
            if not isinstance(auth, OAuth | BearerToken):
                raise TypeError(f"auth is OAuth(...) or BearerToken(...), not {type(auth).__name__}")
            if any(name.lower() == b"authorization" for name, _ in self._headers):
                raise ValueError(
                    "auth= and an authorization header or a user in the URL are two sets of credentials"
                )
        if max_message_bytes < 1:
            raise ValueError("max_message_bytes must be at least 1")
        self._ssl_context = ssl_context
        self._subprotocol = subprotocol
        self._max_message_bytes = max_message_bytes
        self._connect_timeout = connect_timeout
        self._times = KeepAliveTimes(
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            write_timeout=write_timeout,
            close_timeout=close_timeout,
        )

    def __repr__(self) -> str:
        return f"<WebSocketClientTransport {self._peer}>"

    @property
    def _secure(self) -> bool:
        return self._peer.startswith("wss:")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a WebSocket and yields its channel.

        Leaving the block, also by cancellation, sends a Close frame with 1000 and closes the connection within
        ``close_timeout`` seconds.

        Raises:
            WebSocketRefused: the server answered the upgrade request with an HTTP status of its own.
            AuthorizationError: there is ``auth``, and access could not be had.
            ConnectFailed: no WebSocket came about for another reason, among them ``connect_timeout``.
        """
        if self._auth is None:
            stream, first = await self._open_in_time(self._headers)
        else:
            stream, first = await self._open_with_access(self._auth)
        ticker: Ticker[WebSocketChannel] = Ticker(self._times.tick)
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                channel = WebSocketChannel(
                    stream,
                    client=True,
                    nursery=nursery,
                    first=first,
                    max_message_bytes=self._max_message_bytes,
                    times=self._times,
                    peer=self._peer,
                )
                ticker.add(channel)
                start_again(nursery, TICKER, ticker.run, about="of a WebSocket")
                with body:
                    try:
                        yield channel
                    finally:
                        with trio.CancelScope(shield=True):
                            await channel.aclose()
                nursery.cancel_scope.cancel(reason="the connection is closed")

    async def _open_with_access(self, auth: ClientAuth) -> tuple[trio.abc.Stream, bytes]:
        """As `_open_in_time`, with the headers that give access, and with new ones after a refusal.

        Raises:
            AuthorizationError: Access could not be had.
            ConnectFailed: The WebSocket was not opened for another reason.
        """
        # Only a client with auth imports what that needs.
        authorizers = importlib.import_module("mcp_transports.auth.authorizer")
        # The metadata of the server are at its HTTP URL.
        url = f"{'https' if self._secure else 'http'}://{self._host}{self._target}"
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                authorizer = authorizers.Authorizer(auth, url, nursery)
                with body:
                    opened = await self._open_once_accepted(authorizers, authorizer, url)
                authorizer.close()
        return opened

    async def _open_once_accepted(
        self, authorizers: Any, authorizer: Any, url: str
    ) -> tuple[trio.abc.Stream, bytes]:
        sent = None
        # The authorizer bounds this: it sends a request again with a few tokens only. Each attempt has its own bound of
        # time, which does not include the login of a person.
        while True:
            if not authorizer.is_ready:
                await authorizer.prepare()
            token = authorizer.token
            access = [
                (name.encode("ascii"), value.encode("ascii"))
                for name, value in authorizer.headers("GET", url)
            ]
            try:
                opened = await self._open_in_time([*self._headers, *access])
            except WebSocketRefused as refused:
                if refused.status not in (401, 403):
                    raise
                if sent is None:
                    sent = authorizers.SentRequest("GET", url, _OPERATION, token)
                else:
                    sent.sent_again(token)
                nonce = refused.headers.get("dpop-nonce")
                answer = authorizers.Answered(refused.status, list(refused.challenges), nonce)
                if not await authorizer.react(sent, answer):
                    raise
            else:
                authorizer.accepted(url, None, _OPERATION)
                return opened

    async def _open_in_time(self, headers: Headers) -> tuple[trio.abc.Stream, bytes]:
        try:
            with trio.fail_after(self._connect_timeout):
                return await self._open(headers)
        except trio.TooSlowError:
            raise ConnectFailed(
                f"{self._peer} did not open a WebSocket within {self._connect_timeout:g} s; is it a WebSocket server?"
            ) from None

    async def _open(self, headers: Headers) -> tuple[trio.abc.Stream, bytes]:
        """Returns a stream on which the opening handshake was made, and the bytes that came behind it."""
        stream = await self._connect_stream()
        try:
            chosen, first = await ask(
                stream,
                host=self._host,
                target=self._target,
                subprotocols=[] if self._subprotocol is None else [self._subprotocol],
                headers=headers,
            )
            if chosen != self._subprotocol:
                raise ConnectFailed(
                    f"{self._peer} did not choose the subprotocol {self._subprotocol!r}"
                    f"{f', but {chosen!r}' if chosen else ''}; subprotocol=None connects without one"
                )
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            self._explain(error)
        return stream, first

    async def _connect_stream(self) -> trio.abc.Stream:
        try:
            plain = await trio.open_tcp_stream(self._name, self._port)
        except OSError as error:
            reason = why_not_connected(error) + advice_about(error)
            raise ConnectFailed(f"cannot connect to {self._peer}: {reason}") from error
        if not self._secure:
            return plain
        # WebSocket has Close frames, so the closing alert of TLS need not be waited for.
        stream = trio.SSLStream(
            plain,
            self._ssl_context or ssl.create_default_context(),
            server_hostname=self._name,
            https_compatible=True,
        )
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            reason = f"{error.__cause__ or error}{advice_about(error)}"
            raise ConnectFailed(f"no TLS with {self._peer}: {reason}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def _explain(self, error: BaseException) -> NoReturn:
        """Raises what went wrong in words for the person that has to do something about it."""
        if isinstance(error, OpeningRefused):
            text = _text(error.body)
            said = f": {text}" if text and not text.startswith("<") else ""
            raise WebSocketRefused(
                f"{self._peer} refused the WebSocket with HTTP {error.status}{said}{_advice(error)}",
                status=error.status,
                headers=error.headers,
                challenges=error.challenges,
                text=text,
            ) from None
        if isinstance(error, HandshakeFailed):
            raise ConnectFailed(f"{self._peer} opened no WebSocket: {error}") from error
        if isinstance(error, trio.BrokenResourceError):
            raise ConnectFailed(f"{self._peer} opened no WebSocket: the connection broke") from error
        raise error


def _advice(refused: OpeningRefused) -> str:
    if refused.status == 401:
        return " (give Client(auth=OAuth()), or a key of the server by auth=BearerToken(…))"
    if 300 <= refused.status < 400 and "location" in refused.headers:
        return (
            f" (it redirects to {refused.headers['location'][:_LONGEST_TEXT]}; use that URL if you trust it)"
        )
    if refused.status in (200, 404, 405):
        return " (is it a WebSocket server, at this path?)"
    return ""


def _text(body: bytes) -> str:
    shown = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    return " ".join(shown.split())[:_LONGEST_TEXT]


def _checked(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    if reserved := sorted({name.lower() for name in headers} & _RESERVED):
        raise ValueError(f"the opening handshake sets these headers itself: {', '.join(reserved)}")
    for name, value in headers.items():
        if any(c < " " or c == "\x7f" for c in name + value):
            raise ValueError(f"the header {name!r} holds a control character")
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
