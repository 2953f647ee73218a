"""The contracts that a transport fulfils; everything above this file is the same for all of them.

A *connection binding* gives both sides a `FrameChannel`: a two-way channel of encoded messages. A server binding is
shaped like :func:`trio.serve_tcp`; a client binding is opened with ``async with``.

An *exchange binding* is one in which a request travels with its answer, as in HTTP. Its server side has everything
that arrives sorted (`ServerHandler.sort`), then runs it as an exchange of its own (`ServerHandler.exchange`: the task
that awaits it is the call) or delivers it to the session it belongs to (`ServerSession.deliver`). What is to be sent
comes out of the `Outlet` that the binding gave along. No binding parses JSON.

The three endings, and no other exception, come out of a channel:

=============================== =====================================================================
`trio.ClosedResourceError`      we closed it
`trio.BrokenResourceError`      the connection broke; nothing can be sent any more. It is a `NothingSent` if
                                no byte of what was to be sent has left. If its ``__cause__`` is a
                                `~mcp_actors.errors.RemoteProtocolError`, the peer broke the framing: one
                                last message may still be sent to it. If it is a `SessionExpired`, a
                                `NoAnswer` came before it for every request that may have been run
`trio.EndOfChannel`             (receiving only) the peer ended cleanly: it sends no more, but may read
=============================== =====================================================================

Cancelling ``receive`` or ``receive_many`` loses nothing. Cancelling ``send`` or ``send_many`` may leave the frame
sent, not sent or torn, so only a link's writer calls them, and it never goes on after it was cancelled: a torn frame is
the last thing that the peer sees.

`mcp_actors.testing.check_transport` checks a binding against every rule of this file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import trio

from mcp_actors.abc.shared import OpenState
from mcp_actors.errors import McpError
from mcp_actors.supervision.principal import Principal

__all__ = [
    "Arrival",
    "ClientTransport",
    "Companion",
    "ConnectionHandler",
    "Frame",
    "FrameChannel",
    "HttpRequest",
    "NewAccess",
    "NoAnswer",
    "NothingSent",
    "NotificationsMissed",
    "Outlet",
    "RequestId",
    "ServerHandler",
    "ServerSession",
    "ServerTransport",
    "SessionOutlet",
    "StopPart",
    "Waiting",
]


# -- a request over HTTP as the program behind a binding sees it ---------------------------------------------------


class HttpRequest(Protocol):
    """The HTTP request that brought a message or opened a connection.

    Nothing of it but ``principal`` is authenticated by being here.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names, and values as they came."""

    @property
    def peer(self) -> str:
        """The address that it came from, ``"127.0.0.1:4711"`` or ``"unix"``; behind a proxy, that of the proxy."""

    @property
    def path(self) -> str:
        """The path of its target."""

    @property
    def query(self) -> str:
        """The part of its target after ``?``; empty without one."""

    @property
    def version(self) -> str:
        """The version of HTTP, such as ``"1.1"``."""

    @property
    def principal(self) -> Principal | None:
        """The caller that the binding authenticated, with the scopes of the latest token it showed for this."""


# -- the units that cross a channel: encoded messages, with what a binding may need to place them ------------------

RequestId = int | str
"""The id of a JSON-RPC request, with its JSON type: ``"1"`` is not ``1``, and MCP does not allow null."""


class Frame(msgspec.Struct, gc=False):
    """One encoded JSON-RPC message (or batch) and what a binding may need to place it.

    ``data`` holds no newline. ``metadata`` is what the protocol mirrors outside the body, under the lower-case names of
    HTTP headers; bindings that carry nothing but bodies ignore it. The rest is set on frames that the engine sends:

    - ``about`` is the id of the inbound request that the message belongs to, and ``last`` is true for the message that
      ends that request;
    - ``method`` is the method of a request or notification, and ``request`` the id of a request;
    - ``cancels`` is the id of the request of ours that a ``notifications/cancelled`` takes back;
    - ``refusal`` is the error code of an answer to what could not be served as it is, for bindings that tell that
      by a status of their own too, and ``scopes`` are those that its caller needs, for bindings with challenges.

    On a frame that a client's channel yields, ``about`` is the request of ours that it answers, where the binding
    knows: an error without an id finds its way by it.
    """

    data: bytes
    about: RequestId | None = None
    last: bool = False
    metadata: Mapping[str, str] | None = None
    method: str | None = None
    request: RequestId | None = None
    cancels: RequestId | None = None
    refusal: int | None = None
    scopes: frozenset[str] | None = None


class NoAnswer(Frame, gc=True):
    """The reason why the request of ours with the id ``about`` gets no answer; a channel yields it among its frames.

    For bindings in which one request can fail while the connection goes on. ``data`` is empty.
    """

    reason: McpError | None = None


class Waiting(Frame):
    """A person is asked, to log in, say, before requests of ours can go on; with ``over``, that has ended somehow.

    A client's channel that has to wait for people yields both, and bounds the wait. In between no clock of our calls
    runs, nor of the handshake: neither the server nor the connection is slow. ``data`` is empty.
    """

    over: bool = False


class NewAccess(Frame):
    """Requests of ours are made for another caller from now on, or with other scopes: the lists may be different ones.

    A client's channel yields it when a server has accepted the first request with the new access. ``data`` is empty.
    """


class NotificationsMissed(Frame, gc=True):
    """Notifications that belong to no request may have been lost before this: what they announced is unknown.

    A client's channel yields it where the connection goes on, and the stream of such notifications does not begin where
    it ended: once the stream is open again, and with ``first`` if it was not open before. With ``reason`` there is
    no stream, which that explains, and none will be opened until another such frame comes. ``data`` is empty.
    """

    first: bool = False
    reason: McpError | None = None


class NothingSent(trio.BrokenResourceError):
    """The connection was broken before anything of what was to be sent has left, so no request in it was ever run.

    A channel that knows this raises it from ``send``, ``send_many`` and ``write_now``, and its base class otherwise.
    """


class FrameChannel(trio.abc.Channel[Frame]):
    """A two-way channel of frames; see the module's docstring for its endings.

    A binding must give ``send``, ``receive`` and ``aclose``. The others have defaults that are right but not the
    fastest; a binding overrides them when it can do better.
    """

    @abstractmethod
    async def send(self, value: Frame) -> None:
        """Sends one frame, waiting while the peer takes no more. Cancelled, it may have sent a part of the frame.

        Raises:
            trio.ClosedResourceError: We closed the channel.
            trio.BrokenResourceError: The connection broke.
        """

    @abstractmethod
    async def receive(self) -> Frame:
        """Waits for one frame. Cancelled, it has lost nothing.

        Raises:
            trio.EndOfChannel: The peer ended cleanly.
            trio.ClosedResourceError: We closed the channel.
            trio.BrokenResourceError: The connection broke, or the peer broke the framing.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Closes both directions at once. Legal from any task, any number of times, also while others wait here.

        What was sent before it, the peer receives before the end.
        """

    async def receive_many(self) -> list[Frame]:
        """Returns one or more frames, some hundred at most; always a checkpoint, so that others have their turn."""
        return [await self.receive()]

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order, as one burst where the binding can; raises as `send` does."""
        for frame in frames:
            await self.send(frame)

    def send_nowait(self, frame: Frame) -> None:
        """Hands one frame over without waiting and without a system call, or raises `trio.WouldBlock`.

        Only channels for which this is cheaper than a wake-up of the writer task override it: those in memory, and
        those that start a task for each frame.
        """
        raise trio.WouldBlock

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Lets a channel give what arrives to ``take`` at once, while nothing waits to be received before it.

        ``take`` never waits, and returns whether it took the frame; one that it did not take is received as before.
        Called only while a task waits in `receive_many`, which this saves a task switch. A burst of frames is better
        received, because its answers leave as one. The default never delivers.
        """

    def write_now(self, frame: Frame) -> bool:
        """Sends one frame without waiting, all of it or nothing, and returns whether it did.

        By one system call, or because a peer in this process takes it. Used when nothing else is on its way, to save
        the wake-up of the writer task. A channel that cannot promise all or nothing keeps this default, as does one
        that is closed: sending finds that out.

        Raises:
            NothingSent: The connection turns out to be broken. Sending raises that too, with the reason.
        """
        return False

    async def wait_until_read(self) -> bool:
        """Waits until the peer's program has read all that was sent before, and returns true; false without waiting if
        the binding cannot tell.

        The engine bounds the wait by cancelling it, and may wait here in many tasks at once. The caller waits a fixed
        time where this returns false, which is the default.
        """
        return False

    @property
    def max_message_bytes(self) -> int | None:
        """The longest message this channel carries, in either direction; ``None`` if it does not measure.

        The engine never sends a longer one: the code that made it gets an error instead. A longer one that arrives
        breaks the channel, with a `~mcp_actors.errors.RemoteProtocolError` as the cause.
        """
        return None

    def settled(self, request: RequestId) -> None:
        """Takes note that a request of ours was answered, has failed or was given up. Must not wait.

        The user of a channel calls this for every request, once or more: a binding with a stream for each request
        learns by it that it need not open the stream again to get the answer.
        """

    @property
    def mirrors(self) -> bool:
        """Whether ``Frame.metadata`` reaches the peer; if not, none need be made for it."""
        return False

    @property
    def sessions_only(self) -> bool:
        """Whether the binding exists in the revisions with sessions only, so that a server answers no others here."""
        return False

    @property
    def keeps_session(self) -> bool:
        """Whether the server may remember something from one request to the next, in a revision that has sessions.

        On a connection it may; over HTTP it does not, unless it has given the session an id.
        """
        return True

    @property
    def needs_pings(self) -> bool:
        """Whether the peer can be gone without the channel noticing, so that clients ask an idle one now and then."""
        return False

    @property
    def peer(self) -> str:
        """The other end, for logs and ``repr``: an address, a command, ``"memory"``."""
        return type(self).__name__

    @property
    def http_request(self) -> HttpRequest | None:
        """The request that opened the connection, on the server's side of a binding over HTTP."""
        return None

    def loss_report(self) -> Mapping[str, Any]:
        """Returns what is known about the reason why the channel ended.

        ``exit_code`` and ``stderr`` (lines) are those of a child process, ``close_reason`` is that of a peer.
        ``has_read`` is false where it is known that the peer has read nothing of what was sent.
        """
        return {}


