"""The account of one connection for the bodies of its requests."""

from __future__ import annotations

from typing import Protocol

from mcp_actors.budget import Account, Budget, holder_of
from mcp_actors.logging import log

__all__ = ["HeldBodies"]


class Body(Protocol):
    """A request whose body has come in part."""

    body_size: int
    charged: int
    """Bytes of the body that are charged to its peer."""


class HeldBodies:
    """Charges the bodies of one connection to its peer, until the requests are answered.

    Args:
        budget: What the bodies of all connections are charged to.
        peer: The address of the peer.
    """

    __slots__ = ("_account",)

    def __init__(self, budget: Budget, peer: str) -> None:
        self._account = Account(budget, holder_of(peer))

    def charge(self, body: Body) -> str | None:
        """Charges what has come of a body since the last call; returns the reason if there is no room for it."""
        amount = body.body_size - body.charged
        over = self._account.charge(amount)
        if over is None:
            body.charged += amount
            return None
        log.debug("a request body is refused", holder=self._account.holder, limit_of=over)
        whose = "one address" if over == "holder" else "all clients together"
        limit = self._account.budget.limit_of(over)
        return f"too many bytes in bodies of unanswered requests of {whose}: the limit is {limit}"

    def release(self, kept: int) -> None:
        """Takes back what was charged for requests that are answered, all but ``kept`` bytes."""
        self._account.keep(kept)
