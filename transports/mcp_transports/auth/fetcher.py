"""HTTP requests to URLs that came from the network: those of metadata, of tokens and of keys.

A host is resolved first, and each of its addresses is judged by the kind of network that it is in.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
import trio

from mcp_actors.auth import UrlPolicy
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.auth.urls import is_loopback, require_usable
from mcp_actors.errors import UrlRefused

__all__ = ["Address", "AddressKind", "CheckedTransport", "Fetcher", "kind_of", "resolve"]

# Seconds for a request, from the look-up of its host to the last byte of the answer, redirections included.
FETCH_TIMEOUT = 10.0
# Seconds for one of several addresses of a host to accept a connection; the last one may use all that is left.
CONNECT_TIMEOUT = 3.0

REDIRECTIONS = frozenset((301, 302, 303, 307, 308))
USER_AGENT = "mcp-actors"
# Characters of a URL in a message.
SHOWN = 200
# What a redirection to another origin takes along of a request's headers: it says nothing about who asks.
HARMLESS = frozenset(("accept",))

AddressKind = Literal["global", "private", "loopback", "link-local", "special"]
"""``private`` are the addresses of a site; ``special`` is all that no server has, such as multicast."""

Address = IPv4Address | IPv6Address

# Addresses of a host that are looked at; more are refused, so that the check of all of them stays bounded.
MAX_ADDRESSES = 32

_PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
# RFC 6052 section 2.1: behind a NAT64 these lead to the IPv4 address of their last four bytes.
_NAT64 = ip_network("64:ff9b::/96")
# RFC 4291 section 2.4: every global unicast address that was ever given out is here.
_GLOBAL_UNICAST = ip_network("2000::/3")


class Fetcher:
    """Carries out `Fetch` effects, and keeps to a `UrlPolicy` (MCP 2026-07-28, Security Best Practices, SSRF).

    A URL is ``https``, or ``http`` to this machine. All addresses of its host must be global, and the connection goes
    to one that was checked: the host is not looked up again. A redirection is followed of a GET only, and checked as
    the first URL was. An address of this machine or of a private network is allowed if the configured server has one
    of the same kind, or the host is in ``policy.allowed_hosts``. Every request has a connection of its own, and no
    cookies.

    If the environment names a proxy for a URL, the proxy makes the connection. The addresses that this machine knows of
    the host are checked all the same; a host that only the proxy can look up is left to the proxy.

    Args:
        policy: Which URLs may be used.
        configured_url: The URL of the server that the program was given; it is trusted. ``None`` for URLs
            that belong to none: all their addresses must be global.
        tls: The context of TLS; by default that of the system's trusted authorities.
    """

    def __init__(
        self, policy: UrlPolicy, configured_url: str | None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._policy = policy
        self._allowed = frozenset(each.lower() for each in policy.allowed_hosts)
        self._configured_url = configured_url
        self._configured_kind: AddressKind | None = None
        self._tls = tls

    def __repr__(self) -> str:
        return f"<Fetcher for {urlsplit(self._configured_url or '').hostname}>"

    async def fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        """Carries out one request, within `FETCH_TIMEOUT` seconds. Cancelled, its connection is closed.

        Whatever the network does, it is returned and not raised.
        """
        try:
            url = _usable(fetch.url)
        except UrlRefused as error:
            return FetchFailed(str(error), refused=True)
        try:
            with trio.fail_after(FETCH_TIMEOUT):
                return await self._follow(fetch, url)
        except UrlRefused as error:
            return FetchFailed(str(error), refused=True)
        except trio.TooSlowError:
            return FetchFailed(f"{_shown(url)} gave no whole answer within {FETCH_TIMEOUT:g} s")
        except _NoAnswer as error:
            return FetchFailed(str(error))

    async def allows(self, url: str) -> bool:
        """Whether a URL may be used by something else that connects to it, such as a client of MCP.

        Its host is looked up for that, within `FETCH_TIMEOUT` seconds. A host that cannot be looked up is allowed, as
        no connection to it can be made, and the failure of that says why. The owner of the host may give it another
        address before it is connected to: `transport_for` checks that one.
        """
        try:
            usable = _usable(url)
            with trio.fail_after(FETCH_TIMEOUT):
                await self._checked(usable, through_proxy=_proxy_for(usable) is not None)
        except UrlRefused:
            return False
        except (trio.TooSlowError, _NoAnswer):
            return True
        return True

    def transport_for(self, url: str, most: int) -> CheckedTransport | None:
        """Returns a transport of an HTTP client that checks each address that it connects to.

        Args:
            url: The URL, which is ``https``.
            most: Connections at a time.

        Returns:
            ``None`` if the environment names a proxy for the URL, which makes the connections then.
        """
        return None if _proxy_for(_usable(url)) is not None else CheckedTransport(most, self._addresses_of)

    async def _addresses_of(self, host: str, port: int) -> Sequence[Address]:
        return await self._checked(httpx2.URL(scheme="https", host=host, port=port), through_proxy=False)

    async def _follow(self, fetch: Fetch, url: httpx2.URL) -> Fetched:
        first = url
        headers = list(fetch.headers)
        follows = fetch.redirects > 0 and fetch.method == "GET"
        for _ in range(fetch.redirects + 1):
            answer = await self._ask(fetch, url, headers)
            location = answer.header("location")
            if not follows or answer.status not in REDIRECTIONS or location is None:
                return answer
            try:
                following = _usable(str(url.join(location).copy_with(fragment=None)))
            except (httpx2.InvalidURL, ValueError):
                raise UrlRefused(f"{_shown(url)} redirects to something that is no URL") from None
            if _origin(following) != _origin(url):
                headers = [each for each in headers if each[0].lower() in HARMLESS]
            url = following
        raise _NoAnswer(f"{_shown(first)} redirects more than {fetch.redirects} times")

    async def _ask(self, fetch: Fetch, url: httpx2.URL, headers: Iterable[tuple[str, str]]) -> Fetched:
        proxy = _proxy_for(url)
        addresses = await self._checked(url, through_proxy=proxy is not None)
        host = url.netloc.decode("ascii")
        fixed = [("host", host), ("user-agent", USER_AGENT), ("accept-encoding", "identity")]
        try:
            async with httpcore2.AsyncConnectionPool(
                ssl_context=self._context() if url.scheme == "https" else None,
                proxy=proxy,
                network_backend=_ToAddresses(addresses if proxy is None else ()),
            ) as pool:
                async with pool.stream(
                    fetch.method,
                    httpcore2.URL(
                        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                    ),
                    headers=[*fixed, ("connection", "close"), *headers],
                    content=fetch.body,
                ) as response:
                    return await _read(response, url, fetch.max_bytes)
        except (httpcore2.ConnectError, httpcore2.ProxyError, OSError) as error:
            raise _NoAnswer(f"{_shown(url)} cannot be reached: {_why(error)}") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            # Their texts may repeat what the peer sent.
            raise _NoAnswer(f"{_shown(url)} broke off, or its answer is no HTTP") from error

    async def _checked(self, url: httpx2.URL, *, through_proxy: bool) -> Sequence[Address]:
        """Returns the addresses to connect to, all of which may be; none if the system may look the host up itself."""
        host = url.host
        if not self._policy.checks_addresses or host.lower() in self._allowed:
            return ()
        try:
            addresses = await resolve(url.raw_host.decode("ascii"), _port(url))
        except OSError as error:
            if through_proxy:
                return ()
            raise _NoAnswer(f"the host of {_shown(url)} cannot be looked up: {error}") from error
        for address in addresses:
            kind = kind_of(address)
            if kind != "global" and (kind in ("link-local", "special") or kind != await self._own_kind()):
                raise UrlRefused(
                    f"{_shown(url)} leads to a {kind} address, which a URL from the network must not:"
                    f" if that is meant, add {host!r} to UrlPolicy(allowed_hosts=…)"
                )
        return addresses

    async def _own_kind(self) -> AddressKind:
        """Returns the kind of the configured server's address, ``global`` if there is more than one or none.

        The owner of its name may change its addresses between two look-ups. So there is only one, and no name but
        ``localhost`` counts as one of this machine.
        """
        if self._configured_kind is None:
            if self._configured_url is None:
                self._configured_kind = "global"
            elif is_loopback(self._configured_url):
                self._configured_kind = "loopback"
            else:
                host = urlsplit(self._configured_url).hostname or ""
                try:
                    kinds = {kind_of(each) for each in await resolve(host, 443)}
                except OSError:
                    kinds = set()
                self._configured_kind = "private" if kinds == {"private"} else "global"
        return self._configured_kind

    def _context(self) -> ssl.SSLContext:
        return self._tls or _trusted_authorities()


async def _read(response: httpcore2.Response, url: httpx2.URL, max_bytes: int) -> Fetched:
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
    answer = Fetched(response.status, headers, b"")
    if (answer.header("content-encoding") or "identity").lower() != "identity":
        # A short compressed body may unpack to one without an end.
        raise _NoAnswer(f"{_shown(url)} answers with a compressed body, which was not asked for")
    body = bytearray()
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > max_bytes:
                raise _NoAnswer(f"{_shown(url)} answers with more than {max_bytes} bytes")
    return Fetched(response.status, headers, bytes(body))


class _NoAnswer(Exception):
    """The request failed without an answer; the text says why, without secrets."""


class _ToAddresses(httpcore2.AsyncNetworkBackend):
    """Connects to given addresses, whatever the host is called; without any, to the host.

    TLS and the ``Host`` header are none of its business: both have the name of the URL.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = [str(each) for each in addresses]
        self._trio = httpcore2.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Opens a connection to the first address that accepts one.

        Raises:
            httpcore2.ConnectError: None does, because of the last one's error.
            httpcore2.ConnectTimeout: The last one does not answer.
        """
        *others, last = self._addresses or [host]
        for address in others:
            try:
                return await self._trio.connect_tcp(address, port, CONNECT_TIMEOUT)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._trio.connect_tcp(last, port)


class CheckedTransport(httpx2.AsyncBaseTransport):
    """The transport of an HTTP client whose URLs came from the network, such as those that an API's document names.

    A URL is ``https``. Its host is looked up for each connection, all its addresses are checked, and the connection
    goes to one of them. No proxy of the environment is used. Redirections are the caller's.

    Args:
        most: Connections at a time; a fifth of them wait for the next request.
        check: Looks up a host and a port, and returns the addresses. It raises `UrlRefused` for any that must not be
            connected to. By default those are all that are not global.
    """

    def __init__(
        self, most: int, check: Callable[[str, int], Awaitable[Sequence[Address]]] | None = None
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_trusted_authorities(),
            max_connections=most,
            max_keepalive_connections=most // 5,
            network_backend=_ToCheckedAddresses(check or _global_addresses),
        )

    def __repr__(self) -> str:
        return f"<CheckedTransport {self._pool!r}>"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request and returns the head of its response.

        Raises:
            UrlRefused: The URL must not be used, or its host has an address that is not global.
            httpx2.ConnectError: There is no connection.
            httpx2.ReadError: The connection broke off, or what came is no HTTP.
            httpx2.ReadTimeout: A step took too long.
        """
        url = request.url
        if url.scheme != "https":
            raise UrlRefused(f"{_shown(url)} is not used: what came from the network has to say https")
        asked = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=await request.aread(),
            extensions=request.extensions,
        )
        try:
            response = await self._pool.handle_async_request(asked)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout, OSError) as error:
            raise httpx2.ConnectError(f"{_shown(url)} cannot be reached: {_why(error)}") from error
        except httpcore2.TimeoutException as error:
            raise httpx2.ReadTimeout(f"{_shown(url)} is silent") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise httpx2.ReadError(f"{_shown(url)} broke off, or its answer is no HTTP") from error
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_CheckedBody(response, url),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _CheckedBody(httpx2.AsyncByteStream):
    """The body of a response, with the errors of the library above."""

    def __init__(self, response: httpcore2.Response, url: httpx2.URL) -> None:
        self._response = response
        self._url = url

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._response.aiter_stream()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpcore2.TimeoutException as error:
            raise httpx2.ReadTimeout(f"{_shown(self._url)} is silent") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise httpx2.ReadError(f"{_shown(self._url)} broke off, or its answer is no HTTP") from error

    async def aclose(self) -> None:
        await self._response.aclose()


