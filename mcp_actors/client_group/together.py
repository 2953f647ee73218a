"""Does many things at once, each of which fails alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Mapping
from functools import partial
from typing import TypeVar

import trio

from mcp_actors._exception_groups import one_error
from mcp_actors.client import Client
from mcp_actors.errors import ConnectFailed, RemoteProtocolError
from mcp_actors.supervision import start
from mcp_actors.task_kinds import GROUP_WORK

__all__ = ["LIST_TIME", "MAX_LISTED", "all_of", "each_alone"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Entries of one list of one server, and the seconds that it may take in all.
MAX_LISTED = 10_000
LIST_TIME = 60.0


async def each_alone(
    work: Mapping[K, Callable[[], Awaitable[T]]], at_once: int, *, needed: Collection[K] = ()
) -> dict[K, T | Exception]:
    """Does everything at once, and returns the outcomes, results or exceptions, in the same order.

    Args:
        work: The functions to call.
        at_once: How many of them run at a time.
        needed: If one of these fails, the rest is cancelled, and has no outcome.
    """
    outcomes: dict[K, T | Exception] = {}
    limiter = trio.CapacityLimiter(at_once)

    def failed(key: K, error: BaseException) -> None:
        outcomes[key] = error if isinstance(error, Exception) else ConnectFailed(f"it failed: {error!r}")
        if key in needed:
            nursery.cancel_scope.cancel(reason="something that was needed has failed")

    async def do(key: K, function: Callable[[], Awaitable[T]]) -> None:
        async with limiter:
            try:
                outcomes[key] = await function()
            except Exception as error:
                failed(key, error)

    with one_error():
        async with trio.open_nursery() as nursery:
            for key, function in work.items():
                start(nursery, GROUP_WORK, do, key, function, about=str(key), on_crash=partial(failed, key))
    return {key: outcomes[key] for key in work if key in outcomes}


async def all_of(entries: Callable[[Client], AsyncIterator[T]], client: Client) -> list[T]:
    """Returns all entries of a list of a server.

    Raises:
        RemoteProtocolError: There are more of them, or they take longer, than anybody would wait for.
        McpError: What else listing raises.
    """
    found: list[T] = []
    with trio.move_on_after(LIST_TIME):
        async for entry in entries(client):
            if len(found) == MAX_LISTED:
                raise RemoteProtocolError(f"its list has more than {MAX_LISTED} entries")
            found.append(entry)
        return found
    raise RemoteProtocolError(f"its list took more than {LIST_TIME:g} seconds")
