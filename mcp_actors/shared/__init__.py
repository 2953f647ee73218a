"""The places of what outlives a session: in memory, in SQLite or in Redis. See `mcp_actors.abc.shared`.

What is not used is not imported: `SqliteShared` and `RedisShared` are loaded when they are asked for, and Redis needs
the extra ``redis``.
"""

from __future__ import annotations

from mcp_actors.shared.memory import MemoryShared, MemoryState
from mcp_actors.shared.memory_events import (
    DEFAULT_MAX_AGE,
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_EVENTS,
    DEFAULT_MAX_TOTAL_BYTES,
    EVENT_OVERHEAD,
    EventLogStatistics,
    MemoryEventLog,
)
from mcp_actors.shared.memory_tasks import MemoryTaskStore

__all__ = [
    "DEFAULT_MAX_AGE",
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_EVENTS",
    "DEFAULT_MAX_TOTAL_BYTES",
    "EVENT_OVERHEAD",
    "EventLogStatistics",
    "MemoryEventLog",
    "MemoryShared",
    "MemoryState",
    "MemoryTaskStore",
]
