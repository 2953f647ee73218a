"""The interface that a scenario has to any transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from mcp_actors.bench.eras import Era
from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.messages import Message, answer_to, cancelled, id_of, notification, opening

__all__ = ["ANSWER_WITHIN_SECONDS", "Arrival", "Field", "Trouble", "run_blocking"]

ANSWER_WITHIN_SECONDS = 30.0
# Ids of openings and of single questions; scenarios count from one.
_FIRST_OWN_ID = 2_000_000_000

# The lane a message came in on, and the message.
Arrival = tuple[int, bytes]
T = TypeVar("T")


class Trouble(NamedTuple):
    """A request that gets no answer, or, without ``id``, a lane that is lost. ``kind`` is by what it is counted."""

    lane: int
    id: int | None
    kind: str
    text: str


class Field(ABC):
    """Lanes to one server: connections, or their equivalent in a transport without connections.

    Raw fields block in their ``async`` methods and never suspend: `run_blocking` drives them, so that no scheduler's
    time is in a figure. Fields on Trio suspend.

    ``troubles`` collects what goes wrong once it is a list, and `arrivals` returns at each; before that it raises
    `LoadError`. ``version`` is the revision that a legacy server has chosen; ``patience`` bounds what has no other
    bound, in seconds.
    """

    era: Era

    def __init__(self, era: Era) -> None:
        self.era = era
        self.version = ""
        self.patience = ANSWER_WITHIN_SECONDS
        self.troubles: list[Trouble] | None = None
        self._ids = iter(range(_FIRST_OWN_ID, 2**53))

    @abstractmethod
    async def connect(self) -> int:
        """Opens a new lane without sending anything."""

    @abstractmethod
    def post(self, lane: int, message: Message) -> None:
        """Queues a message; the next `arrivals` sends it with all others of its lane."""

    @abstractmethod
    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        """Sends the queued messages and waits for messages; none if ``until`` (`time.perf_counter`) passes first.

        Without ``until`` it raises `LoadError` if no message arrives for a long time.
        """

    @abstractmethod
    async def leave(self, lane: int) -> None:
        """Closes a lane as a client does that has finished."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Sleeps for this time."""

    @abstractmethod
    async def stall(self, lane: int) -> None:
        """Sends the queued messages, and never reads from this lane again."""

    def cancel(self, lane: int, id: int) -> None:
        """Cancels a request as this transport does."""
        self.post(lane, cancelled(id))

    def abandon(self, lane: int, id: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases what is held for a request whose answer is no longer waited for."""

    def is_quiet(self, lane: int) -> bool:
        """Whether everything that was sent on a lane has arrived, so that what is sent next cannot overtake it."""
        return True

    async def drop(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases what a lost lane still holds; the server is sent nothing."""

    def fail(self, lane: int, id: int | None, kind: str, text: str) -> None:
        """Adds to the ``troubles``. Raises `LoadError` if nobody collects them."""
        if self.troubles is None:
            raise LoadError(text)
        self.troubles.append(Trouble(lane, id, kind, text))

    async def attend(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Makes messages arrive that answer no request, where that needs a stream of its own."""

    def rest(self, lane: int) -> None:  # noqa: B027 - most transports need nothing
        """Releases resources that the lane needs only during requests, so that other lanes may use them."""

    async def begin(self) -> int:
        """Opens a new lane with the handshake of its era."""
        lane = await self.connect()
        await self.ask(lane, opening(self.era, next(self._ids)))
        if self.era == "legacy":
            self.post(lane, notification("notifications/initialized"))
        return lane

    async def ask(self, lane: int, message: Message) -> dict[str, Any]:
        """Sends one request and returns its result, unmeasured; drops other messages."""
        self.post(lane, message)
        while True:
            for where, data in await self.arrivals():
                if where == lane and id_of(data) == message.id and b'"method"' not in data[:40]:
                    return answer_to(data)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise LoadError("a raw field suspended")
