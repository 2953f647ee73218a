"""The health of an upstream: its failures, and the breaker that says whether it is tried."""

from __future__ import annotations

from mcp_actors.gateway.upstream.breaker import CircuitBreaker
from mcp_actors.printable import printable, without_paths

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
        self.last_failure = printable(without_paths(reason), LONGEST_FAILURE)
        self.breaker.failed()

    def refused(self, reason: str) -> None:
        """Takes note of a failure that says nothing of other clients, and is no reason to refuse them."""
        self.last_failure = printable(without_paths(reason), LONGEST_FAILURE)

    def lost_connection(self, reason: str, *, was_good: bool) -> None:
        """Takes note of a connection that was lost; that of one that was good is no reason to refuse."""
        self.lost += 1
        if was_good:
            self.refused(reason)
        else:
            self.failed(reason)
