"""One task that keeps the deadlines of many members, so that a connection costs no timer of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.task_kinds import TICKER

__all__ = ["Ticker", "Timed"]


class Timed(Protocol):
    """A member of a `Ticker`."""

    @property
    def deadline(self) -> float:
        """The time at which `expire` is due, in Trio's time: ``math.inf`` for never, ``-math.inf`` for every tick."""

    def expire(self, now: float) -> None:
        """Called once a tick as long as the deadline is not in the future. Must not wait."""

    def crashed(self, error: BaseException) -> None:
        """Called when `expire` has raised ``error`` and the ticker has discarded the member. Must not wait."""


TimedT = TypeVar("TimedT", bound=Timed)


class Ticker(Generic[TimedT]):
    """Expires its members, late by up to one tick, never early.

    An error of `Timed.expire` is logged, and the member is discarded (`Timed.crashed` is called); all others go on.

    Args:
        tick: Seconds from one look at the members to the next.
        on_tick: Called before each look, and must not wait.
    """

    def __init__(self, tick: float, on_tick: Callable[[], None] | None = None) -> None:
        self.tick = tick
        self.members: set[TimedT] = set()
        self._on_tick = on_tick
        self._has_members = trio.Event()

    def __repr__(self) -> str:
        return f"<Ticker of {len(self.members)}, every {self.tick:g} s>"

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: TimedT) -> None:
        """Keeps the deadlines of ``member`` until `discard`."""
        self.members.add(member)
        self._has_members.set()

    def discard(self, member: TimedT) -> None:
        """Forgets ``member``, if it is one."""
        self.members.discard(member)

    async def run(self) -> None:
        """Keeps time until cancelled. Sleeps while there is no member, so that an idle program is never woken."""
        while True:
            if not self.members:
                self._has_members = trio.Event()
                await self._has_members.wait()
            await trio.sleep(self.tick)
            if self._on_tick is not None:
                self._on_tick()
            self.expire(trio.current_time())

    def expire(self, now: float) -> None:
        """Expires every member whose deadline is not later than ``now``."""
        for member in [each for each in self.members if each.deadline <= now]:
            if member not in self.members:
                continue  # ended by the expiry of another one
            try:
                member.expire(now)
            except BaseException as error:
                self.members.discard(member)
                with Containment(TICKER, member.crashed, {"member": member}):
                    raise error
