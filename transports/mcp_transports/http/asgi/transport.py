"""The transport of an ASGI application: `HttpService` without a port, served in the engine."""

from __future__ import annotations

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision import reraised, start_again
from mcp_actors.task_kinds import STOP_STREAMS, TICKER
from mcp_transports._ticker import Ticker
from mcp_transports.http.asgi.response import AsgiResponse
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.server.endpoint import Endpoint
from mcp_transports.http.server.service import HttpService
from mcp_transports.http.server.sessions import HttpSessionStatistics

__all__ = ["AsgiListener", "AsgiStatistics", "AsgiTransport"]

# Seconds until a client is watched whose request is not answered. Most answers come sooner, and then nobody has to.
WATCH_AFTER = 0.1


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


class AsgiListener:
    """Serves requests in the engine, while the application is served.

    Args:
        nursery: Where answers run that have to wait.
        endpoint: Answers the requests.
        limits: The bounds on HTTP peers.
    """

    def __init__(
        self, nursery: trio.Nursery, handler: ServerHandler, endpoint: Endpoint, limits: HttpLimits
    ) -> None:
        self.nursery = nursery
        self.handler = handler
        self.limits = limits
        self.ticker: Ticker[AsgiResponse] = Ticker(WATCH_AFTER)
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"<AsgiListener {len(self.ticker)} unanswered>"

    def serve(self, response: AsgiResponse) -> None:
        """Begins to answer a request. A step of the engine."""
        request = response.request
        try:
            self._endpoint(request, response)
        except BaseException as error:
            response.app_raised(error, request.peer)
        if response.is_pending:
            self.ticker.add(response)


class AsgiTransport:
    """Serves what an ASGI application is given. A `ServerTransport`.

    Args:
        service: The sessions and streams.
        drain_time: Seconds that requests in flight have to end, once it is told to end.
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
                        with body:
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
            while len(listener.ticker):  # noqa: ASYNC110 - answers end in their own time, and nobody counts them
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