ConnectionHandler = Callable[[FrameChannel], Awaitable[None]]
"""What a transport calls with the channel of each connection; it returns when the conversation is over."""


class Outlet(Protocol):
    """The destination of frames about an arrival; an exchange binding gives it together with that.

    Frames come in order, and after a ``last`` one none about the same request. Raises `trio.BrokenResourceError` when
    the peer cannot be reached any more. An outlet of a binding over HTTP has one more attribute, ``http_request``: the
    `HttpRequest` that brought the arrival. That of a session has ``protocol``, which is ``"http"``.
    """

    @property
    def longest(self) -> int:
        """Bytes of the longest frame that can go there."""

    def post(self, frame: Frame) -> None:
        """Takes a frame without waiting, even when there is no room: for messages that must always be sent."""

    def send_nowait(self, frame: Frame) -> bool:
        """Takes a frame if there is room, and returns whether there was."""

    async def send(self, frame: Frame) -> None:
        """Takes a frame, waiting for room, so that a call is not faster than its peer reads."""

    def settle(self) -> None:
        """Takes note that a request ended without an answer, because it was cancelled."""

    def close_stream(self) -> None:
        """Closes the peer's stream if the peer can open it again to get the rest; else nothing happens."""


@runtime_checkable
class SessionOutlet(Protocol):
    """An outlet of `ServerHandler.open_session` whose binding can be asked to end the session."""

    def end_session(self) -> None:
        """Ends the session, as the binding does when its client ends it. Must not wait."""


