"""Shared state in Redis, for a server that is many processes on many machines. It needs the extra ``redis``."""

from __future__ import annotations

from mcp_actors.shared.redis.bus import MAX_MESSAGE
from mcp_actors.shared.redis.shared import RedisShared, RedisState

__all__ = ["MAX_MESSAGE", "RedisShared", "RedisState"]
