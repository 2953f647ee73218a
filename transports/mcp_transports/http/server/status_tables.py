"""Which HTTP status an answer of the engine has: a table for requests of the modern era and one for the legacy era.

The engine marks an answer to what could not be served as it stands with its error code (`Frame.refusal`), and nothing
else: an error that a tool or a handler made is an ordinary answer with 200 in both eras.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcp_actors.abc import Frame
from mcp_actors.errors import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Overloaded

__all__ = ["LEGACY_STATUSES", "MODERN_STATUSES", "StatusTable"]


@attrs.frozen
class StatusTable:
    """The status of an answer by the error code of its refusal."""

    by_code: Mapping[int | None, int]
    """``None`` is the code of an answer that refuses nothing."""
    otherwise: int
    """The status of a refusal whose code is not in ``by_code``."""

    def status(self, frame: Frame) -> int:
        """Returns the status of the response that carries ``frame``."""
        return self.by_code.get(frame.refusal, self.otherwise)


# MCP 2026-07-28, Streamable HTTP: 404 for a method that does not exist (Protocol Version Header), 400 for whatever else
# cannot be served: versions, headers that differ from the body (Server Validation), missing capabilities. 503 is HTTP's
# own (RFC 9110 section 15.6.4), for a server that has no room for another call.
MODERN_STATUSES = StatusTable({None: 200, METHOD_NOT_FOUND: 404, Overloaded.CODE: 503}, otherwise=400)

# MCP 2025-11-25, Transports, Sending Messages to the Server: only what is no message of the protocol is 400.
LEGACY_STATUSES = StatusTable({PARSE_ERROR: 400, INVALID_REQUEST: 400}, otherwise=200)
