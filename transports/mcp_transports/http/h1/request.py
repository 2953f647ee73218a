"""A request as the application sees it."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["MalformedRequest", "Request"]


class Request(msgspec.Struct, gc=False):
    """One complete HTTP request. The fields are decoded only as far as their descriptions say."""

    method: str
    target: str
    """The target as it came: origin-form, absolute-form or ``*``."""
    path: str
    """The target's path, percent-encoding untouched."""
    query: str
    """The part of the target after ``?``; empty without one."""
    headers: dict[str, str]
    """Lower-case names, and latin-1 values without surrounding blanks. Repeated list-valued headers are joined with
    ", " (cookies with "; "). A request that repeats a header with a single value is refused."""
    body: bytes
    version: str
    """``"1.1"`` or ``"1.0"``."""
    keep_alive: bool
    """Whether the client wants to go on with this connection."""
    peer: str = ""
    """``"127.0.0.1:4711"``, ``"[::1]:4711"`` or ``"unix"``."""
    secure: bool = False
    """Whether it came through TLS."""
    head: bytes = b""
    """Of a request that asks for another protocol, the bytes of its head as they came, so that the other protocol can
    read them; empty when an earlier request came in the same read, and for all other requests."""
    principal: Any = None
    """The caller, in the application's form, once it has authenticated it."""

    def __repr__(self) -> str:
        # Headers, query and body may hold what nobody may read in a log.
        return f"<Request {self.method} {self.path} from {self.peer}>"


class MalformedRequest(msgspec.Struct, gc=False):
    """A request that is malformed or over a limit. The connection is closed after the answer to it."""

    status: int
    reason: str
