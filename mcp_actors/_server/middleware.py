"""Middleware: functions that run round the requests and notifications of clients, the first one outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import Method, ValueResult
from mcp_actors._server.context import Context
from mcp_actors._server.invoke import Handler
from mcp_actors.errors import LocalProtocolError

__all__ = [
    "MOST_PAGES",
    "Around",
    "CallNext",
    "Middleware",
    "NotificationMiddleware",
    "answer_within",
    "pages_within",
    "through",
]


# Pages of a list that are read at once: as many as a client reads.
MOST_PAGES = 1_000


class CallNext(Protocol):
    """Runs the next middleware, or the handler, and returns its result."""

    def __call__(self, ctx: Context | None = None, /) -> Awaitable[Any]:
        """Calls it with ``ctx``: by default with the context that this middleware was given."""


Middleware = Callable[[Context, CallNext], Awaitable[Any]]
"""``async def f(ctx, call_next)``, which runs round a request; see `Server.middleware`."""


@runtime_checkable
class NotificationMiddleware(Protocol):
    """Middleware that runs round notifications, too; see `Server.middleware`."""

    def __call__(self, ctx: Context, call_next: CallNext, /) -> Awaitable[Any]:
        """Runs round a request."""

    def notification(self, ctx: Context, call_next: CallNext, /) -> Awaitable[Any]:
        """Runs round the function that takes a notification; what it returns is dropped."""


class Around(msgspec.Struct, frozen=True, eq=False):
    """A function of an extension that runs round some requests of one method, outside of all middleware."""

    function: Middleware
    when: Callable[[Mapping[str, Any]], bool]
    """Says, of the params of a request, whether the function runs."""
    meta: str | None = None
    """A member of ``_meta`` with which it runs in any case."""

    def concerns(self, params: Mapping[str, Any], meta: Mapping[str, Any]) -> bool:
        """Whether the function runs round a request."""
        return (self.meta is not None and self.meta in meta) or self.when(params)


async def through(middleware: Sequence[Middleware], ctx: Context, handler: Handler, passed: int = 0) -> Any:
    """Calls the first middleware, the outermost, round the others, and the handler innermost.

    Args:
        middleware: All of it.
        ctx: The context of the call.
        handler: Answers the call.
        passed: How many of ``middleware`` the call is inside of.

    Raises:
        InvalidResult: A middleware returned nothing, where a result has to be.
    """
    if passed == len(middleware):
        result = handler(ctx)
        if isinstance(result, Continuation):
            result = await result()
        return result.as_result() if result.__class__ is ValueResult else result
    of_call: Context | None = ctx

    def call_next(other: Context | None = None, /) -> Awaitable[Any]:
        # It awaits nothing itself: a coroutine more for each middleware would be measurable.
        next_context = other or of_call
        if next_context is None:
            raise LocalProtocolError("the call was answered: go on with a context of `detached`")
        return through(middleware, next_context, handler, passed + 1)

    try:
        result = await middleware[passed](ctx, call_next)
    finally:
        # What goes on behind the call has `call_next`, and must not keep the call, and its session, by it.
        of_call = None
    if result is None and not _may_be_none(ctx.call.invocation.method):
        function = middleware[passed]
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidResult(f"the middleware {name} returned None: write 'return await call_next()'")
    return result


class _CallWithin(Context[Any]):
    """The context of a request of another method that is answered within a call, as middleware is to see it."""

    method_within: str = ""

    @property
    def method(self) -> str:
        return self.method_within


async def answer_within(features: Any, ctx: Context, method: str, params: dict[str, Any]) -> Any:
    """Returns what answers a request of another method, for the caller of ``ctx``, through all middleware.

    Args:
        features: Those of the server.
        ctx: The call.
        method: The method, which has no scopes that were not checked.
        params: Its params.
    """
    within = _CallWithin(ctx.call, params, ctx._scope, ctx._kept, ctx._asked, ctx._logger, method)
    return await through(features.middleware, within, features.handlers[method])


async def pages_within(features: Any, ctx: Context, method: str, most: int = MOST_PAGES) -> list[Any]:
    """Returns the pages of a list that the caller of ``ctx`` is shown, ``most`` of them; see `answer_within`."""
    pages: list[Any] = []
    params: dict[str, Any] = {}
    while len(pages) < most:
        pages.append(await answer_within(features, ctx, method, params))
        if pages[-1].next_cursor is None:
            break
        params = {"cursor": pages[-1].next_cursor}
    return pages


def _may_be_none(method: Method) -> bool:
    """Whether nothing has to be in its result, so that a function may return none."""
    return method.result in (dict, t.EmptyResult, t.SubscriptionsListenResult)
