"""Tasks for tests of stores, and what a cancelled block can still do with them."""

from __future__ import annotations

import secrets
import time
from typing import Any

import trio

from mcp_actors.abc import OpenState, SharedState
from mcp_actors.abc.shared import TaskBounds, TaskRecord

ROOMY = TaskBounds(100_000, 100_000, 1 << 40, 1 << 40)
PATIENCE = 60.0


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


async def cleaned_up_when_cancelled(shared: SharedState) -> OpenState:
    """Creates and reads a task in the cleanup of a cancelled block, and returns the state, which is closed by then."""
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with shared.open("shop") as state:
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.fail_after(PATIENCE) as cleanup:
                    cleanup.shield = True
                    record = make_record(node=state.node)
                    assert await state.tasks.create(record, ROOMY) is None
                    assert list(await state.tasks.get([record.id])) == [record.id]
    assert scope.cancelled_caught
    return state
