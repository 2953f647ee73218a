"""The contracts that a transport fulfils; everything above this file is the same for all of them.

A *connection binding* gives both sides a `FrameChannel`: a two-way channel of encoded messages. A server binding is
shaped like :func:`trio.serve_tcp`; a client binding is opened with ``async with``.

The three endings, and no other exception, come out of a channel:

=============================== =====================================================================
`trio.ClosedResourceError`      we closed it
`trio.BrokenResourceError`      the world broke it; nothing can be sent any more. A peer that broke the
                                framing itself (a message over the limit) is told apart by its
                                ``__cause__``, a `~mcp_actors.errors.RemoteProtocolError`: one last
                                message may still be sent to it
`trio.EndOfChannel`             (receiving only) the peer ended cleanly: it sends no more, but may read
=============================== =====================================================================

Cancelling ``receive`` or ``receive_many`` loses nothing. Cancelling ``send`` or ``send_many`` may leave the frame
sent, not sent or torn, so only a link's writer calls them, and it never goes on after it was cancelled.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec
import trio

__all__ = ["ClientTransport", "Frame", "FrameChannel", "ServerTransport"]


class Frame(msgspec.Struct, gc=False):
    """One encoded JSON-RPC message (or batch) and what a binding may need to place it.

    ``data`` holds no newline. ``about`` is the id of the inbound request that the message belongs to and ``last``
    is true for the message that ends that request: bindings with one stream per request route by them.
    ``metadata`` is what the binding mirrors outside the body, such as HTTP headers.
    """

    data: bytes
    about: int | str | None = None
    last: bool = False
    metadata: Mapping[str, str] | None = None


class FrameChannel(trio.abc.Channel[Frame]):
    """A two-way channel of frames; see the module's docstring for its endings.

    A binding must give ``send``, ``receive`` and ``aclose``. The other three have defaults that are right but not
    the fastest; a binding overrides them when it can do better.
    """

    @abstractmethod
    async def send(self, value: Frame) -> None:
        """Sends one frame, waiting while the peer takes no more."""

    @abstractmethod
    async def receive(self) -> Frame:
        """Waits for one frame."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes both directions at once. Legal from any task, any number of times."""

    async def receive_many(self) -> list[Frame]:
        """Waits for at least one frame and returns all that arrived with it."""
        return [await self.receive()]

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order, as one burst where the binding can."""
        for frame in frames:
            await self.send(frame)

    def send_nowait(self, frame: Frame) -> None:
        """Hands one frame over without waiting and without a system call, or raises `trio.WouldBlock`.

        Only channels for which this is cheaper than a wake-up of the writer task (those in memory) override it.
        """
        raise trio.WouldBlock

    def write_now(self, frame: Frame) -> bool:
        """Writes one frame with one system call that takes all of it or nothing; says whether it did.

        Used when nothing else is on its way, to save the wake-up of the writer task. A channel that cannot promise
        all or nothing keeps this default, as does one that is closed or broken: sending finds that out.
        """
        return False

    @property
    def max_message_bytes(self) -> int | None:
        """The longest message this channel carries, in either direction; ``None`` if it does not measure.

        The engine never sends a longer one: whoever made it is told instead.
        """
        return None

    @property
    def peer(self) -> str:
        """Who is at the other end, for logs and ``repr``: an address, a command, ``"memory"``."""
        return type(self).__name__

    def loss_report(self) -> Mapping[str, Any]:
        """What is known about why the channel ended: ``exit_code`` and ``stderr`` lines for a child process."""
        return {}


ConnectionHandler = Callable[[FrameChannel], Awaitable[None]]


@runtime_checkable
class ServerTransport(Protocol):
    """Accepts connections."""

    async def serve(
        self,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs ``handler(channel)`` for every connection, each in a task of its own, until cancelled or done.

        ``task_status.started(where)`` is called once connections are accepted. The handler owns its channel and has
        closed it when it returns. Returns by itself when no further connection can come (stdio: after its only one).
        """


@runtime_checkable
class ClientTransport(Protocol):
    """Opens connections."""

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Opens one connection for the length of an ``async with`` block; raises `ConnectFailed` if it cannot.

        Leaving the block closes the channel and frees everything that came with it, within a bounded time.
        """
