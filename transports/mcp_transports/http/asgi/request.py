"""From an ASGI scope and the messages behind it to a `Request`, with the checks that our own parser makes."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import lru_cache
from threading import Lock
from urllib.parse import quote

from mcp_actors.abc.asgi import AsgiMessage, AsgiReceive
from mcp_actors.budget import Budget, holder_of
from mcp_transports.http.asgi.sides import LoopSide
from mcp_transports.http.h1.field_rules import HOST, LOWER_NAMES, METHODS, SINGLE_VALUED
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request

__all__ = ["BodyReader", "RequestRefused", "request_of"]

_METHODS = frozenset(METHODS.values())
# A body of this many bytes is what one read brings, and is not counted as held.
_UNCOUNTED = 64 * 1024
# Messages without a byte of the body: servers send one or two.
_MOST_EMPTY = 100
# Messages between two checkpoints: a server that has everything never waits.
_MESSAGES_AT_ONCE = 64


class RequestRefused(Exception):
    """A request that is malformed, over a limit, or that there is no room for.

    Args:
        status: The status of the answer.
        reason: Its text. Empty when the client has left.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def request_of(
    scope: AsgiMessage, limits: HttpLimits, paths: Collection[str], documents: Collection[str]
) -> Request:
    """Returns the request of an ``http`` or ``websocket`` scope, without its body.

    Args:
        scope: The scope.
        limits: The bounds on its head.
        paths: The paths that are served, relative to where the application is mounted.
        documents: The paths of public documents, from the root of the host.

    Raises:
        RequestRefused: It is malformed, or over a limit.
    """
    headers = _headers(scope["headers"], limits)
    method = scope.get("method", "GET")
    if method not in _METHODS:
        raise RequestRefused(501, "the method is not implemented")
    host = headers.get("host")
    if host is not None and not _is_host(host):
        raise RequestRefused(400, "the header host is malformed")
    version = scope.get("http_version", "1.1")
    if host is None and version != "1.0":
        raise RequestRefused(400, "the header host is missing")
    full = path = scope["path"]
    if scope.get("root_path"):
        full, path = _paths(scope, paths, documents)
        # A prefix may have characters in it that a URL cannot have.
        full = full if full == path else quote(full)
    raw_query = scope.get("query_string")
    query = raw_query.decode("latin-1") if raw_query else ""
    if len(full) + len(query) > limits.target_bytes:
        raise RequestRefused(414, "the request target is too long")
    return Request(
        method,
        f"{full}?{query}" if query else full,
        path,
        query,
        headers,
        b"",
        version,
        True,
        peer=_peer(scope.get("client")),
        secure=scope.get("scheme") in ("https", "wss"),
    )


@lru_cache(maxsize=64)
def _is_host(value: str) -> bool:
    return HOST.fullmatch(value) is not None


def _headers(lines: Collection[tuple[bytes, bytes]], limits: HttpLimits) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    for name, value in lines:
        size += len(name) + len(value)
        key = LOWER_NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key not in headers:
            headers[key] = text
        elif key in SINGLE_VALUED or key.startswith("mcp-"):
            raise RequestRefused(400, f"the header {key} is repeated")
        else:
            headers[key] += ("; " if key == "cookie" else ", ") + text
    if len(lines) > limits.headers:
        raise RequestRefused(431, "too many header lines")
    if size + 4 * len(lines) > limits.head_bytes:
        raise RequestRefused(431, "the request head is too long")
    length = headers.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdecimal()):
            raise RequestRefused(400, "the header content-length is malformed")
        if len(length) > 20 or int(length) > limits.body_bytes:
            raise RequestRefused(413, "the request body is too long")
    return headers


def _paths(scope: AsgiMessage, paths: Collection[str], documents: Collection[str]) -> tuple[str, str]:
    """Returns the path from the root of the host, and the one that is served.

    Servers and frameworks disagree whether ``path`` begins with ``root_path``: ASGI says so, as Starlette does since
    0.33, and older ones leave it out.
    """
    path: str = scope["path"]
    root: str = scope["root_path"].rstrip("/")
    if not root:
        return path, path
    if path == root or path.startswith(f"{root}/"):
        full, relative = path, path[len(root) :] or "/"
    else:
        full, relative = root + path, path
    if full in documents:
        return full, full
    if relative not in paths and path in paths:
        return root + path, path
    return full, relative


def _peer(client: tuple[str, int] | None) -> str:
    if not client or not client[0]:
        return "unix"
    host, port = client[0], client[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class BodyReader:
    """Reads the bodies of requests, and charges them to their peers. Used by any number of loops and threads.

    Args:
        limits: The bounds on bodies.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self.budget = Budget(limits.held_bytes, limits.held_bytes_per_address)

    async def read(self, side: LoopSide, receive: AsgiReceive, peer: str) -> tuple[bytes, int]:
        """Returns the body of a request, and how many bytes of it are charged, which `release` takes back.

        Raises:
            RequestRefused: It is too long or too slow, there is no room for it, or the client has left.
        """
        limits = self._limits
        parts: list[bytes] = []
        size = charged = messages = empty = 0
        began = 0.0
        try:
            while True:
                message = await side.within(limits.body_time, receive)
                if message["type"] != "http.request":
                    raise RequestRefused(400, "")
                body: bytes = message.get("body", b"")
                size += len(body)
                if size > limits.body_bytes:
                    raise RequestRefused(413, "the request body is too long")
                if size > _UNCOUNTED:
                    self._charge(peer, size - charged)
                    charged = size
                parts.append(body)
                if not message.get("more_body", False):
                    break
                began = began or time.monotonic()
                messages += 1
                empty += not body
                if messages % _MESSAGES_AT_ONCE == 0:
                    await side.checkpoint()
                elapsed = time.monotonic() - began
                if empty > _MOST_EMPTY:
                    raise RequestRefused(400, "the request body does not come")
                if elapsed > limits.body_time and size < limits.body_rate * elapsed:
                    raise RequestRefused(408, "the request body is too slow")
        except TimeoutError:
            self.release(peer, charged)
            raise RequestRefused(408, "the request body is too slow") from None
        except BaseException:
            self.release(peer, charged)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts), charged

    def release(self, peer: str, amount: int) -> None:
        """Takes back what was charged."""
        if amount:
            with self._lock:
                self.budget.release(holder_of(peer), amount)

    def _charge(self, peer: str, amount: int) -> None:
        with self._lock:
            over = self.budget.charge(holder_of(peer), amount)
        if over is not None:
            whose = "one address" if over == "holder" else "all clients together"
            limit = self.budget.limit_of(over)
            raise RequestRefused(
                503, f"too many bytes in bodies of unanswered requests of {whose}: the limit is {limit}"
            )
