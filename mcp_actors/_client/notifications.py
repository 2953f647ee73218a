"""The client's handlers of notifications: those of logs and changes are called in the order of arrival.

A sync handler is called in the read path, so that it has seen all logs of a call when the call returns; it must not
block. What an async handler returns is awaited by a task of its own, one after the other. With middleware round
notifications every handler is called in that task.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors._client.callbacks import Guard
from mcp_actors._client.middleware import (
    ClientNotification,
    ClientNotificationMiddleware,
    notified_through,
)
from mcp_actors._client.options import ClientOptions
from mcp_actors._client.requests import Requests
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors._eras.changes import ACKNOWLEDGED, KIND_OF_METHOD, METHOD_OF_KIND, Event, EventKind
from mcp_actors._eras.modern.meta_keys import SUBSCRIPTION_ID
from mcp_actors.errors import ConnectionLost, SessionExpired
from mcp_actors.logging import log

__all__ = ["Notifications"]

# Notifications that wait for a slow handler; beyond it the oldest go. A log is worth less than the connection.
MAX_WAITING = 4096


class Notifications:
    """`put` is called in the read path and never waits; `run` awaits what async handlers return.

    Args:
        options: The client's options, with the handlers.
        requests: Are told of changes, because they may have cached what has changed.
        subscriptions: Are told of changes and of what the server says about a subscription.
    """

    def __init__(self, options: ClientOptions, requests: Requests, subscriptions: Subscriptions) -> None:
        self._on_log = options.on_log
        self._on_change = options.on_change
        self._on_notification = options.on_notification
        self._on_lost = options.on_lost
        self._of_extensions = {
            name: function for each in options.in_use for name, function in each.notifications.items()
        }
        self._middleware = tuple(
            each.notification for each in options.middleware if isinstance(each, ClientNotificationMiddleware)
        )
        self._requests = requests
        self._subscriptions = subscriptions
        self._waiting: deque[tuple[str, Awaitable[None]]] = deque()
        self._parked = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Notifications {len(self._waiting)}/{MAX_WAITING}>"

    @property
    def follows_changes(self) -> bool:
        """Whether there is a handler of changes."""
        return self._on_change is not None

    def put(self, method: str, params: dict[str, Any]) -> None:
        """Takes one notification of the server."""
        if method == "notifications/message":
            self._logged(params)
            return
        meta = params.get("_meta")
        subscription = meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
        if subscription is not None and type(subscription) is not int and not isinstance(subscription, str):
            log.debug("notification ignored: its subscription id is none", method=method)
            return
        kind = KIND_OF_METHOD.get(method)
        if kind is not None:
            uri = params.get("uri")
            event = Event(kind, uri if isinstance(uri, str) else None)
            self._requests.changed(event)
            self._subscriptions.deliver(event, subscription)
            if subscription is None:
                self.changed(event.kind, event.uri)
        elif method == ACKNOWLEDGED:
            self._subscriptions.acknowledged(subscription, params.get("notifications"))
        elif method == "notifications/cancelled":
            # It is no call of the server's, for those the session has seen to: so it is about a subscription.
            reason = params.get("reason")
            self._subscriptions.cancelled(
                params.get("requestId"), reason if isinstance(reason, str) else None
            )
        elif method in self._of_extensions:
            self._call(method, self._of_extensions[method], (params,), method, params)
        elif self._on_notification is not None:
            self._call("on_notification", self._on_notification, (method, params), method, params)
        else:
            log.debug("notification ignored", method=method)

    def changed(self, kind: EventKind, uri: str | None) -> None:
        """Calls the change handler."""
        handler = self._on_change
        if handler is not None:
            params = {} if uri is None else {"uri": uri}
            self._call("on_change", handler, (kind, uri), METHOD_OF_KIND[kind], params)

    def lost(self, why: ConnectionLost | SessionExpired) -> None:
        """Calls the handler of lost connections."""
        if self._on_lost is not None:
            self._begin("on_lost", self._on_lost, (why,))

    def _logged(self, params: dict[str, Any]) -> None:
        handler, level = self._on_log, params.get("level")
        if handler is not None and isinstance(level, str):
            logger = params.get("logger")
            args = level, params.get("data"), logger if isinstance(logger, str) else None
            self._call("on_log", handler, args, "notifications/message", params)

    def _call(
        self,
        name: str,
        handler: Callable[..., Any],
        args: tuple[Any, ...],
        method: str,
        params: dict[str, Any],
    ) -> None:
        """Calls a handler of notifications, inside of the middleware if there is any."""
        if not self._middleware:
            self._begin(name, handler, args)
            return

        async def handle() -> None:
            with Guard(name, contains=True):
                outcome = handler(*args)
                if inspect.isawaitable(outcome):
                    await outcome

        note = ClientNotification(method, params, name)
        self._begin("middleware", notified_through, (self._middleware, note, handle))

    def _begin(self, name: str, handler: Callable[..., Any], args: tuple[Any, ...]) -> None:
        outcome: Any = None
        with Guard(name, contains=True):
            outcome = handler(*args)
        if inspect.isawaitable(outcome):
            if len(self._waiting) == MAX_WAITING:
                _discard(self._waiting.popleft()[1])
            self._waiting.append((name, outcome))
            self._parked.unpark()

    async def run(self) -> None:
        """Awaits what async handlers return, for ever. One that fails is logged, and the next one is awaited."""
        while True:
            while self._waiting:
                name, outcome = self._waiting.popleft()
                with Guard(name, contains=True):
                    await outcome
            await self._parked.park()

    def close(self) -> None:
        """Drops what was not awaited; nothing is called any more."""
        self._on_log = self._on_change = self._on_notification = self._on_lost = None
        self._of_extensions = {}
        while self._waiting:
            _discard(self._waiting.popleft()[1])


def _discard(outcome: Awaitable[None]) -> None:
    """A coroutine that is never awaited issues a warning unless it is closed."""
    if inspect.iscoroutine(outcome):
        outcome.close()
