"""Single requests to a server, for tools that look at its responses: statuses, headers, sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from urllib.parse import urlsplit

import trio

from mcp_actors.abc import HttpAnswer, HttpEvent
from mcp_transports.http.client.http import HttpRequester, HttpResponse, RequestBody
from mcp_transports.http.client.sse_reader import StreamPosition, read_events

__all__ = ["SingleRequests"]

# Events of one response that are kept: a server may send them without an end.
MAX_EVENTS = 1000


class SingleRequests:
    """Makes single requests; a `~mcp_actors.abc.HttpRequests`, made by `HttpClientTransport.open_requests`."""

    def __init__(self, requester: HttpRequester) -> None:
        self._requester = requester

    def __repr__(self) -> str:
        return f"<SingleRequests {self._requester.peer}>"

    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        path: str | None = None,
        enough: Callable[[HttpEvent], bool] | None = None,
        linger: float = 0.0,
    ) -> HttpAnswer | None:
        """Sends one request and reads its response; see `HttpRequests.request`, whose errors it raises."""
        requester = self._requester
        if path is not None:
            parts = urlsplit(path)
            requester = requester.with_url(
                requester.url.copy_with(path=parts.path, query=parts.query.encode() or None, fragment=None)
            )
        lines = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers.items()]
        data = None if body is None else RequestBody(body, trio.Event())
        response: HttpResponse | None = None
        opened = requester.request(method, lines, data)
        with trio.move_on_after(timeout):
            response = await opened.__aenter__()
        if response is None:
            return None
        try:
            return await _read(response, timeout, enough, linger)
        finally:
            with trio.CancelScope(shield=True):
                # Closing a connection waits for nobody.
                await opened.__aexit__(None, None, None)


async def _read(
    response: HttpResponse, timeout: float, enough: Callable[[HttpEvent], bool] | None, linger: float
) -> HttpAnswer:
    headers = response.all_headers()
    if not response.is_event_stream:
        body, ended = b"", False
        with trio.move_on_after(timeout):
            body, ended = await response.read_body(), True
        return HttpAnswer(response.status, headers, body, (), ended)
    events: list[HttpEvent] = []
    ended = False
    with trio.move_on_after(timeout) as scope:
        async with aclosing(read_events(response, StreamPosition())) as stream:
            async for each in stream:
                event = HttpEvent(each.data, each.id, each.event)
                events.append(event)
                if len(events) >= MAX_EVENTS:
                    break
                if enough is not None and enough(event):
                    scope.deadline = min(scope.deadline, trio.current_time() + linger)
            else:
                ended = True
    return HttpAnswer(response.status, headers, b"", tuple(events), ended)
