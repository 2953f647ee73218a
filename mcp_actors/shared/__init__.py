"""The places of what outlives a session: in memory, in SQLite or in Redis. See `mcp_actors.abc.shared`.

What is not used is not imported: `mcp_actors.shared.sqlite.SqliteShared` and `mcp_actors.shared.redis.RedisShared` are
imported from their packages, or loaded by `shared_state`; Redis needs the extra ``redis``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from mcp_actors.abc.shared import SharedState
from mcp_actors.shared.memory import (
    DEFAULT_MAX_AGE,
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_EVENTS,
    DEFAULT_MAX_TOTAL_BYTES,
    EVENT_OVERHEAD,
    EventLogStatistics,
    MemoryEventLog,
    MemoryShared,
    MemoryState,
    MemoryTaskStore,
)

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
    "shared_state",
]


def shared_state(url: str) -> SharedState:
    """Returns the shared state that a URL names; nothing is opened yet.

    ============================================ =====================================================================
    ``memory:``                                  `MemoryShared`
    ``sqlite:///var/lib/tasks.db``               `mcp_actors.shared.sqlite.SqliteShared` with this absolute path;
                                                 ``sqlite:tasks.db`` has one below the working directory
    ``redis:``, ``rediss:`` and ``unix:`` URLs   `mcp_actors.shared.redis.RedisShared`
    ============================================ =====================================================================

    Raises:
        ValueError: The URL has another scheme, or a part that its scheme does not have.
        ImportError: The library of its extra is missing; the message says how to install it.
    """
    scheme = url.partition(":")[0].lower()
    make = _BY_SCHEME.get(scheme)
    if make is None:
        raise ValueError(
            f"shared state is at memory:, sqlite:, redis:, rediss: or unix: URLs, not at {scheme[:20]!r}"
        )
    return make(url)


def _memory(url: str) -> SharedState:
    if url.partition(":")[2]:
        raise ValueError("the URL of shared state in memory is 'memory:', without anything behind it")
    return MemoryShared()


def _sqlite(url: str) -> SharedState:
    parts = urlsplit(url)
    if not parts.path.strip("/") or parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "the URL of a file is 'sqlite:///absolute/path' or 'sqlite:relative/path', without a host or options"
        )
    path = unquote(parts.path)
    if sys.platform == "win32" and path[2:3] == ":":
        path = path.removeprefix("/")  # sqlite:///C:/tasks.db names a drive
    made: SharedState = importlib.import_module("mcp_actors.shared.sqlite").SqliteShared(path)
    return made


def _redis(url: str) -> SharedState:
    try:
        module: Any = importlib.import_module("mcp_actors.shared.redis")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mcp_actors."):
            raise
        message = "shared state in Redis needs a client of it: pip install 'mcp-actors[redis]'"
        raise ImportError(message, name=error.name) from error
    made: SharedState = module.RedisShared(url)
    return made


_BY_SCHEME: dict[str, Callable[[str], SharedState]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
}
