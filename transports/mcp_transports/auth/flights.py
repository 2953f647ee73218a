"""One run of a state machine of authorization, and the requests that wait for it."""

from __future__ import annotations

from typing import Any, Protocol

import trio

from mcp_actors.auth.effects import Steps
from mcp_actors.errors import AuthorizationError
from mcp_transports.auth.effects_performed import Performer

__all__ = ["Flight", "FlightWaiter"]


class FlightWaiter(Protocol):
    """A request that waits for access; its clocks must not run while a person is asked."""

    def hold(self) -> None:
        """A person begins to be asked."""

    def release(self) -> None:
        """The person has answered, or is asked no more. Follows each `hold`."""


class Flight:
    """One run of a machine in a task of its own, for all who need what it gets.

    Args:
        reason: What the run is for: those who have the same reason take its failure as their own.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.failure: AuthorizationError | None = None
        self._result: Any = None
        self._waiters: list[FlightWaiter | None] = []
        self._asks = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "asks a person" if self._asks else "under way"
        return f"<Flight {self.reason!r} {state}, {len(self._waiters)} wait>"

    async def run(self, steps: Steps[Any], performer: Performer) -> None:
        """Runs the machine to its end. Cancelled, it has given back what the machine held."""
        try:
            with self._scope:
                self._result = await performer.run(steps, self._person_asked)
        except AuthorizationError as error:
            self.failure = error
        finally:
            self._ended.set()

    def fail_after_crash(self, crash: BaseException) -> None:
        """Tells those who wait that the run failed by a defect."""
        self.failure = AuthorizationError(
            f"access could not be had, because of a failure on this side: {type(crash).__name__}; see the log"
        )

    def cancel(self) -> None:
        """Ends the run; whoever still waits begins another one."""
        self._scope.cancel(reason="nobody waits for access any more")

    async def wait(self, waiter: FlightWaiter | None) -> Any:
        """Waits for the end and returns the result, ``None`` if the run was cancelled.

        Cancelled, it leaves, and the last one who leaves cancels the run.

        Raises:
            AuthorizationError: The failure, as an exception of its own for each who waits.
        """
        self._waiters.append(waiter)
        if self._asks and waiter is not None:
            waiter.hold()
        try:
            await self._ended.wait()
        finally:
            self._waiters.remove(waiter)
            if self._asks and waiter is not None:
                waiter.release()
            if not self._waiters and not self._ended.is_set():
                self.cancel()
        if self.failure is not None:
            raise self.failure.as_new()
        return self._result

    def _person_asked(self, begins: bool) -> None:
        self._asks = begins
        for waiter in self._waiters:
            if waiter is not None:
                (waiter.hold if begins else waiter.release)()
