"""The transport of an ASGI application, `HttpService` without a port, and the time for which it is served.

`AppServing` is one such time: it runs in the engine, and loops of the program wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.bridges.bridged_call import Bridge, BridgedCall
from mcp_actors.errors import EngineStopped, LocalProtocolError, LoopClosed
from mcp_actors.supervision.containment import reraised, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import STOP_STREAMS, TICKER
from mcp_transports.http.asgi.loops import LoopSide, LoopWaiter
from mcp_transports.http.asgi.response import AsgiListener
from mcp_transports.http.server.service import HttpService
from mcp_transports.http.server.sessions import HttpSessionStatistics

__all__ = ["AppServing", "AsgiStatistics", "AsgiTransport", "ServerWasStopped"]

# Seconds beyond the drain time that a server has to close what it holds, when its application ends.
CLOSE_TIME = 10.0


@attrs.frozen
class AsgiStatistics:
    """A snapshot of an application."""

    sessions: HttpSessionStatistics | None
    """The sessions of Streamable HTTP; ``None`` where it is served without sessions."""
    http_sse_connections: int
    """Connections of HTTP+SSE that are open now."""
    event_streams: int
    """Responses that carry server-sent events now, of all kinds."""
    unanswered: int
    """Requests whose answer is not complete, those that were answered at once left out."""


class AsgiTransport:
    """Serves what an ASGI application is given. A `ServerTransport`.

    Args:
        service: The sessions and streams.
        drain_time: Seconds that requests in flight have to end, once it is to end.
    """

    def __init__(self, service: HttpService, drain_time: float) -> None:
        self.service = service
        self.listener: AsgiListener | None = None
        """While it is served."""
        self._drain_time = drain_time
        self._ending = trio.Event()

    def __repr__(self) -> str:
        return f"<AsgiTransport {self.service!r}: {self.listener!r}>"

    def end(self) -> None:
        """Ends serving, after the requests in flight. A step of the engine."""
        self._ending.set()

    async def serve(
        self,
        handler: ServerHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled, until `end`, or until `handler.stopping` is set, and all calls in flight have ended.

        When it ends, for whatever reason, all sessions are closed.

        Raises:
            LocalProtocolError: This object is served already.
        """
        if self.listener is not None:
            raise LocalProtocolError("this application is served already")
        service = self.service
        async with service.open(handler) as endpoint:
            try:
                with reraised() as body:
                    async with trio.open_nursery() as nursery:
                        self.listener = listener = AsgiListener(nursery, handler, endpoint, service.limits)
                        service.start_tasks(nursery, handler.stopping, endpoint)
                        start_again(nursery, TICKER, listener.ticker.run)
                        start_again(nursery, STOP_STREAMS, self._end_with, handler.stopping)
                        with body, handler.stops_with(endpoint):
                            task_status.started(service.paths.streamable)
                            await self._ending.wait()
                            endpoint.stop()
                            await self._drain(listener)
                        nursery.cancel_scope.cancel(reason="the application is done")
            finally:
                self.listener = None
                for response in tuple(listener.ticker.members):
                    response.abort()

    async def _end_with(self, stopping: trio.Event) -> None:
        await stopping.wait()
        self._ending.set()

    async def _drain(self, listener: AsgiListener) -> None:
        with trio.move_on_after(self._drain_time):
            while len(listener.ticker):  # noqa: ASYNC110 - answers end in their own time, and no task counts them
                await trio.sleep(listener.ticker.tick)

    def statistics(self) -> AsgiStatistics:
        """Returns a snapshot of the numbers of sessions and streams."""
        service = self.service
        return AsgiStatistics(
            service.sessions.statistics() if service.sessions is not None else None,
            len(service.http_sse) if service.http_sse is not None else 0,
            len(service.settings.open_responses),
            len(self.listener.ticker) if self.listener is not None else 0,
        )


class ServerWasStopped(LocalProtocolError):
    """An application is to be served whose server was stopped, by `Server.stop` for one."""


