"""The server's side of the WebSocket binding: an application of the HTTP server that takes connections over."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.abc.framing import DEFAULT_HELD_BYTES, DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.budget import Account, Budget, BudgetStatistics, holder_of
from mcp_actors.supervision.containment import reraised, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import POLLER, TICKER
from mcp_transports._poller import Poller, Ticker, open_poller
from mcp_transports._transports import as_engine_errors
from mcp_transports.http.h1.connection import ConnectionCounts
from mcp_transports.http.h1.http_server import PortShare, share_port
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import ListenUrl, Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.authentication import (
    Authenticate,
    HttpExchange,
    Protection,
    access_scope,
    answer_document,
    authentication_of,
)
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.responses import (
    SERVER_STOPPING,
    Identity,
    IdentityLater,
    Refusal,
    method_not_allowed,
)
from mcp_transports.sockets.stream import ConnectedSocket
from mcp_transports.websocket.channel import KeepAliveTimes, WebSocketChannel
from mcp_transports.websocket.opening import accept
from mcp_transports.websocket.protocol import GOING_AWAY

__all__ = ["WebSocketServerStatistics", "WebSocketServerTransport"]

SUBPROTOCOL = "mcp"
# Each costs a task or two, a descriptor and some KiB.
DEFAULT_MAX_CONNECTIONS = 20_000
# The request's head, a TLS handshake, and the answer to it, each.
DEFAULT_HANDSHAKE_TIME = 10.0

_VERSION = "13"
NO_WEBSOCKET = Refusal(
    426,
    "upgrade required: this is a WebSocket endpoint",
    headers=(("upgrade", "websocket"),),
)
WRONG_VERSION = Refusal(
    426,
    f"upgrade required: only version {_VERSION} of WebSocket is spoken here",
    headers=(("upgrade", "websocket"), ("sec-websocket-version", _VERSION)),
)
NO_VERSION = Refusal(
    400, "the header sec-websocket-version is missing", headers=(("sec-websocket-version", _VERSION),)
)
NO_KEY = Refusal(400, "the header sec-websocket-key is missing, or is not 16 bytes in base64")
NOT_ALONE = Refusal(
    400, "an upgrade request has no body and travels alone: nothing follows it before it is answered"
)
NO_SUBPROTOCOL = Refusal(
    400, f"the subprotocol {SUBPROTOCOL!r} must be offered; the setting require_subprotocol asks for it"
)


@attrs.frozen
class WebSocketServerStatistics:
    """A snapshot of a listener."""

    connections: int
    """Open WebSockets."""
    refused: int
    """Upgrade requests that were refused since the start."""
    unfinished: BudgetStatistics
    """Bytes of messages that have come in part, by principal or address."""
    port: ConnectionCounts | None
    """The connections at its address, with those of other transports there; ``None`` while it is not served."""


@attrs.define
class _Serving:
    """The parts of a transport that exist while it is served."""

    handler: ServerHandler
    poller: Poller
    share: PortShare | None = None


class WebSocketServerTransport:
    """Serves MCP over WebSocket at one URL, one session for each connection. A `ServerTransport`.

    When an `HttpServerTransport` is served at the same address already, in this process and with the same
    ``ssl_context``, both share its port: requests that ask for an upgrade come here. Compression is never agreed to.

    Args:
        url: ``ws://HOST:PORT/PATH`` (port 0 for any free one, path ``/`` if absent), or ``wss://…`` with an
            ``ssl_context``.
        allowed_hosts, allowed_origins: those of `OriginPolicy`: by default what leads to the bound address alone, and
            browsers only from there. Others are refused with 403.
        authenticate: ``authenticate(request)`` returns, or is awaited for, who the peer is: a name or a `Principal`,
            ``None`` without one, or a `Refusal`, say one with 401. It is called before the upgrade. What it raises is
            answered with 500 and logged.
        auth: a `mcp_actors.auth.ResourceServer`, in place of ``authenticate``: the upgrade request must have an access
            token for it. The connection ends when that expires, after the grace of `Principal.seconds_left`.
        ssl_context: for ``wss``.
        require_subprotocol: refuse clients that do not offer the subprotocol ``mcp``; off by default. It is confirmed
            to those that do; the others are served without one.
        max_message_bytes: the longest message either way, 16 MiB by default; a longer one is refused with the close
            code 1009.
        held_bytes: bytes of messages that have come in part, from 16 KiB each on, of all connections together; 512 MiB
            by default, and for one principal or address the half. Over it the connection whose message was about to
            grow is closed with the code 1013.
        max_connections: over it connections are answered with 503; 20,000 by default.
        max_connections_per_peer: the part of ``max_connections`` that one address may have, of IPv6 a network of 64
            bits; the half by default, so that one client leaves the other half to others.
        handshake_time: seconds that the request's head, a TLS handshake, and the answer may take, each; 10 by default.
        ping_interval, ping_timeout, write_timeout, close_timeout: seconds, those of `KeepAliveTimes` (20, 20, 30 and
            0.5 by default).

    Raises:
        ImportError: ``auth`` needs the extra ``auth``, which is missing.
        TypeError: ``auth`` is not a `ResourceServer`.
        ValueError: for ``auth`` with ``authenticate``, a URL that cannot be served, ``wss`` without an
            ``ssl_context`` or ``ws`` with one, and for limits and times that are not greater than zero.
    """

    def __init__(
        self,
        url: str,
        *,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        authenticate: Authenticate | None = None,
        auth: Protection | None = None,
        ssl_context: ssl.SSLContext | None = None,
        require_subprotocol: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        held_bytes: int = DEFAULT_HELD_BYTES,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        max_connections_per_peer: int | None = None,
        handshake_time: float = DEFAULT_HANDSHAKE_TIME,
        ping_interval: float = KeepAliveTimes().ping_interval,
        ping_timeout: float = KeepAliveTimes().ping_timeout,
        write_timeout: float = KeepAliveTimes().write_timeout,
        close_timeout: float = KeepAliveTimes().close_timeout,
    ) -> None:
        scheme, colon, where = url.partition("://")
        if scheme.lower() not in ("ws", "wss") or not colon:
            raise ValueError(f"not a URL that WebSocket is served at: {url!r}")
        self._address = address = ListenUrl(f"http{scheme[2:].lower()}://{where}", default_path="/")
        if address.secure != (ssl_context is not None):
            raise ValueError("wss needs an ssl_context, and ws has none")
        if min(max_message_bytes, held_bytes) < 1:
            raise ValueError("max_message_bytes and held_bytes must be at least 1")
        self._ssl_context = ssl_context
        self._origin_policy = OriginPolicy(
            address.host or "", allowed_hosts=allowed_hosts, allowed_origins=allowed_origins
        )
        self._authentication = authentication_of(authenticate, auth)
        self._require_subprotocol = require_subprotocol
        self._limits = HttpLimits(
            connections=max_connections,
            connections_per_address=max_connections_per_peer,
            head_time=handshake_time,
        )
        self._unfinished = Budget(held_bytes)
        times = KeepAliveTimes(
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            write_timeout=write_timeout,
            close_timeout=close_timeout,
        )
        self._ticker: Ticker[WebSocketChannel] = Ticker(times.tick)
        self._make_channel = partial(
            WebSocketChannel,
            client=False,
            max_message_bytes=max_message_bytes,
            times=times,
            close_code=GOING_AWAY,
        )
        self._served: _Serving | None = None
        self._refused = 0

    def __repr__(self) -> str:
        state = "not served" if self._served is None else f"{len(self._ticker)} connections"
        return f"<WebSocketServerTransport {self._url()}: {state}>"

    def _url(self, port: int | None = None) -> str:
        return "ws" + self._address.url(port).removeprefix("http")

    async def serve(
        self,
        handler: ServerHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled, or until `handler.stopping` is set and all connections have ended.

        Reports its URL, with the real port, once connections are accepted. Cancelled, it closes every connection, and
        each peer gets a Close frame with 1001: the connections of its own listener are cancelled, and those of a
        listener that another transport opened at the address, and goes on serving, end as if their peers had left. What
        a connection's handler raises ends that connection alone.

        Raises:
            ConnectFailed: it cannot listen there, or not any more.
            LocalProtocolError: this object is served already.
        """
        if self._served is not None:
            raise LocalProtocolError(f"{self._url()} is served already")
        if self._authentication is not None:
            self._authentication.begin(handler)
        poller = open_poller()
        self._served = served = _Serving(handler, poller)
        try:
            with reraised() as body:
                async with trio.open_nursery() as nursery:
                    start_again(nursery, POLLER, poller.run, about="of WebSockets")
                    start_again(nursery, TICKER, self._ticker.run, about="of WebSockets")
                    with body:
                        await self._listen(served, task_status)
                    nursery.cancel_scope.cancel(reason="the listener is done")
        finally:
            self._served = None
            poller.close()
            # The connections of a listener that another transport serves would go on.
            for channel in self._ticker.members:
                channel.close_soon()

    async def _listen(self, served: _Serving, task_status: trio.TaskStatus[str]) -> None:
        documents = () if self._authentication is None else self._authentication.documents
        shared = share_port(
            self._address,
            self,
            ssl_context=self._ssl_context,
            limits=self._limits,
            upgrades=True,
            documents=documents,
        )
        with as_engine_errors():
            async with shared as served.share:
                task_status.started(self._url(served.share.port))
                await served.share.serve(served.handler.leaving, served.handler.stopping)

    def statistics(self) -> WebSocketServerStatistics:
        """Returns a snapshot of the counters."""
        served = self._served
        return WebSocketServerStatistics(
            len(self._ticker),
            self._refused,
            self._unfinished.statistics(),
            served.share.statistics() if served is not None and served.share is not None else None,
        )

    # -- the opening -----------------------------------------------------------------------------------------------

    def __call__(self, request: Request, response: Response) -> None:
        """Refuses a request, or takes its connection over: this object is an application of the HTTP server."""
        exchange = HttpExchange(request, response)
        if answer_document(exchange, self._authentication, self._origin_policy):
            return
        refusal = self._refusal(request)
        if refusal is not None:
            self._refuse(exchange, refusal)
        elif self._authentication is None:
            self._admit(exchange, None)
        else:
            identity = self._authentication.identify(request)
            if isinstance(identity, partial):
                response.run(partial(self._admit_later, exchange, identity))
            else:
                self._admit(exchange, identity)

    async def _admit_later(self, exchange: HttpExchange, identity_of: IdentityLater) -> None:
        self._admit(exchange, await identity_of())

    def _admit(self, exchange: HttpExchange, identity: Identity) -> None:
        if isinstance(identity, Refusal):
            self._refuse(exchange, identity)
            return
        exchange.request.principal = identity
        if not exchange.response.upgrade(partial(self._serve_connection, exchange.request, identity)):
            self._refuse(exchange, NOT_ALONE)

    def _refuse(self, exchange: HttpExchange, refusal: Refusal) -> None:
        self._refused += 1
        exchange.refuse(refusal)

    def _refusal(self, request: Request) -> Refusal | None:
        """Returns why a request is refused: first what concerns every HTTP server, then RFC 6455 section 4.2.1."""
        headers = request.headers
        verdict = self._origin_policy.check(headers.get("host"), headers.get("origin"))
        if verdict.refusal is not None:
            return Refusal(403, verdict.refusal)
        if request.path != self._address.path:
            return Refusal(404, "nothing is served at this path")
        if request.method != "GET":
            return method_not_allowed("GET")
        if not asks_for_websocket(request):
            return NO_WEBSOCKET
        version = headers.get("sec-websocket-version")
        if version != _VERSION:
            return NO_VERSION if version is None else WRONG_VERSION
        if not _is_key(headers.get("sec-websocket-key", "")):
            return NO_KEY
        if request.body or not request.head:
            return NOT_ALONE
        if self._require_subprotocol and SUBPROTOCOL not in _listed(headers, "sec-websocket-protocol"):
            return NO_SUBPROTOCOL
        if self._served is None or self._served.handler.stopping.is_set():
            return SERVER_STOPPING
        return None

    # -- an open connection ----------------------------------------------------------------------------------------

    async def _serve_connection(
        self, request: Request, principal: Principal | None, stream: trio.abc.Stream
    ) -> None:
        """Goes on with a connection that the HTTP server has handed over, and closes it."""
        opened = False
        try:
            opened = await self._opened(request, stream)
        finally:
            if not opened or self._served is None:
                await trio.aclose_forcefully(stream)
        served = self._served
        if not opened or served is None:
            return
        # The request is kept for as long as the connection; the bytes of its head are not needed any more.
        request.head = b""
        if isinstance(stream, trio.SocketStream):
            stream = ConnectedSocket.adopt(stream, served.poller)
        account = Account(self._unfinished, holder_of(request.peer, principal))
        # The short tasks of the channel are this task's siblings: a nursery of their own would be as large as the rest
        # of an idle connection. They end when the stream is closed.
        siblings = trio.lowlevel.current_task().parent_nursery
        assert siblings is not None
        channel = self._make_channel(
            stream, nursery=siblings, peer=request.peer, http_request=request, account=account
        )
        # A scope is a fifth of what an idle connection takes here: there is one only where access ends by itself.
        has_end = principal is not None and principal.expires_at is not None
        with access_scope(principal) if has_end else nullcontext():
            self._ticker.add(channel)
            try:
                await served.handler(channel, principal)
            finally:
                self._ticker.discard(channel)
                try:
                    await channel.aclose()
                finally:
                    account.keep(0)

    async def _opened(self, request: Request, stream: trio.abc.Stream) -> bool:
        """Makes the opening handshake, and returns whether that was possible."""
        try:
            with trio.fail_after(self._limits.head_time):
                offered = SUBPROTOCOL in _listed(request.headers, "sec-websocket-protocol")
                await accept(stream, request.head, SUBPROTOCOL if offered else None)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            log.debug("no WebSocket was opened", peer=request.peer, reason=repr(error))
            return False
        return True


def asks_for_websocket(request: Request) -> bool:
    """Whether a request wants this connection to become a WebSocket."""
    headers = request.headers
    return (
        request.version == "1.1"
        and "websocket" in _listed(headers, "upgrade", lower=True)
        and "upgrade" in _listed(headers, "connection", lower=True)
    )


def _listed(headers: dict[str, str], name: str, *, lower: bool = False) -> list[str]:
    value = headers.get(name, "")
    return [each.strip(" \t") for each in (value.lower() if lower else value).split(",")]


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
