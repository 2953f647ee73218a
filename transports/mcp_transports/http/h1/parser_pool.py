"""The parsers that the connections of one server share."""

from __future__ import annotations

from mcp_actors.budget import Budget
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.parser import RequestParser

__all__ = ["ParserPool"]

# Parsers kept for the next request: some more than are in the middle of a request at one time.
_SPARE_PARSERS = 64


class ParserPool:
    """Parsers between two requests, kept for the next request of any connection; and the budget of what they read."""

    __slots__ = ("_limits", "_spare", "bodies")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.bodies = Budget(limits.held_bytes, limits.held_bytes_per_address)
        """The bodies of requests that are not answered yet, by address."""
        self._spare: list[RequestParser] = []

    def take(self) -> RequestParser:
        """Returns a parser that is between two requests."""
        return self._spare.pop() if self._spare else RequestParser(self._limits)

    def give_back(self, parser: RequestParser) -> None:
        """Keeps a parser that is between two requests, or closes it if there are enough."""
        if len(self._spare) < _SPARE_PARSERS:
            self._spare.append(parser)
        else:
            parser.close()

    def close(self) -> None:
        """Closes the parsers that are kept."""
        while self._spare:
            self._spare.pop().close()
