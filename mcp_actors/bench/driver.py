"""Sends the calls of a load and takes their answers: so many in flight, or so many a second, whatever comes back."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from mcp_actors.bench.calls import CallMix
from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.fields.field import Field, Trouble
from mcp_actors.bench.messages import Message
from mcp_actors.bench.outcomes import Incoming, incoming, outcome
from mcp_actors.bench.plan import LoadPlan, Stage
from mcp_actors.bench.recorder import CancelFigures, LoadRecorder
from mcp_actors.bench.sessions import LoadSessions

__all__ = ["MOST_IN_FLIGHT", "LoadDriver"]

# An open loop sends no more than that at once, however far behind the server is; their time runs all the same.
MOST_IN_FLIGHT = 1000
_TICK_SECONDS = 0.1
_LOOK_FOR_TIMEOUTS_SECONDS = 0.05
# An answer to what was cancelled, or the end of its response, is waited for that long.
_SILENT_AFTER_SECONDS = 5.0
# What is in flight when a person ends the load.
_LEAVE_WITHIN_SECONDS = 1.0
# If all calls fail, the load ends after so many and so long.
_HOPELESS_CALLS, _HOPELESS_SECONDS = 20, 2.0
_FIRST_CANCEL_SECONDS = 0.01


class _Sent(NamedTuple):
    due: float
    lane: int
    label: int


class _Cancelled(NamedTuple):
    when: float
    lane: int
    figures: CancelFigures  # of the stage that it was cancelled in


class LoadDriver:
    """Drives one field.

    Args:
        field: Whose troubles are collected from now on.
        plan: The load.
        tick: Is called some times a second.
    """

    def __init__(self, field: Field, plan: LoadPlan, tick: Callable[[float], None]) -> None:
        field.troubles = []
        self.field = field
        self.stopped = False
        self._plan = plan
        self._tick = tick
        self._chance = random.Random(plan.seed)
        self.mix = CallMix(plan.era, plan.calls, self._chance)
        self._ids = itertools.count(1)
        self.sessions = LoadSessions(field, self._ids, plan.sessions, plan.version, plan.timeout)
        self._pending: dict[int, _Sent] = {}
        self._cancels: list[tuple[float, int]] = []
        self._cancelled: dict[int, _Cancelled] = {}
        self.recorder = LoadRecorder(self.mix.labels)

    async def open(self) -> None:
        """Opens the sessions, as many as the server takes. Raises `LoadError` if it takes none."""
        while self.sessions.opening and not self.stopped:
            now = time.perf_counter()
            self._tick(now)
            await self.sessions.turn(now)
            await self._take(now + _TICK_SECONDS)
        if not self.sessions.ready and not self.stopped:
            raise LoadError(f"no session could be opened: {self.sessions.reason}")

    async def run(self, stage: Stage, recorder: LoadRecorder) -> None:
        """Does one stage. Raises `LoadError` if all calls fail."""
        self.recorder = recorder
        begun = now = time.perf_counter()
        until, each = begun + stage.seconds, stage.seconds / stage.slices
        recorder.begin(begun, time.process_time())
        sent = number = 0
        look = begun
        while not self.stopped and now < until and not (stage.calls and sent >= stage.calls):
            if stage.calls:
                done = (recorder.good + recorder.failed) * stage.slices >= stage.calls * (number + 1)
            else:
                done = now >= begun + each * (number + 1)
            if done and number + 1 < stage.slices:
                number += 1
                recorder.begin(now, time.process_time())
            if now >= look:
                look = now + _LOOK_FOR_TIMEOUTS_SECONDS
                self._tick(now)
                await self._look(now)
                self._check_hope(now - begun)
            self._cancel_due(now)
            if self.sessions.next_due() <= now:
                await self.sessions.turn(now)
            sent = self._send(stage, begun, now, sent)
            await self._take(self._wake_at(stage, begun, now, until, sent))
            now = time.perf_counter()
        if stage.rate and not (stage.calls and sent >= stage.calls):
            recorder.unsent = max(0, int((min(now, until) - begun) * stage.rate) - sent)
        if not stage.calls or sent < stage.calls:
            recorder.end(now, time.process_time())
        await self._drain()
        recorder.end(time.perf_counter(), time.process_time())

    async def close(self) -> None:
        """Leaves all lanes, for a bounded time."""
        self.field.patience = _LEAVE_WITHIN_SECONDS
        deadline = time.perf_counter() + _SILENT_AFTER_SECONDS
        for lane in self.sessions.ready:
            if time.perf_counter() > deadline:
                return
            self.field.troubles = []
            try:
                await self.field.leave(lane)
            except (LoadError, KeyError):
                continue

    async def _drain(self) -> None:
        """Waits for what is in flight: each is answered or times out, and sooner if a person ends the load."""
        ends = time.perf_counter() + _LEAVE_WITHIN_SECONDS
        while self._pending:
            now = time.perf_counter()
            if self.stopped and now > ends:
                for id, (_, lane, _) in self._pending.items():
                    self.field.abandon(lane, id)
                self._pending.clear()
                return
            self._tick(now)
            await self._look(now)
            self._cancel_due(now)
            await self._take(min(now + _TICK_SECONDS, self._cancels[0][0] if self._cancels else now + 1))

    def _send(self, stage: Stage, begun: float, now: float, sent: int) -> int:
        pending, ready = self._pending, self.sessions.ready
        if stage.rate:
            while (due := begun + sent / stage.rate) <= now and len(pending) < MOST_IN_FLIGHT and ready:
                self._post(due, now)
                self.recorder.late.add(now - due)
                sent += 1
            return sent
        while len(pending) < stage.window and ready and not (stage.calls and sent >= stage.calls):
            self._post(now, now)
            sent += 1
        return sent

    def _post(self, due: float, now: float) -> None:
        id = next(self._ids)
        ready = self.sessions.ready
        lane = ready[id % len(ready)]
        message, label = self.mix.draw(id)
        try:
            self.field.post(lane, message)
        except LoadError as error:
            self.recorder.failed_call(label, "connect failed", str(error))
            self.sessions.pause(lane, str(error))
            return
        self._pending[id] = _Sent(due, lane, label)
        share = self._plan.cancel_share
        if share and self._chance.random() < share:
            # Somewhere in the time that a call takes: a caller changes its mind at no particular moment.
            typical = self.recorder.total.mean or _FIRST_CANCEL_SECONDS
            heapq.heappush(self._cancels, (now + self._chance.uniform(0.0, typical), id))

    def _wake_at(self, stage: Stage, begun: float, now: float, until: float, sent: int) -> float:
        wake = min(until, now + _TICK_SECONDS, self.sessions.next_due())
        if self._cancels:
            wake = min(wake, self._cancels[0][0])
        if stage.rate and self.sessions.ready and len(self._pending) < MOST_IN_FLIGHT:
            wake = min(wake, begun + sent / stage.rate)
        return wake

    def _cancel_due(self, now: float) -> None:
        while self._cancels and self._cancels[0][0] <= now:
            _, id = heapq.heappop(self._cancels)
            sent = self._pending.pop(id, None)
            if sent is None:
                continue  # it was answered in time
            self.recorder.cancelled.sent += 1
            self._cancelled[id] = _Cancelled(now, sent.lane, self.recorder.cancelled)
            try:
                self.field.cancel(sent.lane, id)
            except (LoadError, KeyError) as error:
                self.sessions.pause(sent.lane, str(error))

    async def _look(self, now: float) -> None:
        """Counts what takes too long, and forgets what was cancelled long ago."""
        late = []
        for id, sent in self._pending.items():  # in the order in which they were due
            if sent.due + self._plan.timeout > now:
                break
            late.append((id, sent))
        for id, sent in late:
            del self._pending[id]
            self.recorder.failed_call(sent.label, "timeout", f"no answer within {self._plan.timeout:g} s")
            try:
                self.field.cancel(sent.lane, id)
            except (LoadError, KeyError) as error:
                self.sessions.pause(sent.lane, str(error))
            self.field.abandon(sent.lane, id)
        for id, (when, lane, _) in tuple(itertools.islice(self._cancelled.items(), 100)):
            if when + _SILENT_AFTER_SECONDS > now:
                break
            del self._cancelled[id]
            self.field.abandon(lane, id)
        if self.sessions.next_due() <= now or self.sessions.opening:
            await self.sessions.turn(now)

    def _check_hope(self, seconds: float) -> None:
        recorder = self.recorder
        if recorder.good or seconds < _HOPELESS_SECONDS:
            return
        if recorder.failed >= _HOPELESS_CALLS or not self.sessions.ready:
            raise LoadError(recorder.reason() or f"no session is left: {self.sessions.reason}")

    async def _take(self, until: float) -> None:
        arrived = await self.field.arrivals(until)
        now = time.perf_counter()
        rest = self._plan.sessions > 1
        for lane, data in arrived:
            message = incoming(data)
            if message is None or (id := message.id) is None or not isinstance(id, int):
                if message is None:
                    self.recorder.failed_call(-1, "malformed message", repr(data[:200]))
                elif message.method is not None and message.id is not None:
                    self._reply(lane, message)
                continue
            if message.method is not None:
                self._reply(lane, message)
                continue
            sent = self._pending.pop(id, None)
            if sent is None:
                await self._unexpected(id, message, now)
                continue
            if rest:
                self.field.rest(lane)
            kind, text = outcome(message)
            if kind:
                self.recorder.failed_call(sent.label, kind, text)
            else:
                self.recorder.answered(sent.label, now - sent.due)
                self.sessions.works()
        if self.field.troubles:
            found, self.field.troubles = self.field.troubles, []
            for trouble in found:
                await self._trouble(trouble, now)

    async def _unexpected(self, id: int, message: Incoming, now: float) -> None:
        cancelled = self._cancelled.pop(id, None)
        if cancelled is not None:
            cancelled.figures.answered.add(now - cancelled.when)
        else:
            await self.sessions.answer(id, message)

    def _reply(self, lane: int, message: Incoming) -> None:
        """A ping is answered; whatever else a server asks, this client has not declared."""
        answer = {"jsonrpc": "2.0", "id": message.id}
        if message.method == "ping":
            answer |= {"result": {}}
        else:
            answer |= {"error": {"code": -32601, "message": "a load answers no questions"}}
        try:
            self.field.post(lane, Message(json.dumps(answer).encode()))
        except (LoadError, KeyError) as error:
            self.sessions.pause(lane, str(error))

    async def _trouble(self, trouble: Trouble, now: float) -> None:
        lane, id, kind, text = trouble
        if id is None:
            for each in [each for each, sent in self._pending.items() if sent.lane == lane]:
                self.recorder.failed_call(self._pending.pop(each).label, kind, text)
            await self.sessions.lose(lane, text)
            return
        sent = self._pending.pop(id, None)
        if sent is not None:
            self.recorder.failed_call(sent.label, kind, text)
            if kind == "http 404" and self.field.era == "legacy":
                await self.sessions.lose(lane, text)  # the session is over
        elif (cancelled := self._cancelled.pop(id, None)) is not None:
            cancelled.figures.ended.add(now - cancelled.when)
        elif (opening := self.sessions.opens(id)) is not None:
            await self.sessions.lose(opening, text)
