"""The health of an upstream: its failures, and the breaker that says whether it is tried."""

from __future__ import annotations

from mcp_actors.gateway.breaker import CircuitBreaker
from mcp_actors.printable import printable

__all__ = ["LONGEST_FAILURE", "UpstreamHealth"]

# Characters of a failure that people are shown.
LONGEST_FAILURE = 300


class UpstreamHealth:
    """The health of one upstream."""

    def __init__(self) -> None:
        self.breaker = CircuitBreaker()
        self.lost = 0
        """Connections that were lost."""
        self.last_failure: str | None = None
        """The last failure, cut short."""
        self.is_away = False
        """Whether the last attempt to connect failed."""

    def __repr__(self) -> str:
        return f"<UpstreamHealth lost={self.lost} {self.breaker!r}>"

    def failed(self, reason: str) -> None:
        """Takes note of a failure that says that the upstream is not there, or does nothing."""
        self.last_failure = printable(reason, LONGEST_FAILURE)
        self.breaker.failed()

    def lost_connection(self, reason: str, *, had_answered: bool) -> None:
        """Takes note of a connection that was lost; that of a server which had answered is no reason to refuse."""
        self.lost += 1
        if had_answered:
            self.last_failure = printable(reason, LONGEST_FAILURE)
        else:
            self.failed(reason)
