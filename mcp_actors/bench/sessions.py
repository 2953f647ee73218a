"""The sessions of a load: opened with the handshake of their era, and opened again after a loss."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterator

import msgspec

from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.fields.field import Field
from mcp_actors.bench.messages import notification, opening
from mcp_actors.bench.outcomes import Incoming, outcome

__all__ = ["LoadSessions"]

# So many handshakes at once: a server that starts ten thousand sessions is not measured by it.
_MOST_OPENING = 64
_QUIET_WITHIN_SECONDS = 5.0
# Between a loss and the next attempt; it doubles with each loss in a row.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 2.0
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Agreed(msgspec.Struct, rename="camel"):
    protocol_version: str = ""


class LoadSessions:
    """The lanes of a field that are ready for calls.

    ``reason`` is why the last one could not be opened, or was lost.
    """

    def __init__(self, field: Field, ids: Iterator[int], wanted: int, version: str, within: float) -> None:
        self.ready: list[int] = []
        self.reason = ""
        self.lost = 0
        self._field = field
        self._ids = ids
        self._version = version
        self._within = within
        self._opening: dict[int, tuple[int, float]] = {}  # the id of a handshake: its lane, its deadline
        self._arriving: dict[int, float] = {}  # lanes whose handshake was answered, with a deadline
        # When to open a lane (0), or to use one again; a heap.
        self._due: list[tuple[float, int]] = [(0.0, 0)] * wanted
        self._wait = _SHORTEST_WAIT

    @property
    def opening(self) -> bool:
        """Whether a session is not there yet that has not failed so far."""
        return bool(self._opening or self._arriving or (self._due and self._due[0][0] == 0.0))

    def next_due(self) -> float:
        """Returns when `turn` has something to do, on the clock of `time.perf_counter`."""
        return self._due[0][0] if self._due and len(self._opening) < _MOST_OPENING else float("inf")

    async def turn(self, now: float) -> None:
        """Opens what is due, and gives up handshakes that take too long."""
        while self._due and self._due[0][0] <= now and len(self._opening) < _MOST_OPENING:
            _, lane = heapq.heappop(self._due)
            if lane:
                self.ready.append(lane)
                continue
            try:
                lane = await self._field.connect()
                id = next(self._ids)
                self._field.post(lane, opening(self._field.era, id, self._version))
            except LoadError as error:
                self._failed(str(error))
                continue
            self._opening[id] = lane, time.perf_counter() + self._within
        for lane in [each for each in self._arriving if self._field.is_quiet(each)]:
            del self._arriving[lane]
            self.ready.append(lane)
        for lane in [each for each, deadline in self._arriving.items() if deadline < now]:
            del self._arriving[lane]
            self.ready.append(lane)
        late = [lane for lane, deadline in self._opening.values() if deadline < now]
        for lane in late:
            await self.lose(lane, f"no answer to the handshake within {self._within:g} s")

    async def answer(self, id: int, message: Incoming) -> bool:
        """Takes the answer to a handshake; returns whether it was one."""
        found = self._opening.pop(id, None)
        if found is None:
            return False
        lane, field = found[0], self._field
        kind, text = outcome(message)
        if kind:
            await self.lose(lane, f"the handshake was refused: {kind}: {text}")
            return True
        if field.era == "legacy":
            try:
                agreed = msgspec.json.decode(message.result, type=_Agreed)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                agreed = _Agreed()
            if not _VERSION.fullmatch(agreed.protocol_version):
                # It becomes a header of each request over HTTP.
                await self.lose(lane, "the answer to the handshake names no revision")
                return True
            field.version = agreed.protocol_version
            field.post(lane, notification("notifications/initialized"))
        self._arriving[lane] = time.perf_counter() + _QUIET_WITHIN_SECONDS
        return True

    def opens(self, id: int) -> int | None:
        """Returns the lane whose handshake has this id."""
        found = self._opening.get(id)
        return None if found is None else found[0]

    async def lose(self, lane: int, reason: str) -> None:
        """Another lane will be opened in the place of this one."""
        if lane in self.ready:
            self.ready.remove(lane)
            self.lost += 1
        self._arriving.pop(lane, None)
        self._due = [each for each in self._due if each[1] != lane or not lane]
        heapq.heapify(self._due)
        for id in [id for id, (each, _) in self._opening.items() if each == lane]:
            del self._opening[id]
        await self._field.drop(lane)
        self._failed(reason)

    def pause(self, lane: int, reason: str) -> None:
        """Uses a lane no more for a moment, because it could not take a request."""
        if lane in self.ready:
            self.ready.remove(lane)
            self._failed(reason, lane)

    def works(self) -> None:
        """Something was answered: the next loss is the first again."""
        self._wait = _SHORTEST_WAIT

    def _failed(self, reason: str, lane: int = 0) -> None:
        self.reason = reason
        heapq.heappush(self._due, (time.perf_counter() + self._wait, lane))
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
