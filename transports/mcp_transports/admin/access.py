"""The callers that may look at a server: its own user at a Unix socket, those with a token, or with an identity.

An `AdminAccess` is asked about every request except that for the page, which has no secrets. At a Unix socket the
system says who is at the other end of a connection: `OwnedListener` lets in this user and root only.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import struct
import sys
import time
from functools import partial
from typing import NamedTuple, Protocol

import trio

from mcp_actors.supervision.logging import log
from mcp_transports.http.h1.http_server import HttpListener
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Authentication
from mcp_transports.http.server.responses import Refusal

__all__ = [
    "SHORTEST_TOKEN",
    "AdminAccess",
    "AdminCaller",
    "AuthenticatedAccess",
    "OwnedListener",
    "Owner",
    "OwnerAccess",
    "TokenAccess",
    "is_trusted",
    "owner_of",
]

SHORTEST_TOKEN = 16
"""Characters of a token that somebody has chosen."""

_NO_TOKEN = Refusal(
    401,
    "the live view needs its token: Authorization: Bearer TOKEN",
    headers=(("www-authenticate", 'Bearer realm="mcp-actors admin"'),),
)
_NOT_AUTHENTICATED = Refusal(403, "the live view is for authenticated callers")

# struct ucred of Linux: process, user, group. struct xucred of macOS begins with its version and the user.
_UCRED = struct.Struct("3i")
_XUCRED = struct.Struct("II")
_XUCRED_BYTES = 76
_LOCAL_PEERCRED = 1
_ROOT = 0
_REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 46\r\n\r\n"
    b"this socket is for the user of the server only"
)


class AdminCaller(NamedTuple):
    """A caller who may look."""

    name: str
    """The caller in words, for the log."""
    seconds_left: float = math.inf
    """Seconds for which a stream of theirs may stay open."""


class AdminAccess(Protocol):
    """Decides who may look."""

    async def caller(self, request: Request) -> AdminCaller | Refusal:
        """Returns the caller, or the answer to one who may not look."""


class OwnerAccess:
    """Admits every connection: `OwnedListener` has refused those of other users before."""

    async def caller(self, request: Request) -> AdminCaller:
        return AdminCaller(request.peer)


class TokenAccess:
    """Admits callers with the token.

    Args:
        token: The secret.

    Raises:
        ValueError: It is shorter than `SHORTEST_TOKEN`, or not ASCII.
    """

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST_TOKEN or not token.isascii():
            raise ValueError(f"a token has at least {SHORTEST_TOKEN} characters, of ASCII")
        self._token = token.encode()

    def __repr__(self) -> str:
        return "<TokenAccess>"

    async def caller(self, request: Request) -> AdminCaller | Refusal:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, and in the same way whatever was sent.
        equal = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and equal:
            return AdminCaller(f"token from {request.peer}")
        log.info("a caller without the token was refused at the admin endpoint", peer=request.peer)
        return _NO_TOKEN


class AuthenticatedAccess:
    """Admits the callers that a program's own check, or an authorization server, vouches for.

    Args:
        authentication: The check of a request's caller.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    async def caller(self, request: Request) -> AdminCaller | Refusal:
        found = self._authentication.identify(request)
        identity = await found() if isinstance(found, partial) else found
        if identity is None:
            return _NOT_AUTHENTICATED
        if isinstance(identity, Refusal):
            return identity
        return AdminCaller(f"{identity.subject} from {request.peer}", identity.seconds_left(time.time()))


class Owner(NamedTuple):
    """The user of a program, and its process where the system says it."""

    uid: int
    pid: int | None

    def __str__(self) -> str:
        return f"unix uid {self.uid}" + (f" pid {self.pid}" if self.pid is not None else "")


def owner_of(connected: socket.socket | trio.socket.SocketType) -> Owner | None:
    """Returns who is at the other end of a Unix socket, ``None`` on a system that does not say it.

    Raises:
        OSError: The connection is gone.
    """
    if sys.platform == "linux":
        pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Owner(uid, pid)
    if sys.platform == "darwin":
        found = connected.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return Owner(_XUCRED.unpack_from(found)[1], None)
    return None


def is_trusted(connected: socket.socket | trio.socket.SocketType) -> bool:
    """Whether the program at the other end of a Unix socket is one of this user or of root, or the system says nothing.

    Raises:
        OSError: The connection is gone.
    """
    owner = owner_of(connected)
    return owner is None or _may_look(owner)


def _may_look(owner: Owner) -> bool:
    return sys.platform == "win32" or owner.uid in (os.geteuid(), _ROOT)


class OwnedListener(HttpListener):
    """A listening Unix socket that serves its own user and root only; others get a 403 and are closed.

    The mode of its file keeps others out already; this holds where the file was given another one. On a system that
    does not say who connects, only the mode does.
    """

    def accept(self) -> tuple[socket.socket, object]:
        """Returns a connection of the right user, and that user.

        Raises:
            OSError: As the system's ``accept`` does; `ConnectionAbortedError` for a connection that was refused.
        """
        accepted, _ = super().accept()
        try:
            owner = owner_of(accepted)
            if owner is not None and not _may_look(owner):
                accepted.setblocking(False)
                accepted.send(_REFUSAL)
                log.warning("another user was refused at the admin socket", owner=str(owner))
                raise ConnectionAbortedError("the peer is another user")
        except BaseException:
            accepted.close()
            raise
        return accepted, owner

    def describe(self, address: object) -> str:
        return str(address) if isinstance(address, Owner) else "unix"
