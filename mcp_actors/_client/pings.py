"""Pings on idle connections: they keep a connection from being forgotten, and notice a server that is gone."""

from __future__ import annotations

import math
from functools import partial

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.requests import Requests
from mcp_actors.errors import CallTimeout, ConnectionLost, ProtocolError, RpcError, SessionExpired
from mcp_actors.task_kinds import CLIENT_PINGS

__all__ = ["IdlePings"]

# Seconds. Less than the silence after which routers and load balancers are known to forget a connection.
DEFAULT_INTERVAL = 30.0


class IdlePings:
    """Asks the server of a silent connection whether it is alive, and ends the connection when it does not say so.

    MCP 2025-11-25, Ping. A stateless server is asked by ``server/discover``. Any answer counts, an error too.

    Args:
        interval: Seconds of silence before a ping, and for its answer; 0 for no pings. With ``None`` channels that
            need it are pinged, after 30 s.
        requests: Know what is mirrored of a request.
    """

    def __init__(self, interval: float | None, requests: Requests) -> None:
        self._interval = interval
        self._requests = requests

    def connected(self, session: Session, negotiated: Negotiated) -> None:
        """Watches over the connection of ``session`` until it ends."""
        interval = self._interval
        if interval is None:
            interval = DEFAULT_INTERVAL if session.link.channel.needs_pings else 0.0
        if interval > 0:
            method = negotiated.era.client.ping_method
            session.start_task(CLIENT_PINGS, partial(self._watch, session, method, interval))

    async def _watch(self, session: Session, method: str, interval: float) -> None:
        while True:
            before = session.link.statistics().frames_in
            await trio.sleep(interval)
            if session.link.statistics().frames_in == before and not _is_judged_by_a_call(session):
                await self._ping(session, method, interval)

    async def _ping(self, session: Session, method: str, seconds: float) -> None:
        before = session.link.statistics().frames_in
        options = CallOptions(idle=seconds, cap=math.inf, cancellable=False)
        try:
            metadata = self._requests.metadata_of(method, {})
            await session.outbound.request(method, {}, options, metadata=metadata)
        except CallTimeout:
            if session.link.statistics().frames_in == before:
                session.lose(f"no answer to a ping within {seconds:g} s")
        except (RpcError, ProtocolError, ConnectionLost, SessionExpired):
            # The server has answered, or the connection has ended by itself.
            pass


def _is_judged_by_a_call(session: Session) -> bool:
    """Whether a call waits whose own clock will tell: a server may be too busy with it to answer anything else."""
    return any(pending.deadline.at < math.inf for pending in session.outbound.pending.values())
