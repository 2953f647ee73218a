"""The streams that belong to no request: the GET stream of a session, and the only stream of HTTP+SSE."""

from __future__ import annotations

from contextlib import aclosing

import httpx2
import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import AuthorizationError, ConnectFailed, ConnectionLost, McpError, RemoteProtocolError
from mcp_actors.logging import log
from mcp_transports.http.client.http import HttpResponse
from mcp_transports.http.client.senders import AccessWaiter, without_secrets
from mcp_transports.http.client.session_state import SessionState
from mcp_transports.http.client.sse_reader import StreamPosition, read_events

__all__ = ["ENDPOINT_TIMEOUT", "read_http_sse_stream", "read_session_stream"]

# Seconds in which an HTTP+SSE server has to name its endpoint: its first event does.
ENDPOINT_TIMEOUT = 10.0
# Attempts for a GET that has never worked.
MAX_FIRST_ATTEMPTS = 5


async def read_session_stream(state: SessionState) -> None:
    """Keeps the GET stream of a session open, until the server answers that it has none.

    MCP 2025-11-25, Transports, Listening for Messages from the Server. A server need not have such a stream, so nothing
    that goes wrong here ends the channel, except the end of the session.
    """
    position, opened = StreamPosition(), False
    while opened or position.failures < MAX_FIRST_ATTEMPTS:
        await state.resumptions.wait_until_none()
        position.failures += 1
        headers = state.session.get_headers(position.last_event_id)
        try:
            async with state.requester.request("GET", headers) as response:
                if response.is_event_stream:
                    opened = True
                    await _receive_messages(state, response, position)
                elif response.status == 404 and opened and state.session.id is not None:
                    state.expire_session()
                    return
                elif not response.is_temporary_failure:
                    log.debug(
                        "the server has no stream for its session", peer=state.peer, status=response.status
                    )
                    return
        except AuthorizationError as error:
            log.warning("the stream of the session is given up", peer=state.peer, error=str(error))
            return
        except (ConnectionLost, ConnectFailed) as error:
            log.debug("the stream of the session broke", peer=state.peer, error=str(error))
        except McpError as error:
            log.warning("the stream of the session is given up", peer=state.peer, error=str(error))
            return
        # A stream that was open and ended has not failed, unless it brought nothing: then the delay grows.
        await trio.sleep(position.delay)


async def _receive_messages(state: SessionState, response: HttpResponse, position: StreamPosition) -> None:
    async with aclosing(read_events(response, position)) as events:
        async for event in events:
            if event.is_message:
                await state.receive_queue.put(Frame(event.data))


async def read_http_sse_stream(
    state: SessionState,
    waiter: AccessWaiter,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Opens the stream of HTTP+SSE and reads it to its end, which ends the channel.

    MCP 2024-11-05, Transports, HTTP with SSE. The task has started when ``state.sse_endpoint`` is known. ``waiter`` is
    told if access has to be had first.

    Raises:
        McpError: the stream could not be opened.
        RemoteProtocolError: the stream named no endpoint, or one that must not be used.

    After the start it raises nothing.
    """
    try:
        async with state.requester.request("GET", state.session.get_headers(), None, waiter) as response:
            if not response.is_event_stream:
                raise await response.read_error()
            async with aclosing(read_events(response, StreamPosition())) as events:
                async for event in events:
                    if event.event == "endpoint" and state.sse_endpoint is None:
                        url = _endpoint_url(state, event.data.decode("utf-8", "replace"))
                        state.sse_endpoint = state.requester.with_url(url)
                        task_status.started()
                    elif event.is_message:
                        await state.receive_queue.put(Frame(event.data))
            if state.sse_endpoint is None:
                raise RemoteProtocolError(
                    f"the event stream of {state.peer} ended without naming an endpoint"
                )
    except McpError as error:
        if state.sse_endpoint is None:
            raise
        state.end(error)
    else:
        state.end(None)


def _endpoint_url(state: SessionState, reference: str) -> httpx2.URL:
    """Resolves the endpoint. It must have the origin of the stream, or another server would get our credentials.

    Raises:
        RemoteProtocolError: the endpoint is not a URL, or has another origin.
    """
    base = state.requester.url
    try:
        url = base.join(reference.strip())
    except httpx2.InvalidURL as error:
        raise RemoteProtocolError(f"{state.peer} named an endpoint that is no URL: {error}") from error
    if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
        raise RemoteProtocolError(
            f"{state.peer} named an endpoint on another server, {without_secrets(url)}; nothing is sent there"
        )
    return url.copy_with(userinfo=base.userinfo)
