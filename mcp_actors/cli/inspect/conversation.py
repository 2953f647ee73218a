"""Conversations with a server below the client: each message exactly as a rule wants it, and all that comes back.

An answer is a value of which nothing is trusted, and `Record` has all answers of an inspection within its bounds.
`StreamConversation` speaks over a channel of any binding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs
import trio

from mcp_actors._eras.era import Era
from mcp_actors._wire.codec import decode_text, encode_value
from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.errors import METHOD_NOT_FOUND, MalformedMessage, McpError
from mcp_actors.supervision.printable import printable

__all__ = [
    "CLIENT_INFO",
    "Bounds",
    "Conversation",
    "Enough",
    "Headers",
    "InspectionEnded",
    "Malformed",
    "Record",
    "ServerAnswer",
    "StreamConversation",
    "is_id",
    "is_reply",
    "make_meta",
    "notification_message",
    "read_messages",
    "request_message",
    "same_id",
    "shown",
]


# -- Answers -------------------------------------------------------------------------------------------

# Characters of a peer's text that a report shows.
SHOWN = 120


def shown(value: object) -> str:
    """Returns a value of a peer for a report: cut, and without characters that do something to a terminal."""
    text = value if isinstance(value, str) else repr(value)
    cut = printable(text, SHOWN + 1)
    quoted = cut if len(cut) <= SHOWN else f"{cut[:SHOWN]}…"
    return f'"{quoted}"' if isinstance(value, str) else quoted


def is_id(value: object) -> bool:
    """Whether a value can be the id of a request: a string or an integer, and never null."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


@attrs.frozen
class Malformed:
    """A frame that is not a JSON-RPC message, with the reason and its beginning."""

    reason: str
    start: str


def read_messages(data: bytes) -> list[dict[str, Any] | Malformed]:
    """Decodes one frame, or the entries of a batch. Never raises."""
    start = shown(data[:200].decode("utf-8", "replace"))
    try:
        value = decode_text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return [Malformed(f"invalid UTF-8 at byte {error.start}", start)]
    except MalformedMessage as error:
        return [Malformed(str(error), start)]
    entries: Iterable[Any] = value if isinstance(value, list) else (value,)
    return [
        each if isinstance(each, dict) else Malformed("JSON that is no object", start) for each in entries
    ]


@attrs.frozen(kw_only=True)
class ServerAnswer:
    """All that came until a request was answered, or was no longer waited for."""

    era: str
    method: str
    id: int | str | None = None
    """The id of our request; ``None`` for any other message."""
    messages: tuple[dict[str, Any], ...] = ()
    """Every message that came, the reply included."""
    malformed: tuple[Malformed, ...] = ()
    reply: Mapping[str, Any] | None = None
    """The result or error that has our id, or an error without any id where the binding says whose it is."""
    gone: str | None = None
    """The reason for a missing reply: a timeout, or the end of the connection."""
    seconds: float = 0.0
    size: int = 0
    """Bytes of the frames that came."""
    status: int | None = None
    """The HTTP status; ``None`` for a binding without."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    streamed: bool = False
    """Whether the response was a stream of events."""
    ended: bool = True
    """Whether the HTTP response came to its end by itself."""
    asked: Mapping[str, Any] = attrs.field(factory=dict)
    """The ``_meta`` that our request carried."""

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, if there is one and it is an object."""
        found = None if self.reply is None else self.reply.get("result")
        return found if isinstance(found, dict) else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error, if there is one and it is an object."""
        found = None if self.reply is None else self.reply.get("error")
        return found if isinstance(found, dict) else None

    @property
    def code(self) -> int | None:
        """The code of the error, if it is an integer."""
        found = (self.error or {}).get("code")
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def media_type(self) -> str:
        """The media type of the HTTP response, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def summary(self) -> str:
        """Returns in a few words what was answered, for findings."""
        status = "" if self.status is None else f"HTTP {self.status}"
        if self.error is not None:
            said = f"error {shown(self.error.get('code'))} {shown(self.error.get('message'))}"
        elif self.result is not None:
            said = "a result"
        elif self.reply is not None:
            said = "a response that is neither a result nor an error"
        elif self.status is not None and self.gone is None:
            said = f"no JSON-RPC response ({self.media_type or 'no media type'})"
        else:
            came = f"; what came is no message: {self.malformed[0].reason}" if self.malformed else ""
            said = f"no answer ({self.gone or 'nothing came'}{came})"
        return f"{status} with {said}" if status else said


# -- The record of one inspection: every answer, the ids that were used, and the bounds ----------------


@attrs.frozen(kw_only=True)
class Bounds:
    """The bounds of one inspection."""

    answer_time: float = 10.0
    """Seconds that a server has for one answer."""
    raw_time: float = 3.0
    """Seconds that it has where it may rightly stay silent: after a malformed message or a batch."""
    total_time: float = 180.0
    """Seconds for everything; rules that were not reached by then are reported as not checked."""
    total_bytes: int = 32 * 1024 * 1024
    """Bytes that are read of a server, all answers together: decoded they take ten times as much."""
    messages: int = 1000
    """Messages that are read until one request is answered."""
    pages: int = 50
    """Pages of one list."""
    items: int = 5000
    """Items of one list."""
    connections: int = 40
    """Connections, and over stdio processes, that are opened."""


