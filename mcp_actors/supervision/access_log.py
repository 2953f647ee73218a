"""The access log: one line for each HTTP request, and one for each call that came by another way.

A listener of HTTP makes an `AccessEntry` for each request where the log is on, and the telemetry of a server
(`mcp_actors.telemetry.combined.AccessLog`) adds the call that the request has brought. The line is written when both
have ended, whichever is later: a client may leave before its call has ended, and a call may end before its answer is
sent. A batch has one line for each of its calls.

==================== ===========================================================================================
member               of an HTTP request
==================== ===========================================================================================
``peer``             the address that it came from
``http``, ``path``   its method, and its path without the query, which may hold secrets
``status``           that of the answer; 101 where a WebSocket begins, and nothing if there was none
``seconds``          from when its head and body were there until the answer was given to be sent
``bytes``            of the body of the answer
``lost``             ``True`` if the client left, or the answer was cut off
==================== ===========================================================================================

==================== ===========================================================================================
member               of a call
==================== ===========================================================================================
``method``           the method of MCP
``target``           the name of the tool or prompt, or the URI with ``***`` for what may be a secret
``ending``, ``code`` as in metrics
``session``          the name of the session, or of the server; never its id
``principal``        the subject of the caller
==================== ===========================================================================================

A call by another way than HTTP has ``peer``, ``seconds`` and ``bytes`` of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mcp_actors.supervision.logging import write_line

__all__ = ["AccessEntry", "access_log"]

# Characters of what a client has written: of a path, a name or a URI.
LONGEST = 200
_EVENT = "access"
# A session's event streams and WebSockets carry calls long after their request, which has a line of its own.
_WITH_CALLS = "POST"


class AccessSwitch:
    """Whether this process has an access log: a command switches it on before it serves."""

    def __init__(self) -> None:
        self.is_on = False

    def __repr__(self) -> str:
        return f"<AccessSwitch {'on' if self.is_on else 'off'}>"

    @staticmethod
    def write(members: Mapping[str, Any]) -> None:
        """Writes a line."""
        write_line(_EVENT, {name: _cut(value) for name, value in members.items()})


access_log = AccessSwitch()
"""That of this process."""


class AccessEntry:
    """One HTTP request, until its line is written.

    Args:
        method: Its method; empty for a request that is malformed.
        path: The path of its target.
        peer: The address that it came from.
    """

    __slots__ = ("_began", "_calls", "_http", "_is_answered", "_open", "status")

    def __init__(self, method: str, path: str, peer: str) -> None:
        self._began = time.perf_counter()
        self._http: dict[str, Any] = {"peer": peer, "http": method or None, "path": path or None}
        self._calls: list[Mapping[str, Any]] = []
        self._open = 0
        self._is_answered = False
        self.status: int | None = None
        """The status of an answer that has begun."""

    def __repr__(self) -> str:
        return f"<AccessEntry {self._http['http']} {self._http['path']} calls={self._open}>"

    def begin_call(self) -> bool:
        """Takes note of a call that the request has brought; returns whether its line is that of the request."""
        if self._http["http"] != _WITH_CALLS or (self._is_answered and not self._open):
            return False
        self._open += 1
        return True

    def end_call(self, members: Mapping[str, Any]) -> None:
        """Takes note of what a call was, and how it ended."""
        self._open -= 1
        self._calls.append(members)
        self._write()

    def answered(self, status: int | None, size: int, *, lost: bool = False) -> None:
        """Takes note of the end of the answer. Idempotent: the first one counts.

        Args:
            status: Its status; ``None`` if there was none.
            size: The bytes of its body.
            lost: Whether the client left, or it was cut off.
        """
        if not self._is_answered:
            self._is_answered = True
            seconds = round(time.perf_counter() - self._began, 6)
            self._http |= {"status": status, "seconds": seconds, "bytes": size, "lost": lost or None}
            self._write()

    def _write(self) -> None:
        if self._is_answered and not self._open:
            for call in self._calls or ({},):
                access_log.write({**self._http, **call})


def _cut(value: object) -> object:
    return f"{value[:LONGEST]}…" if type(value) is str and len(value) > LONGEST else value
