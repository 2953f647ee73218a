"""What a scenario needs of a transport, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from benchmarks.suite.eras import Era
from benchmarks.suite.messages import Message, answer_to, cancelled, id_of, notification, opening
from benchmarks.suite.process import LoadError

__all__ = ["ANSWER_WITHIN_SECONDS", "Arrival", "Field", "run_blocking"]

ANSWER_WITHIN_SECONDS = 30.0
# Ids of openings and of single questions; scenarios count from one.
_FIRST_OWN_ID = 2_000_000_000

# The lane a message came in on, and the message.
Arrival = tuple[int, bytes]
T = TypeVar("T")


class Field(ABC):
    """Lanes to one server: connections, or what stands for one in a transport without any.

    Raw fields block in their ``async`` methods and never suspend: `run_blocking` drives them, so that no scheduler's
    time is in a figure. Fields on Trio suspend.
    """

    era: Era

    def __init__(self, era: Era) -> None:
        self.era = era
        self._ids = iter(range(_FIRST_OWN_ID, 2**53))

    @abstractmethod
    async def connect(self) -> int:
        """A new lane, nothing sent yet."""

    @abstractmethod
    def post(self, lane: int, message: Message) -> None:
        """Takes a message; it is sent with all others of its lane by the next `arrivals`."""

    @abstractmethod
    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        """Sends what was posted and waits for messages; nothing comes when ``until`` (`time.perf_counter`) passes.

        Without ``until``, raises `LoadError` when nothing comes for a long time.
        """

    @abstractmethod
    async def leave(self, lane: int) -> None:
        """Closes a lane as a client would that is done with it."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Does nothing for so long."""

    @abstractmethod
    async def stall(self, lane: int) -> None:
        """Sends what was posted; from now on nothing of this lane is read, and it is not heard of again."""

    def cancel(self, lane: int, id: int) -> None:
        """Takes a request back in the way of this transport."""
        self.post(lane, cancelled(id))

    async def attend(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Sees to it that messages which answer nothing arrive, where that takes an effort."""

    def rest(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Nothing more is asked here for now: others may use what this lane needs only while it is asked."""

    async def begin(self) -> int:
        """A new lane, opened as its era wants it."""
        lane = await self.connect()
        await self.ask(lane, opening(self.era, next(self._ids)))
        if self.era == "legacy":
            self.post(lane, notification("notifications/initialized"))
        return lane

    async def ask(self, lane: int, message: Message) -> dict[str, Any]:
        """One request and its result, outside the clock; drops what else arrives meanwhile."""
        self.post(lane, message)
        while True:
            for where, data in await self.arrivals():
                if where == lane and id_of(data) == message.id and b'"method"' not in data[:40]:
                    return answer_to(data)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Runs what never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise LoadError("a raw field suspended")