class InspectionEnded(McpError):
    """A bound of the inspection was reached, or the server is gone; what is left is not checked."""


class Record:
    """The answers of one inspection, and what it has used up.

    Args:
        bounds: The bounds of the inspection.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.answers: list[ServerAnswer] = []
        self.bytes = 0
        self.connections = 0
        self.was_reached = False
        """Whether there was a connection to the server, by HTTP."""
        self._ids = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Record {len(self.answers)} answers, {self.bytes} bytes, {self.connections} connections>"

    def next_id(self) -> int:
        """Returns an id that no request of this inspection had before."""
        return next(self._ids)

    def count_connection(self) -> None:
        """Counts a connection that is about to be opened.

        Raises:
            InspectionEnded: There were as many as the bounds allow.
        """
        if self.connections >= self.bounds.connections:
            raise InspectionEnded(f"{self.connections} connections were opened, and no more are")
        self.connections += 1

    def add(self, answer: ServerAnswer, *, keep: bool = True) -> ServerAnswer:
        """Counts an answer, keeps it for the rules that look at all of them, and returns it.

        Raises:
            InspectionEnded: The server has sent as many bytes as the bounds allow.
        """
        if keep:
            self.answers.append(answer)
        self.count(answer.size)
        return answer

    def count(self, size: int) -> None:
        """Counts bytes that came.

        Raises:
            InspectionEnded: The server has sent as many bytes as the bounds allow.
        """
        self.bytes += size
        if self.bytes > self.bounds.total_bytes:
            raise InspectionEnded(f"the server has sent {self.bytes} bytes, and no more are read")

    def of(self, era: str) -> list[ServerAnswer]:
        """Returns the answers of one era."""
        return [each for each in self.answers if each.era == era]


# -- Conversations -------------------------------------------------------------------------------------

CLIENT_INFO = {"name": "mcp-actors inspect", "version": "1"}

Enough = Callable[[dict[str, Any]], bool]
"""Whether a message ends the wait, as the reply does."""
Headers = Mapping[str, str | None]
"""Headers to be sent in place of the right ones; ``None`` leaves one out."""


def make_meta(era: Era, log_level: str | None = None) -> dict[str, Any]:
    """Returns the ``_meta`` of a request as the era wants it; empty where sessions exist."""
    return era.client.request_meta(era.version, {}, CLIENT_INFO, log_level)


class Conversation(Protocol):
    """One conversation in one revision. It sends whatever a rule hands it, right or wrong."""

    era: Era
    is_http: bool

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can be sent."""

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        enough: Enough | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """Sends a request and waits for its answer.

        Args:
            method: The method.
            params: The params without ``_meta``.
            id: The id; by default one that was never used.
            meta: The ``_meta``; by default what the revision wants.
            headers: Headers, over HTTP, in place of the right ones.
            enough: Ends the wait with another message than the reply.
            keep: Whether the answer is kept for the rules that look at all of them.

        Raises:
            InspectionEnded: A bound of the inspection was reached.
            AuthorizationError: A login is needed.
        """

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> ServerAnswer:
        """Sends a notification. Over HTTP the answer is the response to it; over a channel none has come yet."""

    async def send(self, data: bytes, wait_for: tuple[int | str, ...] = ()) -> ServerAnswer:
        """Sends bytes as they are, and waits for the answers with these ids, or without ids for the first message."""


def request_message(era: Era, id: int | str, method: str, params: Any, meta: Mapping[str, Any] | None) -> Any:
    """Returns a request; ``meta`` takes the place of what the revision wants."""
    own = make_meta(era) if meta is None else dict(meta)
    body = {**(params or {}), **({"_meta": own} if own else {})}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    return {**message, "params": body} if body else message


def notification_message(era: Era, method: str, params: Mapping[str, Any] | None) -> Any:
    """Returns a notification."""
    own = make_meta(era)
    body = {**(params or {}), **({"_meta": own} if own else {})}
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return {**message, "params": body} if body else message


def same_id(one: object, other: object) -> bool:
    """Whether two ids are one, with the same JSON type."""
    return type(one) is type(other) and one == other


def is_reply(message: Mapping[str, Any]) -> bool:
    """Whether a message is a response."""
    return "method" not in message


