"""The HTTP statuses of the engine's answers: a table for requests of the modern era and one for the legacy era.

The engine marks the answer to a request that it cannot serve with the error code (`Frame.refusal`), and no other
answer: an error that a tool or a handler made is an ordinary answer with 200 in both eras.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcp_actors.errors import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, InsufficientScope, Overloaded

__all__ = ["LEGACY_STATUSES", "MODERN_STATUSES", "StatusTable"]


class StatusTable(dict[int | None, int]):
    """The status of an answer by the code of its refusal (`Frame.refusal`); ``None`` stands for no refusal.

    Args:
        by_code: The statuses of some codes, and of ``None``.
        otherwise: The status of all other codes.
    """

    def __init__(self, by_code: Mapping[int | None, int], *, otherwise: int) -> None:
        super().__init__(by_code)
        self._otherwise = otherwise

    def __missing__(self, code: int | None) -> int:
        return self._otherwise


# MCP 2026-07-28, Streamable HTTP: 404 for a method that does not exist (Protocol Version Header), 400 for all other
# requests: versions, headers that differ from the body (Server Validation), missing capabilities. 503 is HTTP's
# own (RFC 9110 section 15.6.4), for a server that has no room for another call.
MODERN_STATUSES = StatusTable(
    {None: 200, METHOD_NOT_FOUND: 404, InsufficientScope.CODE: 403, Overloaded.CODE: 503}, otherwise=400
)

# MCP 2025-11-25, Transports, Sending Messages to the Server: 400 is for bodies that are not a message of the protocol.
# 403 is that of MCP 2025-11-25, Authorization, Error Handling.
LEGACY_STATUSES = StatusTable(
    {None: 200, PARSE_ERROR: 400, INVALID_REQUEST: 400, InsufficientScope.CODE: 403}, otherwise=200
)
