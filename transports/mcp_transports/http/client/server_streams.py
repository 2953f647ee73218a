"""The streams that belong to no request of ours: the GET stream of a session, and the only one of HTTP+SSE."""

from __future__ import annotations

from contextlib import aclosing

import httpx2
import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectFailed, ConnectionLost, McpError, RemoteProtocolError
from mcp_transports.http.client.http import Answer
from mcp_transports.http.client.senders import shown
from mcp_transports.http.client.session_state import SessionState, log
from mcp_transports.http.client.sse_reader import Cursor, events

__all__ = ["ENDPOINT_TIMEOUT", "follow_older_binding", "follow_session"]

# Seconds that a server of the older binding has to say where to post: it is the first thing it does.
ENDPOINT_TIMEOUT = 10.0
# A GET that has never worked is not tried for ever.
MAX_FIRST_ATTEMPTS = 5


async def follow_session(talk: SessionState) -> None:
    """Keeps the GET stream of a legacy session open (protocol §6.4), until the server says that there is none.

    A server need not offer one: nothing that goes wrong here is an error of the channel, save the end of the session.
    """
    cursor, opened = Cursor(), False
    while opened or cursor.failures < MAX_FIRST_ATTEMPTS:
        await talk.quiet()
        cursor.failures += 1
        try:
            async with talk.wire.ask("GET", talk.stream_headers(cursor.last_event_id)) as answer:
                if answer.streams:
                    opened = True
                    await _pass_on(talk, answer, cursor)
                elif answer.status == 404 and opened and talk.session is not None:
                    talk.expire()
                    return
                elif not answer.temporary:
                    log.debug("%s offers no stream (HTTP %d)", talk.wire.peer, answer.status)
                    return
        except (ConnectionLost, ConnectFailed) as error:
            log.debug("the session's stream broke off: %s", error)
        except McpError as error:
            log.warning("the session's stream is given up: %s", error)
            return
        # A stream that was open and ended is no failure, unless it brought nothing: then it is not asked for in haste.
        await trio.sleep(cursor.delay)


async def _pass_on(talk: SessionState, answer: Answer, cursor: Cursor) -> None:
    async with aclosing(events(answer, cursor)) as stream:
        async for event in stream:
            if event.is_message:
                await talk.inbox.put(Frame(event.data))


async def follow_older_binding(
    talk: SessionState, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Opens the stream of HTTP+SSE (protocol §6.5) and reads it to its end, which is the end of the channel.

    Started when ``talk.endpoint`` is known. Raises `HttpRefused` and the like until then, nothing afterwards.
    """
    try:
        async with talk.wire.ask("GET", talk.stream_headers()) as answer:
            if not answer.streams:
                raise await answer.refused()
            async with aclosing(events(answer, Cursor())) as stream:
                async for event in stream:
                    if event.event == "endpoint" and talk.endpoint is None:
                        talk.endpoint = talk.wire.at(_endpoint(talk, event.data.decode("utf-8", "replace")))
                        task_status.started()
                    elif event.is_message:
                        await talk.inbox.put(Frame(event.data))
            if talk.endpoint is None:
                raise RemoteProtocolError(
                    f"the event stream of {talk.wire.peer} ended without naming an endpoint"
                )
    except McpError as error:
        if talk.endpoint is None:
            raise
        talk.end(error)
    else:
        talk.end(None)


def _endpoint(talk: SessionState, named: str) -> httpx2.URL:
    """Where to post: on the server that named it, or our messages and credentials would go to whom it likes."""
    base = talk.wire.url
    try:
        url = base.join(named.strip())
    except httpx2.InvalidURL as error:
        raise RemoteProtocolError(f"{talk.wire.peer} named an endpoint that is no URL: {error}") from error
    if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
        raise RemoteProtocolError(
            f"{talk.wire.peer} named an endpoint on another server, {shown(url)}; nothing is sent there"
        )
    return url.copy_with(userinfo=base.userinfo)
