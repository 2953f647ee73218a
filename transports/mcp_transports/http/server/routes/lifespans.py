"""The lifespan protocol of ASGI, for the applications that a listener serves at its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc.asgi import AsgiApplication, AsgiMessage
from mcp_actors.errors import McpError
from mcp_actors.logging import log
from mcp_actors.supervision import outliving, start
from mcp_actors.task_kinds import ROUTE_LIFESPAN

__all__ = ["RouteStartFailed", "lifespans"]

ASGI_VERSIONS = {"version": "3.0", "spec_version": "2.4"}
# Seconds that all applications together have to shut down. What they still hold then ends with the process.
_SHUTDOWN_TIME = 10.0
# Characters of an application's explanation that a log line or an error shows.
_MOST_SHOWN = 500


class RouteStartFailed(McpError):
    """An ASGI application at a route said that it could not start. The message says which one, and why."""


class RouteLifespan:
    """One run of an application's lifespan.

    Args:
        path: Where the application is served.
        app: The application.
        state: What it puts there in its startup is seen by its requests.
    """

    def __init__(self, path: str, app: AsgiApplication, state: dict[str, Any]) -> None:
        self.path = path
        self._app = app
        self._state = state
        self._start_requested = False
        self._started = trio.Event()
        self._stopping = trio.Event()
        self._ended = trio.Event()
        self._failure: str | None = None

    async def begin(self, nursery: trio.Nursery) -> None:
        """Waits until the application has started, or turned out to have no lifespan.

        Raises:
            RouteStartFailed: It could not start.
        """
        start(nursery, ROUTE_LIFESPAN, self._run, about=self.path)
        await self._started.wait()
        if self._failure is not None:
            raise RouteStartFailed(f"the application at {self.path} could not start: {self._failure}")

    async def end(self) -> None:
        """Waits until the application has shut down."""
        self._stopping.set()
        await self._ended.wait()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": ASGI_VERSIONS, "state": self._state}
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self._started.is_set():
                raise
            # ASGI, Lifespan Protocol: an application that raises has none, and is served all the same.
            log.debug("an application has no lifespan", path=self.path, reason=repr(error)[:_MOST_SHOWN])
        finally:
            self._started.set()
            self._ended.set()

    async def _receive(self) -> AsgiMessage:
        if not self._start_requested:
            self._start_requested = True
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        if self._ended.is_set():
            await trio.sleep_forever()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: AsgiMessage) -> None:
        kind, said = message["type"], str(message.get("message", ""))[:_MOST_SHOWN]
        if kind == "lifespan.startup.failed":
            self._failure = said or "it gave no reason"
            self._started.set()
        elif kind == "lifespan.startup.complete":
            self._started.set()
        elif kind == "lifespan.shutdown.failed":
            log.error("an application could not shut down", path=self.path, reason=said)
            self._ended.set()
        elif kind == "lifespan.shutdown.complete":
            self._ended.set()
        else:
            raise ValueError(f"not a message of a lifespan: {kind!r}")


@asynccontextmanager
async def lifespans(apps: Sequence[tuple[str, AsgiApplication, dict[str, Any]]]) -> AsyncIterator[None]:
    """Starts applications in their order, and shuts them down in the opposite one where the block ends.

    Args:
        apps: For each its path, the application, and the state that its requests will see.

    Raises:
        RouteStartFailed: One of them could not start. Those before it were shut down.
    """
    if not apps:
        yield
        return
    begun: list[RouteLifespan] = []
    # They go on while the block is cancelled: an application closes in order what it has opened.
    async with outliving(ROUTE_LIFESPAN) as nursery:
        try:
            for path, app, state in apps:
                state.clear()
                lifespan = RouteLifespan(path, app, state)
                await lifespan.begin(nursery)
                begun.append(lifespan)
            yield
        finally:
            with trio.move_on_after(_SHUTDOWN_TIME, shield=True) as bound:
                for each in reversed(begun):
                    await each.end()
            if bound.cancelled_caught:
                log.error("applications at routes take too long to shut down", seconds=_SHUTDOWN_TIME)
