"""The functions of a server that take notifications of clients."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

import msgspec
import trio

from mcp_actors._actors.continuation import Continuation
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.unanswered import prepare_unanswered, start_unanswered
from mcp_actors._eras.era import Invocation, Method
from mcp_actors._schema.signature import InvalidArguments, read_signature
from mcp_actors._server.context import Context
from mcp_actors._server.invoke import Function, Loop, function
from mcp_actors._server.middleware import Middleware, through
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.sync_context import SyncContext
from mcp_actors.abc import Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_actors.logging import log

__all__ = ["NotificationHandlers"]

# The engine's own business: what they say is not for functions.
_OWN = frozenset(
    {"notifications/initialized", "initialized", "notifications/cancelled", "notifications/progress"}
)


class _NotificationEntry(msgspec.Struct, frozen=True, eq=False):
    method: Method
    names: Set[str]
    """The members of the params that the function takes; any others are those of a newer client."""
    bind: Callable[[dict[str, Any]], dict[str, Any]]
    function: Function
    extension: str | None
    """The extension that the client has to have declared."""


class NotificationHandlers:
    """The functions that take notifications, by the method of the notification."""

    def __init__(self, limiter: trio.CapacityLimiter) -> None:
        self.middleware: list[Middleware] = []
        self._limiter = limiter
        self._entries: dict[str, _NotificationEntry] = {}

    def __repr__(self) -> str:
        return f"<NotificationHandlers of {len(self._entries)} methods>"

    def add(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        inline: bool,
        extension: str | None = None,
        loop: Loop = None,
    ) -> None:
        """Adds a function, of ``extension`` if it belongs to one; the errors are those of `Server.notification`."""
        if name in _OWN:
            raise LocalProtocolError(f"the engine itself takes {name!r}: no function can")
        if name in self._entries:
            raise LocalProtocolError(f"a function takes the notification {name!r} already")
        signature = read_signature(call, injected=Context)
        ready = function(
            call,
            injected_name=signature.injected_name,
            for_sync=SyncContext,
            inline=inline,
            limiter=self._limiter,
            loop=loop,
        )
        names = frozenset(signature.input_schema.get("properties", ()))
        self._entries[name] = _NotificationEntry(
            Method(name, dict, dict), names, signature.bind, ready, extension
        )

    def method(self, name: str) -> Method | None:
        """Returns the method of a notification that a function takes, else ``None``."""
        entry = self._entries.get(name)
        return None if entry is None else entry.method

    def start(
        self,
        invocation: Invocation,
        dispatcher: Dispatcher,
        scope: ServerScope,
        arrived: Outlet | None = None,
    ) -> None:
        """Calls the function of a notification in a task of its own. Never waits."""
        call = prepare_unanswered(dispatcher, invocation, arrived)
        entry = self._entries[invocation.method.name]
        ctx = Context(call, scope)
        if not self.middleware:
            start_unanswered(call, dispatcher, _run, entry, ctx)
        else:
            handler = partial(Continuation, _run, entry)
            start_unanswered(call, dispatcher, through, self.middleware, ctx, handler)


async def _run(entry: _NotificationEntry, ctx: Context) -> None:
    core = ctx.method in ctx.era.client_notifications
    if entry.extension is not None and not core and entry.extension not in ctx.extensions:
        log.debug("notification ignored: its extension was not declared", method=ctx.method)
        return
    try:
        arguments = entry.bind({name: value for name, value in ctx.params.items() if name in entry.names})
    except InvalidArguments as error:
        log.warning(
            "notification dropped",
            session=ctx.call.owner.name,
            method=ctx.method,
            error=str(error)[:1000],
        )
        return
    outcome = entry.function.call(ctx, arguments)
    if not entry.function.inline:
        await outcome
