"""The record of one inspection: every answer, the ids that were used, and the bounds that all of it keeps."""

from __future__ import annotations

import itertools

import attrs

from mcp_actors.errors import McpError
from mcp_actors.inspection.answers import ServerAnswer

__all__ = ["Bounds", "InspectionEnded", "Record"]


@attrs.frozen(kw_only=True)
class Bounds:
    """The bounds of one inspection."""

    answer_time: float = 10.0
    """Seconds that a server has for one answer."""
    raw_time: float = 3.0
    """Seconds that it has where it may rightly stay silent: after what is no message, or a batch."""
    total_time: float = 180.0
    """Seconds for everything; rules that were not reached by then are reported as not checked."""
    total_bytes: int = 32 * 1024 * 1024
    """Bytes that are read of a server, all answers together: decoded they take ten times as much."""
    messages: int = 1000
    """Messages that are read until one request is answered."""
    pages: int = 50
    """Pages of one list."""
    items: int = 5000
    """Items of one list."""
    connections: int = 40
    """Connections, and over stdio processes, that are opened."""


class InspectionEnded(McpError):
    """A bound of the inspection was reached, or the server is gone; what is left is not checked."""


class Record:
    """The answers of one inspection, and what it has used up.

    Args:
        bounds: The bounds of the inspection.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.answers: list[ServerAnswer] = []
        self.bytes = 0
        self.connections = 0
        self.was_reached = False
        """Whether there was a connection to the server, by HTTP."""
        self._ids = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Record {len(self.answers)} answers, {self.bytes} bytes, {self.connections} connections>"

    def next_id(self) -> int:
        """Returns an id that no request of this inspection had before."""
        return next(self._ids)

    def count_connection(self) -> None:
        """Counts a connection that is about to be opened.

        Raises:
            InspectionEnded: There were as many as the bounds allow.
        """
        if self.connections >= self.bounds.connections:
            raise InspectionEnded(f"{self.connections} connections were opened, and no more are")
        self.connections += 1

    def add(self, answer: ServerAnswer, *, keep: bool = True) -> ServerAnswer:
        """Counts an answer, keeps it for the rules that look at all of them, and returns it.

        Raises:
            InspectionEnded: The server has sent as many bytes as the bounds allow.
        """
        if keep:
            self.answers.append(answer)
        self.count(answer.size)
        return answer

    def count(self, size: int) -> None:
        """Counts bytes that came.

        Raises:
            InspectionEnded: The server has sent as many bytes as the bounds allow.
        """
        self.bytes += size
        if self.bytes > self.bounds.total_bytes:
            raise InspectionEnded(f"the server has sent {self.bytes} bytes, and no more are read")

    def of(self, era: str) -> list[ServerAnswer]:
        """Returns the answers of one era."""
        return [each for each in self.answers if each.era == era]
