"""Sends the calls of a load and takes their answers: so many in flight, or so many a second, whatever comes back."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from mcp_actors.cli.bench.field import Field, Trouble
from mcp_actors.cli.bench.plan import CallMix, LoadError, LoadPlan, Message, Stage, notification, opening
from mcp_actors.cli.bench.recorder import CancelFigures, LoadRecorder
from mcp_actors.supervision.printable import printable

__all__ = ["MOST_IN_FLIGHT", "Incoming", "LoadDriver", "LoadSessions", "Outcome", "incoming", "outcome"]


# -- Answers of any server, sorted: a result, or one of the ways in which a call fails -------------------

_LONGEST_TEXT = 300
_RAW = msgspec.Raw()
# Most results have neither, and need no second look.
_SUSPECT = re.compile(rb'"isError"\s*:\s*true|"resultType"\s*:\s*"(?!complete")')


class Incoming(msgspec.Struct, gc=False):
    """The members of a message that say what it is."""

    id: Any = None
    method: str | None = None
    result: msgspec.Raw = _RAW
    error: msgspec.Raw = _RAW


class _ErrorObject(msgspec.Struct):
    code: int = 0
    message: str = ""


class _ToolResult(msgspec.Struct, rename="camel"):
    is_error: bool = False
    result_type: str = "complete"
    content: Any = None


class Outcome(NamedTuple):
    """``kind`` is empty for a result; ``text`` is what the server said."""

    kind: str = ""
    text: str = ""


_GOOD = Outcome()
_message = msgspec.json.Decoder(Incoming)
_error = msgspec.json.Decoder(_ErrorObject)
_result = msgspec.json.Decoder(_ToolResult)


def incoming(data: bytes) -> Incoming | None:
    """Returns what a message is; ``None`` if it is not a JSON-RPC message."""
    try:
        return _message.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def outcome(answer: Incoming) -> Outcome:
    """Returns how a call has ended."""
    error, result = bytes(answer.error), bytes(answer.result)
    if error:
        try:
            found = _error.decode(error)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Outcome("malformed answer", _cut(error.decode(errors="replace")))
        return Outcome(f"rpc error {found.code}", _cut(found.message))
    if not result:
        return Outcome("malformed answer", "an answer without a result and without an error")
    if _SUSPECT.search(result) is None:
        return _GOOD
    try:
        body = _result.decode(result)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _GOOD  # a result of another method than tools/call may have such members
    if body.is_error:
        return Outcome("tool error", _cut(_first_text(body.content)))
    if body.result_type == "input_required":
        return Outcome("input required", "the server asks the client something before it answers")
    return _GOOD


def _first_text(content: Any) -> str:
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return str(block["text"])
    return ""


def _cut(text: str) -> str:
    return printable(" ".join(text.split()), _LONGEST_TEXT)


# -- The sessions of a load: opened with the handshake of their era, and opened again after a loss -------

# Handshakes at once: how fast a server starts ten thousand sessions is not what is measured.
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
        """Whether a session is still being opened for the first time."""
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
        """Gives up a lane; another one will be opened in its place."""
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
        """Pauses a lane for a moment, because it could not take a request."""
        if lane in self.ready:
            self.ready.remove(lane)
            self._failed(reason, lane)

    def works(self) -> None:
        """Notes an answer on a lane: the next loss counts as its first again."""
        self._wait = _SHORTEST_WAIT

    def _failed(self, reason: str, lane: int = 0) -> None:
        self.reason = reason
        heapq.heappush(self._due, (time.perf_counter() + self._wait, lane))
        self._wait = min(2 * self._wait, _LONGEST_WAIT)


# An open loop sends at most that many at once, however far it is behind; the clock of all due calls runs anyway.
MOST_IN_FLIGHT = 1000
_TICK_SECONDS = 0.1
_LOOK_FOR_TIMEOUTS_SECONDS = 0.05
# Seconds to wait for the answer to a cancelled call, or for the end of its response.
_SILENT_AFTER_SECONDS = 5.0
# Seconds for calls that are in flight when a person ends the load.
_LEAVE_WITHIN_SECONDS = 1.0
# If all calls fail, the load ends after that many calls and seconds.
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
        field: The field, whose troubles are collected from now on.
        plan: The load.
        tick: Called several times a second.
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
            if due <= now:
                self.recorder.held_up = True
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
