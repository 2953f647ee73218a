"""Functions that run round the requests of a client and the notifications of its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors.types import InputResponse

__all__ = [
    "ClientCall",
    "ClientMiddleware",
    "ClientNotification",
    "ClientNotificationMiddleware",
    "Ending",
    "HandleNext",
    "SendNext",
    "notified_through",
    "require_for_clients",
    "sent_through",
]


@attrs.frozen(kw_only=True)
class ClientCall:
    """A request of the program, as middleware sees it; `attrs.evolve` makes another one of it."""

    method: str
    """The method, such as ``tools/call``."""
    params: Mapping[str, Any]
    """Its parameters, without ``_meta``."""
    options: CallOptions
    """The clocks of the call, its progress callback and its further metadata."""
    refresh: bool = False
    """Whether the server is asked although there is an answer that is good still."""
    answers: Mapping[str, InputResponse] | None = None
    """The answers to an `InputRequired`, by its keys."""
    state: str | None = None
    """The state of an `InputRequired`."""
    raw: Collection[str] = ()
    """Kinds of results that the caller takes as they are sent."""
    retried: bool = False
    """Whether middleware outside of this one makes the call again where it fails for the connection."""
    client: object = attrs.field(default=None, repr=False, eq=False)
    """Tells the calls of one client from those of another, where middleware is shared; it is for nothing else."""


@attrs.frozen
class ClientNotification:
    """A notification of the server for which the program has a function, as middleware sees it."""

    method: str
    """The method, such as ``notifications/message``."""
    params: Mapping[str, Any]
    callback: str
    """The option of the client that takes it, such as ``on_log``; the method for a function of an extension."""


class SendNext(Protocol):
    """Runs the next middleware, or makes the request, and returns its result."""

    def __call__(self, call: ClientCall | None = None, /) -> Awaitable[Any]:
        """Goes on with ``call``: by default with the one that this middleware was given."""


HandleNext = Callable[[], Awaitable[None]]
"""Runs the next middleware round a notification, or the program's function."""
ClientMiddleware = Callable[[ClientCall, SendNext], Awaitable[Any]]
"""``async def f(call, call_next)``, which runs round a request of a client; see `Client`."""
Ending = Callable[[ClientCall], Awaitable[Any]]
"""Makes the request, inside of all middleware."""


@runtime_checkable
class ClientNotificationMiddleware(Protocol):
    """Middleware of a client that runs round notifications of the server, too; see `Client`."""

    def __call__(self, call: ClientCall, call_next: SendNext, /) -> Awaitable[Any]:
        """Runs round a request."""

    def notification(self, note: ClientNotification, call_next: HandleNext, /) -> Awaitable[Any]:
        """Runs round the program's function; what it returns is dropped."""


def require_for_clients(middleware: Sequence[ClientMiddleware]) -> None:
    """Checks the middleware of a client.

    Raises:
        TypeError: One of them is a class, or is for servers.
    """
    for each in middleware:
        name = each.__name__ if isinstance(each, type) else type(each).__name__
        if getattr(each, "for_side", None) == "server":
            raise TypeError(f"{name} is for servers: write server.middleware({name}(…))")
        if isinstance(each, type):
            raise TypeError(f"{name} is a class: give an object of it, {name}(…)")


async def sent_through(
    middleware: Sequence[ClientMiddleware], call: ClientCall, ending: Ending, passed: int = 0
) -> Any:
    """Calls the first middleware, the outermost, round the others, and ``ending`` innermost.

    Args:
        middleware: All of it.
        call: The request.
        ending: Makes the request.
        passed: How many of ``middleware`` the request is inside of.
    """
    if passed == len(middleware):
        return await ending(call)

    def call_next(other: ClientCall | None = None, /) -> Awaitable[Any]:
        return sent_through(middleware, other or call, ending, passed + 1)

    return await middleware[passed](call, call_next)


async def notified_through(
    middleware: Sequence[Callable[[ClientNotification, HandleNext], Awaitable[Any]]],
    note: ClientNotification,
    ending: HandleNext,
    passed: int = 0,
) -> None:
    """As `sent_through`, for a notification."""
    if passed == len(middleware):
        await ending()
        return

    async def call_next() -> None:
        await notified_through(middleware, note, ending, passed + 1)

    await middleware[passed](note, call_next)
