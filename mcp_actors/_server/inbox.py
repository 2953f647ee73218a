"""The link between the function of a call that runs and its client: the parts that it reads, the messages it sends.

A client asks for the link by the member `STREAMS` of a call's ``_meta``, with a token that only it knows. The extension
(SEP-2133) has one notification, which brings a part, and two requests of the client, which name the call by the token:
one says what was read, the other one brings a message. All of it belongs to the one call, and ends with it.

What has not been read is bounded by the window of the client, in bytes, so that a function waits for a slow reader
while its connection serves other calls. A part that is longer than the window goes alone.

==========================================  ======================================================================
a message to a call                         what becomes of it
==========================================  ======================================================================
the function runs, or waits for its place   it is kept for ``ctx.inbox``, in the order of arrival
the call has ended, or is another caller's  `CallEnded`
there are `MOST_MESSAGES`, or they weigh    `Overloaded`: clients of this engine send it again after a while
`MOST_MESSAGE_BYTES`
==========================================  ======================================================================
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.outbound_call import WaitingTasks
from mcp_actors._eras.era import PARTIAL_RESULT, STREAMS
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import Overloaded

__all__ = ["MOST_MESSAGES", "MOST_MESSAGE_BYTES", "MOST_UNREAD", "CallLink", "Inbox", "SyncInbox", "token_of"]


MOST_UNREAD = 256 * 1024
"""Bytes of parts that a client may not have read before the function waits: clients may ask for less."""
MOST_MESSAGES = 256
"""Messages that wait for the function of one call: a person or a model steers it, and does not feed it."""
MOST_MESSAGE_BYTES = 1024 * 1024
"""Bytes of these messages, as JSON."""
LONGEST_TOKEN = 128
# Seconds after which a client may send a message again for which there was no room.
RETRY_AFTER = 0.5


def token_of(call: InboundCall) -> str | None:
    """Returns the token by which the client of a call names it, ``None`` if it asks for no link."""
    asked = call.invocation.meta.get(STREAMS)
    token = asked.get("token") if isinstance(asked, dict) else None
    return token if isinstance(token, str) and 0 < len(token) <= LONGEST_TOKEN else None


class CallLink:
    """The link of one call; made when something is first sent in either direction.

    Args:
        call: The call, whose client has asked for it.
        token: The token of the client.
    """

    def __init__(self, call: InboundCall, token: str) -> None:
        self._call = call
        self._token = token
        window = call.invocation.meta[STREAMS].get("window")
        # A client that says nothing of a window says nothing of what it has read either.
        self._window = min(window, MOST_UNREAD) if type(window) is int and window > 0 else None
        self._number = 0
        self._unread: deque[tuple[int, int]] = deque()
        self._unread_bytes = 0
        self._waiting = WaitingTasks()
        self.inbox = Inbox()
        self.forward: Callable[[Any], Awaitable[None]] | None = None
        """Takes messages in place of the inbox: that of a call which is made at another server."""

    def __repr__(self) -> str:
        return f"<CallLink of {self._call!r}, {self._number} parts, {self._unread_bytes} bytes unread>"

    @classmethod
    def of(cls, call: InboundCall) -> CallLink | None:
        """Returns that of a call, ``None`` if its client asks for none.

        A call whose client has an answer already, such as a task, has none: its request is over.
        """
        if call.link is None and call.client_link is None and (token := token_of(call)) is not None:
            call.link = cls(call, token)
        link: CallLink | None = call.link
        return link

    async def send(self, part: dict[str, Any], size: int) -> None:
        """Sends a part, and waits until the client has read so much that another one may follow.

        Cancelled, the part may have been sent.

        Args:
            part: Its ``content`` or ``structuredContent``.
            size: Its bytes as JSON.

        Raises:
            LocalProtocolError: It is longer than the connection carries.
            trio.BrokenResourceError: The client cannot be reached any more.
        """
        number, self._number = self._number, self._number + 1
        if self._window is not None:
            self._unread.append((number, size))
            self._unread_bytes += size
        params = {"partialResultToken": self._token, "seq": number, **part}
        await self._call.notify(PARTIAL_RESULT, params)
        while self._window is not None and self._unread_bytes >= self._window:
            await self._waiting.park()

    @property
    def sent(self) -> int:
        """The number of parts that the client has been sent."""
        return self._number

    def go_on_at(self, number: int) -> None:
        """The client has had so many parts already, by requests before this one."""
        self._number = max(self._number, number)

    def let_go(self) -> None:
        """The request is over, so that the client says no more what it has read: nothing waits for that any longer."""
        self._window = None
        self._waiting.unpark_all()

    def has_read(self, number: int) -> None:
        """Takes note that the client has read a part and those before it."""
        while self._unread and self._unread[0][0] <= number:
            self._unread_bytes -= self._unread.popleft()[1]
        self._waiting.unpark_all()


class Inbox:
    """The messages of the client to the function of a call, as an async iterator of JSON values: ``ctx.inbox``.

    They come in the order in which they were sent. The iteration waits for the next one. It has no end but that of the
    call, which cancels it, unless the client can send nothing: then it ends at once.

    Args:
        is_open: Whether the client can send messages.
        on_taken: Is called for each message that the function takes. It must not wait.
    """

    def __init__(self, *, is_open: bool = True, on_taken: Callable[[], None] | None = None) -> None:
        self._is_open = is_open
        self._on_taken = on_taken
        self._messages: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._waiting = WaitingTasks()

    def __repr__(self) -> str:
        return f"<Inbox {'open' if self._is_open else 'closed'}, {len(self._messages)} messages>"

    @property
    def is_open(self) -> bool:
        """Whether the client can send messages to this call."""
        return self._is_open

    def put(self, message: Any) -> None:
        """Takes a message, for the engine. Never waits; raises `Overloaded` if there is no room for it."""
        size = self.check_room(len(self._messages), self._bytes, message)
        self._messages.append((message, size))
        self._bytes += size
        self._waiting.unpark()

    @staticmethod
    def check_room(waiting: int, waiting_bytes: int, message: Any) -> int:
        """Returns the bytes of a message; raises `Overloaded` if so many messages wait that there is no room for it."""
        size = len(encode_value(message))
        if waiting >= MOST_MESSAGES:
            raise Overloaded.for_caller("messages to one call", MOST_MESSAGES, RETRY_AFTER)
        if waiting and waiting_bytes + size > MOST_MESSAGE_BYTES:
            raise Overloaded.for_caller("bytes of messages to one call", MOST_MESSAGE_BYTES, RETRY_AFTER)
        return size

    def take_all(self) -> list[Any]:
        """Returns the messages that are there, without waiting: for a function that looks between its steps."""
        return [self._take() for _ in range(len(self._messages))]

    async def next_many(self) -> list[Any]:
        """Waits for the next message and returns it in a list, which is empty at the end; always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self._messages:
            if not self._is_open:
                return []
            await self._waiting.park()
        return [self._take()]

    def _take(self) -> Any:
        message, size = self._messages.popleft()
        self._bytes -= size
        if self._on_taken is not None:
            self._on_taken()
        return message

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Any:
        for message in await self.next_many():
            return message
        raise StopAsyncIteration


