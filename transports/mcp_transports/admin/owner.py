"""The owner of the program at the other end of a Unix socket: only this user, and root, may look at a server."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple

import trio

from mcp_actors.supervision.logging import log
from mcp_transports.http.h1.http_server import HttpListener

__all__ = ["OwnedListener", "Owner", "is_trusted", "owner_of"]

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
        told = connected.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return Owner(_XUCRED.unpack_from(told)[1], None)
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
    """A listening Unix socket that serves its own user and root alone; others are told 403 and closed.

    The mode of its file keeps others out already; this holds where the file was given another one. On a system that
    does not say who connects, the mode alone does.
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
