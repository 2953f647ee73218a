"""A conversation over a channel, of any binding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mcp_actors._eras.era import Era
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.errors import METHOD_NOT_FOUND
from mcp_actors.inspection.answers import Malformed, ServerAnswer, is_id, read_messages, shown
from mcp_actors.inspection.conversation import (
    Enough,
    Headers,
    is_reply,
    notification_message,
    request_message,
    same_id,
)
from mcp_actors.inspection.record import Record

__all__ = ["StreamConversation"]


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
        """Uses the channel no more: the server does not answer here."""
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
