"""The sessions that a listener does not hold: those of other nodes, and those whose node is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcp_actors.abc import EventLog, OpenState, SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.principal import Principal
from mcp_actors.supervision import reraised, start_and_wait
from mcp_actors.task_kinds import FORWARDED_REQUESTS
from mcp_transports.http.server.error_responses import SESSION_NOT_FOUND, shared_state_unavailable
from mcp_transports.http.server.forwarding.forwarder import Forwarder
from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["RemoteSessions", "SessionPlaces", "open_forwarder", "owner_key"]


def owner_key(principal: Principal | None) -> str:
    """Returns what the directory knows the owner of a session by."""
    return "" if principal is None else principal.key


class SessionPlaces:
    """The entries of one listener's sessions in the directory.

    Args:
        state: The shared state.
        address: The mailbox of the listener.
    """

    def __init__(self, state: OpenState, address: str) -> None:
        self._directory = state.sessions
        self._address = address

    async def register(self, session: str, principal: Principal | None) -> None:
        """Makes a session known to all nodes.

        Raises:
            SharedStateUnavailable: The directory cannot be reached.
        """
        await self._directory.register(session, owner_key(principal), self._address)

    def forget(self, session: str) -> None:
        """Takes out a session that has ended."""
        self._directory.forget(session)


class RemoteSessions:
    """Answers the requests of sessions that this listener does not hold.

    Args:
        forwarder: Forwards those of sessions that other nodes hold.
        store: Has the events of sessions whose node is gone; ``None`` if no other node can read them.
        open_responses: The registry of open streams.
    """

    def __init__(
        self, forwarder: Forwarder, store: EventLog | None, open_responses: OpenSseResponses
    ) -> None:
        self._forwarder = forwarder
        self._store = store if store is not None and store.spans_processes else None
        self._open_responses = open_responses

    async def serve(
        self, exchange: HttpExchange, principal: Principal | None, session: str, *, http_sse: bool = False
    ) -> None:
        """Answers a request: with the answer of the node that holds its session, or with 404.

        A session whose node is gone still has its events (MCP 2025-11-25, Transports, Resumability and Redelivery): a
        GET that resumes a stream gets the rest of it once, and every other request 404, so that its client begins anew.
        """
        place = await self._forwarder.forward(exchange, principal, session, http_sse=http_sse)
        if place is not None:
            await self._replay(exchange, principal, session, place)

    async def _replay(
        self, exchange: HttpExchange, principal: Principal | None, session: str, place: SessionPlace
    ) -> None:
        last_event_id = exchange.request.headers.get("last-event-id")
        if (
            exchange.request.method != "GET"
            or last_event_id is None
            or self._store is None
            or place.owner != owner_key(principal)
        ):
            exchange.refuse(SESSION_NOT_FOUND)
            return
        try:
            replay = await self._store.after(session, last_event_id)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
            return
        if replay is None or not replay.events:
            exchange.refuse(SESSION_NOT_FOUND)
            return
        events = b"".join(encode_event(data, id=id) for id, data in replay.events)
        SseResponse(exchange, self._open_responses, lambda gone: None, events).end()


@asynccontextmanager
async def open_forwarder(state: OpenState) -> AsyncIterator[Forwarder | None]:
    """Opens the mailbox of a listener for the length of the block; ``None`` if no other node could send to it.

    When the block ends, the answers that were given still leave, and what is not answered is dropped.
    """
    if not (state.sessions.spans_processes and state.bus.spans_processes):
        yield None
        return
    ending = trio.Event()
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            try:
                forwarder = await start_and_wait(nursery, FORWARDED_REQUESTS, _hold, state, ending)
                with body:
                    yield forwarder
            finally:
                ending.set()


async def _hold(
    state: OpenState,
    ending: trio.Event,
    *,
    task_status: trio.TaskStatus[Forwarder] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Owns the tasks of a forwarder, which outlive a cancelled listener until its last answers have left."""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        forwarder = Forwarder(state, nursery)
        try:
            task_status.started(forwarder)
            await ending.wait()
            await forwarder.finish()
        finally:
            forwarder.close()
            nursery.cancel_scope.cancel(reason="the last answers have left")
