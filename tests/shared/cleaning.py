"""What a cancelled block can still do with shared state."""

from __future__ import annotations

import trio

from mcp_actors.abc import OpenState, SharedState

from .records import ROOMY, make_record

PATIENCE = 20.0


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
