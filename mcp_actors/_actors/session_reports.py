"""Reports to telemetry: sessions that begin and end, on both sides, and servers that serve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.session import Session
from mcp_actors.abc import Telemetry
from mcp_actors.abc.telemetry import ObservedSession, guarded

__all__ = ["report_begin", "report_end", "report_served"]

Side = Literal["server", "client"]


def report_begin(telemetry: Telemetry, side: Side) -> None:
    """Tells of a session that begins; what telemetry raises is logged."""
    guarded(telemetry.session_began, side)


def report_end(
    telemetry: Telemetry,
    side: Side,
    session: Session | ConnectionlessSession,
    version: str | None,
    began: float,
) -> None:
    """Tells of a session that has ended; what telemetry raises is logged.

    Args:
        version: The protocol version, ``None`` if none was agreed.
        began: The time of `trio.current_time` when it began.
    """
    name, seconds = session.dispatcher.name, trio.current_time() - began
    is_broken = isinstance(session, Session) and session.is_broken
    guarded(telemetry.session_ended, ObservedSession(side, name, session.peer, version, seconds, is_broken))


def report_served(telemetry: Telemetry, statistics: Callable[[], Any]) -> Callable[[], object]:
    """Tells of a server that begins to serve, and returns what is called at the end; what telemetry raises is logged.

    Args:
        statistics: Returns the statistics of the server, in any thread.
    """
    end = guarded(telemetry.served, statistics)
    return (lambda: None) if end is None else partial(guarded, end)