class AppServing:
    """A server that serves an application, from the first request or the start of a lifespan.

    Args:
        side: The loop of the program that begins it, in which the server's functions for asyncio run.
        serve: `Server.serve`.
        transport: The transport of the application.
        end_time: Seconds that it has to end, once `end` is called; then it is cancelled.
    """

    def __init__(
        self,
        side: LoopSide,
        serve: Callable[..., Awaitable[None]],
        transport: AsgiTransport,
        end_time: float,
    ) -> None:
        self.state: Literal["beginning", "serving", "ended"] = "beginning"
        self.failure: BaseException | None = None
        """What has ended it, if that was an error."""
        self.users = 0
        """Lifespans that have it."""
        self._side = side
        self._engine = side.bridge.engine
        self._serve = serve
        self._transport = transport
        self._end_time = end_time
        self._waiting: dict[LoopWaiter, LoopSide] = {}
        self._is_abandoned = False
        self._has_ended = trio.Event()
        self._call = _ServeCall(self, side.bridge)
        # A loop that is closed without a lifespan's end, or without a lifespan, takes it along.
        side.bridge.own(self._close)
        self._engine.post(self._call.begin)

    def __repr__(self) -> str:
        return f"<AppServing {self.state}>"

    def is_stale(self, side: LoopSide) -> bool:
        """Whether the loop or the process that has begun it is gone, so that nothing will ever end it.

        Args:
            side: The loop that asks.
        """
        if self._engine.has_ended:
            return True
        return side.bridge is not self._side.bridge and self._side.is_closed

    async def begun(self, side: LoopSide) -> AsgiListener:
        """Waits until it serves, and returns what does.

        Raises:
            ServerWasStopped: It has ended in order.
            EngineStopped: The interpreter exits, or the engine has failed.
            Exception: What kept it from beginning.
        """
        if self.state == "beginning":
            await self._wait(side, "beginning")
        listener = self._transport.listener
        if self.state == "serving" and listener is not None:
            return listener
        if self.failure is not None:
            raise self.failure
        self._engine.must_run()
        raise ServerWasStopped("the server was stopped: this application is not served any more")

    async def end(self, side: LoopSide) -> None:
        """Lets the requests in flight end, and waits until everything is closed."""
        if self.state == "ended" or self._engine.has_ended:
            return
        self._engine.post(self._transport.end)
        try:
            await side.within(self._end_time, lambda: self._wait(side, "serving"))
        except TimeoutError:
            log.warning("a server does not end with its application, and is cancelled")
            self.abandon()

    def abandon(self) -> None:
        """Cancels it, and waits for nothing."""
        self._is_abandoned = True
        try:
            self._engine.post(self._call.cancel)
        except EngineStopped:
            log.debug("a server had ended with the engine")

    async def _wait(self, side: LoopSide, state: str) -> None:
        waiter = side.waiter()
        self._waiting[waiter] = side
        try:
            # Entered first and looked at afterwards: the engine does it the other way round.
            while self.state in ("beginning", state) and not self._engine.has_ended:
                await waiter.wait()
        finally:
            del self._waiting[waiter]

    # -- in the engine -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves."""
        await self._serve(self._transport, task_status=self)

    async def _close(self) -> None:
        self._is_abandoned = True
        self._call.cancel()
        await self._has_ended.wait()

    def started(self, value: Any = None) -> None:
        """Takes note that it serves, as the ``task_status`` of `Server.serve`."""
        self.state = "serving"
        self._wake()

    def ended(self, failure: BaseException | None) -> None:
        """Takes note that it serves no longer, and why if that is an error."""
        self._side.bridge.disown(self._close)
        if isinstance(failure, BaseExceptionGroup):
            # An engine that ends with the program cancels everything that has not ended.
            failure = failure.split(trio.Cancelled)[1]
        if failure is not None and not self._is_abandoned:
            self.failure = failure
            if self.state == "serving":
                log.error("a server ended in mid-application", exc_info=failure)
        self.state = "ended"
        self._has_ended.set()
        self._wake()

    def _wake(self) -> None:
        for waiter, side in list(self._waiting.items()):
            try:
                side.bridge.post(waiter.set)
            except LoopClosed:
                log.debug("a loop ended while it waited for a server")


class _ServeCall(BridgedCall[None]):
    """The call that serves."""

    __slots__ = ("_serving",)

    def __init__(self, serving: AppServing, bridge: Bridge) -> None:
        super().__init__(bridge, serving.run, ())
        self._serving = serving

    def deliver(self) -> None:
        error, self.error = self.error, None
        self._serving.ended(error)
        # The frames of its traceback have it as a local.
        del error