class Arrival(Protocol):
    """Messages that arrived together, decoded and sorted; made by `ServerHandler.sort`."""

    @property
    def era(self) -> Literal["legacy", "modern"]:
        """Whether sessions exist for these messages."""

    @property
    def stateless(self) -> bool:
        """Whether each of these messages is complete by itself, so that no session can be named for it."""

    @property
    def requests(self) -> int:
        """The number of these messages that need an answer."""

    @property
    def initializes(self) -> bool:
        """Whether it asks for a session to begin."""

    @property
    def refusal(self) -> Frame | None:
        """The answer to what cannot be served at all; nothing else may be done with this arrival then."""


class ServerSession(Protocol):
    """A session that no connection carries. It costs no task while nothing happens.

    It exists, but is of no use, until an ``initialize`` was delivered and answered with a result.
    """

    @property
    def initialized(self) -> bool:
        """Whether client and server have agreed on a revision."""

    @property
    def busy(self) -> bool:
        """Whether a call or a question to the client is in flight."""

    @property
    def resumes(self) -> bool:
        """Whether clients of its revision come back by themselves for a stream that was closed under them."""

    def deliver(self, arrival: Arrival, outlet: Outlet) -> None:
        """Takes what a client sent; answers, now or later, go to ``outlet``. Never waits."""

    def close(self) -> None:
        """Ends the session: its calls are cancelled and nothing more is sent. Legal any number of times."""


