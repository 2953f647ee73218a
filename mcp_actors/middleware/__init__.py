"""Middleware that is ready: for a `Server`, by ``server.middleware(RateLimit(10))``, and for a `Client`.

================== ================= ==================================================================================
class              for               what it does
================== ================= ==================================================================================
`ConcurrencyLimit` servers           bounds the calls that run, with a fair share for each caller
`RateLimit`        servers           bounds the requests of each caller in a second
`Timing`           both              keeps how long calls take, by method and tool
`AuditLog`         servers           writes down who called what, and how it ended
`ResultSize`       servers           bounds the bytes of a result
`Spill`            servers           sends the beginning of large results, and keeps them for a while
`ResultCache`      servers           answers again what is good still
`Retry`            clients           makes calls again that failed for the connection, if that does no harm
================== ================= ==================================================================================

A caller is a principal; without one an address, and where there is none, as with stdio, a session.
"""

from __future__ import annotations

from mcp_actors.middleware.audit import AuditEntry, AuditLog, masked
from mcp_actors.middleware.callers import caller_of
from mcp_actors.middleware.concurrency import ConcurrencyLimit, ConcurrencyStatistics
from mcp_actors.middleware.rate import RateLimit
from mcp_actors.middleware.result_cache import ResultCache
from mcp_actors.middleware.result_size import ResultSize
from mcp_actors.middleware.retry import Retry
from mcp_actors.middleware.spill import Spill
from mcp_actors.middleware.timing import Durations, Timing

__all__ = [
    "AuditEntry",
    "AuditLog",
    "ConcurrencyLimit",
    "ConcurrencyStatistics",
    "Durations",
    "RateLimit",
    "ResultCache",
    "ResultSize",
    "Retry",
    "Spill",
    "Timing",
    "caller_of",
    "masked",
]
