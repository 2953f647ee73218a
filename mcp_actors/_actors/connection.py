"""Who owns whom, and what happens to a crash: contained by the nearest owner, never an exception group outside.

``server nursery > connection nursery {link, session} > calls nursery {one task per request in flight}``
"""

from __future__ import annotations

import trio

from mcp_actors._actors.link import Link
from mcp_actors._actors.session import Session
from mcp_actors.logging import log

__all__ = ["converse"]


async def converse(
    link: Link, session: Session, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs a connection: its writer and its session. Returns when both have ended; the channel is closed then.

    A bug of ours in either ends this connection, is logged, and goes no further. Cancelled, it closes at once.
    """
    try:
        async with trio.open_nursery() as connection:
            connection.start_soon(link.run, name=f"link {session.name}")
            await session.run(task_status)
            connection.cancel_scope.cancel(reason="the session ended")
    except ExceptionGroup as group:
        log.error("connection failed", session=session.name, exc_info=group)