class ServerHandler(Protocol):
    """The server's side of a transport: `ServerTransport.serve` passes it everything that arrives."""

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        """Runs a connection to its end and closes it.

        Args:
            channel: The connection.
            principal: The caller, if the binding has authenticated it.
        """

    def sort(self, frame: Frame, *, in_session: bool = False) -> Arrival:
        """Decodes what arrived and finds out which era it belongs to; ``in_session`` says that it named a session."""

    def scopes_needed(self, arrival: Arrival) -> frozenset[str]:
        """Returns all scopes that a caller needs for what arrived, so that a binding can refuse it with a status.

        The engine checks the same before it calls a function, for bindings that have no status.
        """

    async def exchange(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        """Runs what arrived by itself, outside of any session. Returns when the last frame was given to ``outlet``.

        The task that awaits this is the call: cancelled, its handler sees `trio.Cancelled` and nothing more is sent.
        ``peer`` is the address of the client, if the binding knows it: what one address may hold is limited (see
        `mcp_actors.supervision.budget.holder_of`), unless there is a ``principal``.
        """

    def begin(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> Callable[[], None] | None:
        """As `exchange`, for requests, in a task of the engine: for bindings whose own tasks have to read on.

        Never waits. Returns a function that cancels the call, for when the peer goes away; it may be called any number
        of times. Returns ``None`` when the call was answered at once.
        """

    def open_session(
        self, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ServerSession:
        """Makes a session; messages that belong to none of its requests go to ``outlet``. The binding closes it.

        ``peer`` is the address of the client, as for `exchange`.
        """

    def hand_over(self, session: ServerSession) -> bytes | None:
        """Makes a record of a session from which `go_on` makes it again, at another node.

        Here only its calls in flight go on; it sends nothing besides, and ends with the last of them. Never waits.

        Returns:
            The record, or ``None`` if another process cannot go on with the session: then it stays as it was.
        """

    async def go_on(
        self, record: bytes, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ServerSession:
        """Makes a session of the record that another node has made of it; as `open_session` otherwise.

        Its client is notified of what has changed meanwhile.

        Raises:
            LocalProtocolError: The record is that of another program, or of a revision that is not served here.
            Overloaded: Too many bytes would be kept of clients.
        """

    @property
    def has_sessions(self) -> bool:
        """Whether a revision with sessions is served."""

    @property
    def shared(self) -> OpenState:
        """The state that the server shares with other processes, or the memory of this one; open while it serves."""

    def missing(self) -> Sequence[str]:
        """Returns what the server needs and cannot use at the moment, in words for everybody; empty if it has all."""

    def key_for(self, purpose: str) -> bytes:
        """Returns a key of 32 bytes for one purpose of the binding, such as tokens that it gives out.

        All processes whose servers have the same ``state_key`` get the same one.
        """

    @property
    def leaving(self) -> trio.Event:
        """Set when the server is going to stop: it still takes everything, and the binding has clients go elsewhere."""

    def stops_with(self, part: StopPart) -> AbstractContextManager[None]:
        """Has ``part`` take its part in the stop of the server, if that is while the block runs."""

    @property
    def stopping(self) -> trio.Event:
        """Set when the server takes no new work: the binding stops accepting and lets calls in flight end.

        `ServerTransport.serve` is cancelled when all of them have ended, or their time is over.
        """


class StopPart(Protocol):
    """The part of a binding that does something itself when the server stops; see `ServerHandler.stops_with`.

    An error of it is logged, and the server stops without it.
    """

    async def before_stop(self, delay: float) -> None:
        """Does what has to be done while requests that have arrived are still served, before `ServerHandler.stopping`.

        It is cancelled when the time of calls is over.

        Args:
            delay: The seconds for which the server was `ServerHandler.leaving`.
        """

    async def until_answered(self) -> None:
        """Waits until all is answered that the engine has no call for, and all answers are sent.

        It is called when there is no call any more, and cancelled when the time of calls is over.
        """

    def cut(self) -> None:
        """Answers what is left, because the time of calls is over. Must not wait."""


@runtime_checkable
class ServerTransport(Protocol):
    """Accepts connections."""

    async def serve(
        self,
        handler: ServerHandler,
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled or done; a connection binding runs ``handler(channel)`` for each, in its own task.

        ``task_status.started(where)`` is called once connections are accepted. The handler owns its channel and has
        closed it when it returns. Returns by itself when no further connection can come (stdio: after its only one).
        Cancelled, it closes everything at once.
        """


@runtime_checkable
class Companion(ServerTransport, Protocol):
    """A `ServerTransport` that brings no clients: it is served beside the others, and ends with the last of them.

    A crash of it, once it has started, ends neither the server nor any other transport.
    """

    @property
    def is_companion(self) -> Literal[True]:
        """Marks it as one."""


@runtime_checkable
class ClientTransport(Protocol):
    """Opens connections."""

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Opens one connection for the length of an ``async with`` block.

        Entering it raises `ConnectFailed` if there can be no connection. Leaving the block
        closes the channel and frees everything that came with it, within a bounded time.
        """
