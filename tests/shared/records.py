"""Tasks for tests of stores."""

from __future__ import annotations

import secrets
import time
from typing import Any

from mcp_actors.abc.shared import TaskBounds, TaskRecord

ROOMY = TaskBounds(100_000, 100_000, 1 << 40, 1 << 40)


def make_record(node: str, **changes: Any) -> TaskRecord:
    """Returns a task that a node begins now."""
    now = time.time()
    fields: dict[str, Any] = {
        "id": secrets.token_urlsafe(16),
        "owner": "alice",
        "tool": "work",
        "version": "any",
        "request": b'{"arguments":{}}',
        "created": now,
        "updated": now,
        "ttl": 3600.0,
        "poll_interval": 1.0,
        "node": node,
    }
    return TaskRecord(**{**fields, **changes})