class _ToCheckedAddresses(httpcore2.AsyncNetworkBackend):
    """Connects to hosts whose addresses were looked up and checked for this connection."""

    def __init__(self, check: Callable[[str, int], Awaitable[Sequence[Address]]]) -> None:
        self._check = check

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Opens a connection to the first address that accepts one.

        Raises:
            UrlRefused: An address must not be connected to.
            httpcore2.ConnectError: The host has none, or no connection is accepted.
        """
        try:
            with trio.fail_after(CONNECT_TIMEOUT if timeout is None else timeout):
                addresses = await self._check(host, port)
        except (OSError, _NoAnswer, trio.TooSlowError) as error:
            raise httpcore2.ConnectError(f"its host cannot be looked up: {error}") from error
        return await _ToAddresses(addresses).connect_tcp(host, port, timeout)


async def _global_addresses(host: str, port: int) -> Sequence[Address]:
    addresses = await resolve(host, port)
    for each in addresses:
        if (kind := kind_of(each)) != "global":
            raise UrlRefused(
                f"the host {host[:SHOWN]!r} has a {kind} address, which a document from the network must not"
                " lead to: if that is meant, name the place by base_url="
            )
    return addresses


def _why(error: BaseException) -> str:
    """Returns the text of an error, or of its cause: a failed handshake of TLS has none of its own."""
    while not str(error) and (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error)


def _usable(url: str) -> httpx2.URL:
    require_usable(url, "the URL")
    try:
        return httpx2.URL(url)
    except httpx2.InvalidURL:
        raise UrlRefused("a URL from the network is malformed") from None


def _shown(url: httpx2.URL) -> str:
    """Returns a URL for messages: without its query, which may hold secrets."""
    return str(url.copy_with(query=None))[:SHOWN]


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, _port(url)


def _proxy_for(url: httpx2.URL) -> httpcore2.Proxy | None:
    """Returns the proxy that the environment names for a URL. Servers on this machine never have one."""
    if is_loopback(str(url)):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    if not found or proxy_bypass(url.host):
        return None
    try:
        parsed = httpx2.URL(found if "://" in found else f"http://{found}")
    except httpx2.InvalidURL:
        raise _NoAnswer(f"the environment names a proxy for {_shown(url)} whose URL is malformed") from None
    if parsed.scheme not in ("http", "https"):
        raise _NoAnswer(
            f"the environment names a {parsed.scheme} proxy for {_shown(url)}: only http and https are known"
        )
    return httpcore2.Proxy(
        httpcore2.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=b"/"),
        auth=(parsed.username, parsed.password) if parsed.userinfo else None,
    )


@functools.cache
def _trusted_authorities() -> ssl.SSLContext:
    """Returns the context with the trusted authorities. Reading them takes many milliseconds, so it is done once."""
    return httpx2.create_ssl_context()


def kind_of(address: Address) -> AddressKind:
    """Returns the kind of an address; an IPv6 address that embeds one of IPv4 has the kind of that one."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return kind_of(inner)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if any(address in each for each in _PRIVATE):
        return "private"
    unicast = address in _GLOBAL_UNICAST if address.version == 6 else not address.is_multicast
    return "global" if unicast and address.is_global else "special"


async def resolve(host: str, port: int) -> list[Address]:
    """Returns the addresses of a host, in the order in which the system prefers them, at least one.

    Args:
        host: A name, or an address in any spelling that the system's resolver accepts: what it means is decided by
            the resolver alone, so that nothing else can read it in another way.
        port: Any port.

    Raises:
        OSError: The host has no address, or too many.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=SOCK_STREAM)
    except UnicodeError as error:  # a name that cannot be any host's
        raise OSError("no host can have that name") from error
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0])) for entry in found))
    if not addresses:
        raise OSError("the host has no address")
    if len(addresses) > MAX_ADDRESSES:
        raise OSError(f"the host has more than {MAX_ADDRESSES} addresses")
    return addresses
