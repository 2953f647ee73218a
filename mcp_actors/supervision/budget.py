"""The account of what is held for peers: how much for each of them, and for all together.

A limit on the whole alone lets one peer take everything, and then all others are refused. So each holder has a limit of
its own, by default the half of the whole: a reverse proxy, whose many clients come from one address, keeps most of it,
and a single hostile client leaves the other half to others.
"""

from __future__ import annotations

import ipaddress
from typing import Literal

from mcp_actors.supervision.principal import Principal
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = ["Account", "Budget", "BudgetStatistics", "Limited", "holder_of"]

Limited = Literal["holder", "all"]
"""Whose limit is in the way of a charge."""

# Bits of an IPv6 address that name a network of one customer (RFC 6177): a customer with one of its addresses has all.
_IPV6_NETWORK = 64


@frozen_record(eq=False, repr=False)
class BudgetStatistics(ValueRecord):
    """A snapshot of a `Budget`, in its unit."""

    held: int
    """Held now, for all."""
    limit: int
    """The limit of what is held for all."""
    largest: int
    """Held now for the holder with the most."""
    holder_limit: int
    """The limit of what is held for one holder."""
    holders: int
    """Holders for which something is held."""
    refused: int
    """Charges that were refused since the start."""


class Budget:
    """Counts what is held, in bytes or any other unit, by holder and in all. Nothing in it waits.

    Args:
        limit: The limit of what is held for all.
        holder_limit: The limit of what is held for one holder; ``None`` for the half of ``limit``.
    """

    __slots__ = ("_by_holder", "_refused", "held", "holder_limit", "limit")

    def __init__(self, limit: int, holder_limit: int | None = None) -> None:
        self.limit = limit
        self.holder_limit = max(1, limit // 2) if holder_limit is None else holder_limit
        self.held = 0
        self._by_holder: dict[str, int] = {}
        self._refused = 0

    def __repr__(self) -> str:
        return f"<Budget {self.held}/{self.limit} for {len(self._by_holder)}>"

    def charge(self, holder: str | None, amount: int) -> Limited | None:
        """Charges ``amount`` to ``holder`` and returns ``None``, or charges nothing and returns the limit in the way.

        With both in the way it is the holder's, for whom others need not make room.

        Args:
            holder: Whose it is; ``None`` if that is unknown, and then only the limit for all is applied.
            amount: In the unit of the budget.
        """
        held = 0 if holder is None else self._by_holder.get(holder, 0) + amount
        over: Limited | None = None
        if held > self.holder_limit:
            over = "holder"
        elif self.held + amount > self.limit:
            over = "all"
        if over is not None:
            self._refused += 1
            return over
        if holder is not None:
            self._by_holder[holder] = held
        self.held += amount
        return None

    def release(self, holder: str | None, amount: int) -> None:
        """Takes back what was charged to ``holder``, or a part of it."""
        self.held -= amount
        if holder is not None:
            left = self._by_holder[holder] - amount
            if left:
                self._by_holder[holder] = left
            else:
                del self._by_holder[holder]

    def limit_of(self, whose: Limited) -> int:
        """Returns the limit of one holder or of all."""
        return self.holder_limit if whose == "holder" else self.limit

    def statistics(self) -> BudgetStatistics:
        """Returns a snapshot."""
        return BudgetStatistics(
            self.held,
            self.limit,
            max(self._by_holder.values(), default=0),
            self.holder_limit,
            len(self._by_holder),
            self._refused,
        )


class Account:
    """The part of a budget that one session or connection was charged for, to be taken back with its end.

    Args:
        budget: What is charged.
        holder: Who is charged; ``None`` if that is unknown.
    """

    __slots__ = ("budget", "held", "holder")

    def __init__(self, budget: Budget, holder: str | None) -> None:
        self.budget = budget
        self.holder = holder
        self.held = 0

    def __repr__(self) -> str:
        return f"<Account {self.held} for {self.holder}>"

    def charge(self, amount: int) -> Limited | None:
        """Charges ``amount``; returns what `Budget.charge` returns."""
        over = self.budget.charge(self.holder, amount)
        if over is None:
            self.held += amount
        return over

    def hold(self, amount: int) -> Limited | None:
        """Charges or takes back, so that ``amount`` is charged; returns what `Budget.charge` returns."""
        if amount > self.held:
            return self.charge(amount - self.held)
        self.keep(amount)
        return None

    def keep(self, amount: int) -> None:
        """Takes back everything but ``amount``. With less than that charged, nothing happens."""
        if self.held > amount:
            self.budget.release(self.holder, self.held - amount)
            self.held = amount


def holder_of(peer: str | None, principal: Principal | None = None) -> str | None:
    """Returns the holder that answers for what ``peer`` makes a server hold.

    That is the ``principal``, if there is one. Otherwise it is the address without its port, and of an IPv6 address the
    network, because one customer has all addresses of it.

    Args:
        peer: ``"127.0.0.1:4711"``, ``"[::1]:4711"``, or any other text, which is taken as it is; ``None`` if it is
            unknown, and without a principal the holder is then unknown too.
        principal: The caller that the binding has authenticated.
    """
    if principal is not None:
        return f"principal {principal.key}"
    if peer is None:
        return None
    address, _, port = peer.rpartition(":")
    if not port.isdecimal():
        return peer
    if address.startswith("["):
        try:
            address = str(
                ipaddress.ip_network((address[1:-1].partition("%")[0], _IPV6_NETWORK), strict=False)
            )
        except ValueError:
            return address
    return address
