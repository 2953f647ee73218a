"""The stores of what outlives a session, found by the schemes of their URLs. See `mcp_actors.abc.shared`.

A store is a callable ``from_url(url)`` that returns a `mcp_actors.abc.SharedState`. Those of this project are in the
table below; any other is published under its scheme in the entry-point group ``mcp_actors.stores``::

    [project.entry-points."mcp_actors.stores"]
    etcd = "my_package.etcd:from_url"

Entry points are read when a URL has another scheme than those of this project, and a store is imported when a URL has
its scheme. It says of itself what it needs: its roles have ``spans_processes``, and its import fails with the words of
what to install.
"""

from __future__ import annotations

import importlib
from typing import Any

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


_GROUP = "mcp_actors.stores"
_OURS = {
    "memory": "mcp_actors.shared.memory",
    "sqlite": "mcp_actors.shared.sqlite",
    **dict.fromkeys(
        (
            "redis",
            "rediss",
            "unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ),
        "mcp_actors.shared.redis",
    ),
}


def shared_state(url: str) -> SharedState:
    """Returns the shared state that a URL names; nothing is opened yet.

    ============================================ =====================================================================
    ``memory:``                                  `MemoryShared`
    ``sqlite:///var/lib/tasks.db``               `mcp_actors.shared.sqlite.SqliteShared` with this absolute path;
                                                 ``sqlite:tasks.db`` has one below the working directory
    ``redis:``, ``rediss:`` and ``unix:`` URLs   `mcp_actors.shared.redis.RedisShared`
    ``redis+sentinel:``, ``redis+cluster:``      the same with Sentinels, or in a Cluster; with TLS as ``rediss+…:``
    any other                                    the store that is installed for its scheme
    ============================================ =====================================================================

    Raises:
        ValueError: The URL has another scheme, or a part that its scheme does not have.
        ImportError: The library of its extra is missing; the message says how to install it.
    """
    scheme = url.partition(":")[0].lower()
    module = _OURS.get(scheme)
    from_url: Any
    if module is not None:
        from_url = importlib.import_module(module).from_url
    else:
        metadata = importlib.import_module("importlib.metadata")
        published = {each.name.lower(): each for each in metadata.entry_points(group=_GROUP)}
        if scheme not in published:
            *others, last = (f"{each}:" for each in (*_OURS, *published))
            raise ValueError(f"shared state is at {', '.join(others)} or {last} URLs, not at {scheme[:20]!r}")
        from_url = published[scheme].load()
    state: SharedState = from_url(url)
    return state
