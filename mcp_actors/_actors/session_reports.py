"""Reports to telemetry: sessions that begin and end, on both sides, and servers that serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.session import Session
from mcp_actors.abc import Telemetry
from mcp_actors.abc.telemetry import ObservedSession
from mcp_actors.logging import log

__all__ = ["report_begin", "report_end", "report_served"]

Side = Literal["server", "client"]


def report_begin(telemetry: Telemetry, side: Side) -> None:
    """Tells of a session that begins; what telemetry raises is logged."""
    try:
        telemetry.session_began(side)
    except Exception as error:
        log.error("telemetry failed", exc_info=error)


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
    try:
        telemetry.session_ended(ObservedSession(side, name, session.peer, version, seconds, is_broken))
    except Exception as error:
        log.error("telemetry failed", exc_info=error)


def report_served(telemetry: Telemetry, statistics: Callable[[], Any]) -> Callable[[], None]:
    """Tells of a server that begins to serve, and returns what is called at the end; what telemetry raises is logged.

    Args:
        statistics: Returns the statistics of the server, in any thread.
    """
    try:
        end = telemetry.served(statistics)
    except Exception as error:
        log.error("telemetry failed", exc_info=error)
        return lambda: None

    def ended() -> None:
        try:
            end()
        except Exception as error:
            log.error("telemetry failed", exc_info=error)

    return ended
