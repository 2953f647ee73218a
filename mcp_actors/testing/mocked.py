"""A server that answers any client by a recording: `MockServer`. `RecordedServer` plays one session back, step by step.

What was asked is found again by its method and its params, without ``_meta``. Of a request that was recorded several
times the answers come in their order, and the last one again after that. What came before an answer, such as progress,
log messages and questions of the server, comes again before it.

========================================== ============================================================================
a request                                  its answer
========================================== ============================================================================
recorded                                   the recorded one, result or error, with the ids and tokens of this client
a handshake                                the recorded one, whatever the client says of itself
recorded, and never answered               none: subscriptions stay open so
``ping``, ``logging/setLevel``             an empty result
while `MAX_IN_FLIGHT` wait for this client 429, with ``data.reason`` ``"overloaded"``
anything else                              -32602, with ``data.reason`` ``"not_recorded"``
========================================== ============================================================================
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import INVALID_PARAMS, Overloaded
from mcp_actors.supervision.containment import reraised
from mcp_actors.testing.recording import Recording

__all__ = ["MockServer", "RecordedCall", "calls_of"]

# Their params say what the client is, and they are asked once a connection.
HANDSHAKES = frozenset({"initialize", "server/discover"})
_EMPTY = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_ENDINGS = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)
# Requests of a client that are being answered at once: those whose server asks the client something on the way.
MAX_IN_FLIGHT = 256


@attrs.frozen
class RecordedCall:
    """A request of a client in a recording, and what its server sent because of it."""

    method: str
    params: Mapping[str, Any]
    """Its params, without ``_meta``."""
    id: int | str
    token: int | str | None = None
    """The token of its reports of progress."""
    before: Sequence[dict[str, Any]] = attrs.field(factory=list)
    """What the server sent about it before its answer: notifications, and requests."""
    answer: dict[str, Any] | None = None
    """The members ``result`` or ``error``; ``None`` if it was never answered."""

    @property
    def key(self) -> tuple[str, str]:
        """The method and the params, by which a request is found again."""
        return _key(self.method, self.params)


def _key(method: str, params: Mapping[str, Any]) -> tuple[str, str]:
    if method in HANDSHAKES:
        return method, ""
    return method, json.dumps({key: each for key, each in params.items() if key != "_meta"}, sort_keys=True)


def _messages(frame: Frame) -> list[dict[str, Any]]:
    try:
        message = json.loads(frame.data)
    except (ValueError, RecursionError):
        return []
    found = message if isinstance(message, list) else [message]
    return [each for each in found if isinstance(each, dict)]


def calls_of(recording: Recording) -> list[RecordedCall]:
    """Returns the requests of all clients in a recording, in the order in which they were sent."""
    found: list[RecordedCall] = []
    for connection in recording.connections:
        open_calls: dict[int | str, RecordedCall] = {}
        for side, frame in recording.script(connection):
            for message in _messages(frame):
                if side == "client":
                    _note_request(message, open_calls, found)
                else:
                    _note_answer(message, frame, open_calls, found)
    return found


def _note_request(
    message: dict[str, Any], open_calls: dict[int | str, RecordedCall], found: list[RecordedCall]
) -> None:
    method, id = message.get("method"), message.get("id")
    if not isinstance(method, str) or not isinstance(id, int | str):
        return
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    call = RecordedCall(method, {key: each for key, each in params.items() if key != "_meta"}, id, token)
    open_calls[id] = call
    found.append(call)


def _note_answer(
    message: dict[str, Any],
    frame: Frame,
    open_calls: dict[int | str, RecordedCall],
    found: list[RecordedCall],
) -> None:
    id = message.get("id")
    if "method" not in message:
        call = open_calls.pop(id, None) if isinstance(id, int | str) else None
        if call is not None:
            answer: dict[str, Any] = {key: message[key] for key in ("result", "error") if key in message}
            found[_place(found, call)] = attrs.evolve(call, answer=answer)
        return
    about = _about(message, frame, open_calls)
    if about is not None:
        assert isinstance(about.before, list)
        about.before.append(message)


def _place(found: list[RecordedCall], call: RecordedCall) -> int:
    return next(place for place in reversed(range(len(found))) if found[place] is call)


def _about(
    message: dict[str, Any], frame: Frame, open_calls: dict[int | str, RecordedCall]
) -> RecordedCall | None:
    """Returns the call that a message of the server is about; one that names none is about the only one there is."""
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    if message["method"] == "notifications/progress":
        token = params.get("progressToken")
        return next((each for each in open_calls.values() if each.token == token), None)
    meta = params.get("_meta")
    named = meta.get(_SUBSCRIPTION) if isinstance(meta, dict) else None
    for id in (named, frame.about):
        if isinstance(id, int | str) and id in open_calls:
            return open_calls[id]
    waiting = [each for each in open_calls.values() if not each.method.startswith("subscriptions/")]
    return waiting[0] if len(waiting) == 1 else None


class MockServer:
    """A `~mcp_actors.abc.ClientTransport` whose server answers as a recorded one did, in any order::

        async with Client(MockServer(Recording.load("day.jsonl"))) as client:
            ...

    It can be connected to any number of times, also at once; each connection begins with the first answers.
    ``mcp-actors mock`` serves one. The table of the module says what is answered.

    Args:
        recording: What to answer by.
    """

    def __init__(self, recording: Recording) -> None:
        self._calls: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)
        for call in calls_of(recording):
            self._calls[call.key].append(call)
        self.unknown: list[str] = []
        """The methods of up to 1,000 requests for which there was no answer."""

    def __repr__(self) -> str:
        return f"<MockServer {len(self._calls)} requests>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a connection."""
        transport: Any = client_transport("memory:")
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                await nursery.start(transport.serve, self._answer_all)
                with body:
                    async with transport.connect() as channel:
                        yield channel
                nursery.cancel_scope.cancel(reason="the connection is closed")

    async def _answer_all(self, channel: FrameChannel) -> None:
        connection = _MockConnection(channel, self._calls, self.unknown)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for message in _messages(await channel.receive()):
                        await connection.take(message, nursery)
        except* _ENDINGS:
            pass