class StreamConversation:
    """A conversation over a channel, which one task uses.

    Args:
        channel: The open channel.
        era: The revision that is spoken.
        record: Takes all answers.
    """

    is_http = False

    def __init__(self, channel: FrameChannel, era: Era, record: Record) -> None:
        self.era = era
        self.channel = channel
        self._record = record
        self._waiting: list[Frame] = []
        self._gone: str | None = None

    def __repr__(self) -> str:
        return f"<StreamConversation {self.channel.peer} in {self.era.version}>"

    @property
    def has_ended(self) -> bool:
        """See `Conversation.has_ended`."""
        return self._gone is not None

    def give_up(self) -> None:
        """Stops using the channel: the server does not answer here."""
        self._gone = self._gone or "the server no longer answers here"

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        enough: Enough | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """See `Conversation.ask`. Headers do not exist here."""
        own = self._record.next_id() if id is None else id
        message = request_message(self.era, own, method, params, meta)
        frame = Frame(encode_value(message), method=method, request=own)
        return await self._exchange(
            frame, method, (own,), enough, message.get("params", {}).get("_meta", {}), keep
        )

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> ServerAnswer:
        """See `Conversation.notify`."""
        await self._send(Frame(encode_value(notification_message(self.era, method, params)), method=method))
        return ServerAnswer(era=self.era.name, method=method, gone=self._gone)

    async def send(self, data: bytes, wait_for: tuple[int | str, ...] = ()) -> ServerAnswer:
        """See `Conversation.send`."""
        enough = None if wait_for else is_reply
        return await self._exchange(Frame(data), "", wait_for, enough, {}, True)

    async def send_message(self, message: Mapping[str, Any], method: str, id: int | str) -> None:
        """Sends a request and does not wait for its answer, which `next_messages` returns."""
        await self._send(Frame(encode_value(message), method=method, request=id))

    async def next_messages(self, deadline: float) -> list[dict[str, Any]]:
        """Returns the messages of the next frame; none if the connection ended, or none came in time.

        Args:
            deadline: A time of Trio's clock; a server has the time for one answer beyond it.
        """
        found: list[dict[str, Any]] = []
        with trio.move_on_at(deadline + self._record.bounds.answer_time):
            frame = await self._receive()
            if frame is not None and frame.data:
                self._record.count(len(frame.data))
                for message in read_messages(frame.data):
                    if not isinstance(message, Malformed):
                        await self._answer_question(message)
                        found.append(message)
        return found

    async def _send(self, frame: Frame) -> None:
        if self._gone is None:
            try:
                with trio.move_on_after(self._record.bounds.answer_time) as scope:
                    await self.channel.send(frame)
                if scope.cancelled_caught:
                    # A frame may be torn, so that nothing can follow it.
                    self._gone = "the server reads nothing"
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._gone = self._ending(error)

    def _ending(self, error: Exception) -> str:
        report = self.channel.loss_report()
        code = report.get("exit_code")
        exited = "" if code is None else f", exit code {code}"
        cause = str(error.__cause__ or error) or "it was closed"
        return f"the connection ended: {shown(cause)}{exited}"

    async def _exchange(
        self,
        frame: Frame,
        method: str,
        ids: tuple[int | str, ...],
        enough: Enough | None,
        meta: Mapping[str, Any],
        keep: bool,
    ) -> ServerAnswer:
        start, size, gone = trio.current_time(), 0, None
        messages: list[dict[str, Any]] = []
        malformed: list[Malformed] = []
        left = list(ids)
        reply: dict[str, Any] | None = None
        await self._send(frame)
        bounds = self._record.bounds
        patience = bounds.answer_time if method else min(bounds.raw_time, bounds.answer_time)
        with trio.move_on_after(patience) as scope:
            done = False
            while not done and self._gone is None and gone is None:
                each = await self._receive()
                if each is None:
                    break
                size += len(each.data)
                if isinstance(each, NoAnswer) and (each.about in left or each.about is None):
                    gone = shown(str(each.reason))
                for message in read_messages(each.data) if each.data else ():
                    if isinstance(message, Malformed):
                        malformed.append(message)
                        continue
                    messages.append(message)
                    await self._answer_question(message)
                    mine = next((own for own in left if same_id(own, message.get("id"))), None)
                    if mine is not None and is_reply(message):
                        left.remove(mine)
                        reply = message
                    done = done or (not left and bool(ids)) or (enough is not None and enough(message))
                if len(messages) + len(malformed) >= self._record.bounds.messages:
                    gone = f"{len(messages)} messages came, and no answer was among them"
        if scope.cancelled_caught:
            gone = f"no answer within {patience:g} s"
        return self._record.add(
            ServerAnswer(
                era=self.era.name,
                method=method,
                id=ids[0] if ids else None,
                messages=tuple(messages),
                malformed=tuple(malformed),
                reply=reply,
                gone=None if reply is not None else gone or self._gone,
                seconds=trio.current_time() - start,
                size=size,
                asked=meta,
            ),
            keep=keep,
        )

    async def _receive(self) -> Frame | None:
        if not self._waiting:
            try:
                self._waiting = (await self.channel.receive_many())[::-1]
            except trio.EndOfChannel:
                self._gone = self._ending(ConnectionError("the server ended it"))
                return None
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._gone = self._ending(error)
                return None
        return self._waiting.pop()

    async def _answer_question(self, message: Mapping[str, Any]) -> None:
        """Answers a request of the server, so that it need not wait: a ping as the protocol wants, others by -32601."""
        id = message.get("id")
        if "method" not in message or not is_id(id) or self.era.asks_by_retry:
            return
        if message["method"] == "ping":
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "result": {}}
        else:
            error = {"code": METHOD_NOT_FOUND, "message": "this client has no such capability"}
            answer = {"jsonrpc": "2.0", "id": id, "error": error}
        await self._send(Frame(encode_value(answer)))