class SyncInbox:
    """The `Inbox` of a function in a worker thread, where it is iterated over by ``for``, or in an asyncio loop.

    Args:
        inbox: The one of the call.
        wait: Waits in a thread for an async function of the engine; in an asyncio loop it returns an awaitable.
    """

    def __init__(self, inbox: Inbox, wait: Callable[[Callable[..., Awaitable[Any]]], Any]) -> None:
        self._inbox = inbox
        self._wait = wait

    def __repr__(self) -> str:
        return f"<SyncInbox of {self._inbox!r}>"

    @property
    def is_open(self) -> bool:
        """Whether the client can send messages to this call."""
        return self._inbox.is_open

    def take_all(self) -> Any:
        """Returns the messages that are there; see `Inbox.take_all`. In an asyncio loop it is awaited."""
        return self._wait(self._take_all)

    async def _take_all(self) -> list[Any]:
        return self._inbox.take_all()

    def __iter__(self) -> SyncInbox:
        return self

    def __next__(self) -> Any:
        for message in self._wait(self._inbox.next_many):
            return message
        raise StopIteration

    def __aiter__(self) -> SyncInbox:
        return self

    async def __anext__(self) -> Any:
        for message in await self._wait(self._inbox.next_many):
            return message
        raise StopAsyncIteration
