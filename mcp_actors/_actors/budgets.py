"""The budgets of a server: the bytes that its clients make it hold."""

from __future__ import annotations

import attrs

from mcp_actors._actors.limits import Limits
from mcp_actors._eras.era import Invocation
from mcp_actors._record import ValueRecord
from mcp_actors.budget import Account, Budget, BudgetStatistics, holder_of
from mcp_actors.errors import Overloaded

__all__ = ["WEIGHED_BYTES", "Budgets", "ClientMemory", "HeldBytes", "MemoryStatistics"]

# Bytes of params from which on a call is weighed: below it, the limit on the number of calls is enough.
WEIGHED_BYTES = 16 * 1024


@attrs.frozen(eq=False, repr=False)
class MemoryStatistics(ValueRecord):
    """The bytes that clients make a server hold, by principal or address."""

    in_flight: BudgetStatistics
    """Params of calls in flight, where they are long enough to be weighed."""
    kept: BudgetStatistics
    """What sessions and subscriptions make the server remember."""


class HeldBytes:
    """The bytes of one call in flight, which a call leaves at its end, as it leaves a limiter."""

    __slots__ = ("_budget", "_holder", "_size")

    def __init__(self, budget: Budget, holder: str | None, size: int) -> None:
        self._budget = budget
        self._holder = holder
        self._size = size

    def leave(self) -> None:
        """Takes back the charge."""
        self._budget.release(self._holder, self._size)


class Budgets:
    """The two budgets of one server, to which its clients are charged."""

    __slots__ = ("in_flight", "kept")

    def __init__(self, limits: Limits) -> None:
        self.in_flight = Budget(limits.server_in_flight_bytes, limits.in_flight_bytes)
        self.kept = Budget(limits.server_kept_bytes, limits.kept_bytes)

    def statistics(self) -> MemoryStatistics:
        """Returns a snapshot."""
        return MemoryStatistics(self.in_flight.statistics(), self.kept.statistics())


class ClientMemory:
    """The memory that one session, or all requests that came by themselves, take on the server.

    Args:
        account: What the session is charged for; ``None`` for requests that came by themselves.
    """

    __slots__ = ("_budgets", "account")

    def __init__(self, budgets: Budgets, account: Account | None) -> None:
        self._budgets = budgets
        self.account = account

    @property
    def kept(self) -> int:
        """Bytes that the session makes the server remember."""
        return 0 if self.account is None else self.account.held

    def hold(self, invocation: Invocation, size: int) -> HeldBytes:
        """Charges a call whose params have ``size`` bytes.

        Raises:
            Overloaded: Too many bytes of calls are in flight, of this client or of all.
        """
        budget, holder = self._budgets.in_flight, self.holder(invocation)
        over = budget.charge(holder, size)
        if over is not None:
            raise Overloaded.for_bytes("calls in flight", over, budget.limit_of(over))
        return HeldBytes(budget, holder, size)

    def new_account(self, invocation: Invocation) -> Account:
        """Returns an account for what one call makes the server keep; its user takes everything back."""
        return Account(self._budgets.kept, self.holder(invocation))

    def forget(self) -> None:
        """Takes back what is kept, because the session has ended."""
        if self.account is not None:
            self.account.keep(0)

    def holder(self, invocation: Invocation) -> str | None:
        """Returns who is charged for a call: its principal or, without one, its address."""
        if self.account is not None:
            return self.account.holder
        return holder_of(invocation.address, invocation.principal)