class _MockConnection:
    """One connection of a client to a mock."""

    def __init__(
        self,
        channel: FrameChannel,
        calls: Mapping[tuple[str, str], Sequence[RecordedCall]],
        unknown: list[str],
    ) -> None:
        self._channel = channel
        self._calls = calls
        self._unknown = unknown
        self._asked: dict[tuple[str, str], int] = defaultdict(int)
        self._questions: dict[str, trio.Event] = {}
        self._in_flight: dict[int | str, trio.CancelScope] = {}

    async def take(self, message: dict[str, Any], nursery: trio.Nursery) -> None:
        """Takes one message of the client; a request is answered by a task, as the server may ask on the way."""
        id, method = message.get("id"), message.get("method")
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "notifications/cancelled":
            self._cancel(params.get("requestId"))
        if not isinstance(id, int | str):
            return
        if not isinstance(method, str):
            answered = self._questions.pop(str(id), None)
            if answered is not None:
                answered.set()
            return
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            refusal = Overloaded("connection", MAX_IN_FLIGHT, 0)
            error = {"code": refusal.code, "message": refusal.message, "data": refusal.data}
            await self._send({"id": id, "error": error})
            return
        self._in_flight[id] = scope = trio.CancelScope()
        nursery.start_soon(self._answer, id, method, params, scope)

    def _cancel(self, id: Any) -> None:
        scope = self._in_flight.pop(id, None) if isinstance(id, int | str) else None
        if scope is not None:
            scope.cancel(reason="the client has cancelled the request")

    async def _answer(
        self, id: int | str, method: str, params: dict[str, Any], scope: trio.CancelScope
    ) -> None:
        with scope:
            await self._answer_fully(id, method, params)
        if self._in_flight.get(id) is scope:
            del self._in_flight[id]

    async def _answer_fully(self, id: int | str, method: str, params: dict[str, Any]) -> None:
        try:
            call = self._found(method, params)
            if call is None:
                await self._send({"id": id, **self._without_record(method)})
                return
            meta = params.get("_meta")
            token = meta.get("progressToken") if isinstance(meta, dict) else None
            for message in call.before:
                await self._said(message, call, id, token)
            if call.answer is not None:
                await self._send({"id": id, **call.answer})
        except _ENDINGS:
            return

    def _found(self, method: str, params: dict[str, Any]) -> RecordedCall | None:
        key = _key(method, params)
        calls = self._calls.get(key)
        if not calls:
            return None
        number = self._asked[key]
        self._asked[key] += 1
        return calls[min(number, len(calls) - 1)]

    def _without_record(self, method: str) -> dict[str, Any]:
        if method in _EMPTY:
            return {"result": {}}
        if len(self._unknown) < 1000:
            self._unknown.append(method)
        if method in HANDSHAKES:
            return {"error": {"code": -32601, "message": f"method not found: {method}"}}
        text = f"the recording has no {method} with these params"
        return {"error": {"code": INVALID_PARAMS, "message": text, "data": {"reason": "not_recorded"}}}

    async def _said(
        self, message: dict[str, Any], call: RecordedCall, id: int | str, token: int | str | None
    ) -> None:
        """Sends what the server had sent about a call, with the ids of this one."""
        params = dict(message.get("params") or {})
        if "progressToken" in params:
            if token is None:
                return
            params["progressToken"] = token
        meta = params.get("_meta")
        if isinstance(meta, dict) and _SUBSCRIPTION in meta:
            params["_meta"] = {**meta, _SUBSCRIPTION: id}
        said = {"method": message["method"], "params": params}
        if "id" not in message:
            await self._send(said, about=id)
            return
        question = f"mock-{id}-{message['id']}"
        answered = self._questions[question] = trio.Event()
        try:
            await self._send({"id": question, **said}, about=id)
            await answered.wait()
        finally:
            self._questions.pop(question, None)

    async def _send(self, message: dict[str, Any], about: int | str | None = None) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
        id = message.get("id")
        is_answer = "method" not in message and isinstance(id, int | str)
        await self._channel.send(
            Frame(data.encode("utf-8", "surrogatepass"), about=id if is_answer else about, last=is_answer)
        )
