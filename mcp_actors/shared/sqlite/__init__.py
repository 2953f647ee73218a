"""Shared state in a file: the tasks of the processes of one machine, which survive them. See `SqliteShared`."""

from __future__ import annotations

from mcp_actors.shared.sqlite.state import DEFAULT_LEASE, DEFAULT_TIMEOUT, SqliteShared, SqliteState
from mcp_actors.shared.sqlite.tasks import SqliteTaskStore

__all__ = ["DEFAULT_LEASE", "DEFAULT_TIMEOUT", "SqliteShared", "SqliteState", "SqliteTaskStore"]
