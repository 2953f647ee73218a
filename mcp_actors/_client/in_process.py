"""The transport that a client connects through; for a `Server` object, one in memory, with the server at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors._client.options import Access, Connectable, InProcessServer
from mcp_actors._exception_groups import sole_cause
from mcp_actors.abc import ClientTransport, ServerHandler, ServerTransport
from mcp_actors.discovery import client_transport
from mcp_actors.supervision import start_and_wait
from mcp_actors.task_kinds import IN_PROCESS_SERVER, TRANSPORT

__all__ = ["CLOSE_TIMEOUT", "transport_to"]

# How long closing may take, seconds: a child process gets its signals and grace periods in this time.
CLOSE_TIMEOUT = 10.0


@asynccontextmanager
async def transport_to(
    target: Connectable, nursery: trio.Nursery, auth: Access | None = None
) -> AsyncIterator[ClientTransport]:
    """Yields the transport to ``target``, which is a URL if there is ``auth``.

    A `Server` is served in ``nursery`` for the length of the block.

    The server then ends by itself and is not cancelled, so its lifespan ends in order; it has `CLOSE_TIMEOUT` seconds.
    What its lifespan raises meanwhile is raised here at the end, for it is the code of whoever leaves the block.
    """
    if isinstance(target, str):
        yield client_transport(target) if auth is None else client_transport(target, auth=auth)
        return
    if not isinstance(target, InProcessServer):
        yield target
        return
    memory: Any = client_transport("memory:")
    over, served = trio.Event(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
        try:
            await target.serve(_Until(memory, over), task_status=task_status)
        finally:
            served.set()

    crashes: list[BaseException] = []
    await start_and_wait(nursery, IN_PROCESS_SERVER, serve, on_crash=crashes.append)
    try:
        yield memory
    finally:
        over.set()
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await served.wait()
    if crashes:
        raise sole_cause(crashes[0])


class _Until:
    """A server transport that ends when ``over`` is set, as one does that has no more connections to come."""

    def __init__(self, inner: ServerTransport, over: trio.Event) -> None:
        self._inner = inner
        self._over = over

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            started = await start_and_wait(
                nursery, TRANSPORT, self._inner.serve, handler, on_crash=lambda crash: self._over.set()
            )
            task_status.started(started)
            await self._over.wait()
            nursery.cancel_scope.cancel(reason="the client is closed")
