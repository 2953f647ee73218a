"""What a client does with notifications: the log handler and the change handler are told in order of arrival.

A sync handler is called in the read path, so that it has seen all logs of a call when the call returns; it must not
block. What an async handler returns is awaited by a task of its own, one after the other.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors._eras.changes import ACKNOWLEDGED, KIND_OF_METHOD, Event
from mcp_actors._eras.modern.meta_keys import SUBSCRIPTION_ID
from mcp_actors.logging import log

__all__ = ["ChangeHandler", "LogHandler", "Notifications"]

LogHandler = Callable[[Any, Any, str | None], Awaitable[None] | None]
ChangeHandler = Callable[[str, str | None], Awaitable[None] | None]

# Notices that wait for a slow handler; beyond it the oldest go. A log is worth less than the connection.
MAX_WAITING = 4096


class Notifications:
    """``put`` is called in the read path and never waits; ``run`` awaits what async handlers return."""

    def __init__(
        self,
        on_log: LogHandler | None,
        on_change: ChangeHandler | None,
        on_event: Callable[[Event, Any], None],
        on_acknowledged: Callable[[Any], None],
        on_cancelled: Callable[[Any, str | None], None],
    ) -> None:
        self.on_log = on_log
        self.on_change = on_change
        self._on_event = on_event
        self._on_acknowledged = on_acknowledged
        self._on_cancelled = on_cancelled
        self._waiting: deque[Awaitable[None]] = deque()
        self._parked = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Notifications {len(self._waiting)}/{MAX_WAITING}>"

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
            self._on_event(event, subscription)
            if subscription is None:
                self.changed(event.kind, event.uri)
        elif method == ACKNOWLEDGED:
            self._on_acknowledged(subscription)
        elif method == "notifications/cancelled":
            # Not a call of the server's: those the session has seen to. So it can only be about a subscription.
            reason = params.get("reason")
            self._on_cancelled(params.get("requestId"), reason if isinstance(reason, str) else None)
        else:
            log.debug("notification ignored", method=method)

    def changed(self, kind: str, uri: str | None) -> None:
        """Has the change handler told."""
        handler = self.on_change
        if handler is not None:
            self._later(lambda: handler(kind, uri))

    def _logged(self, params: dict[str, Any]) -> None:
        handler, level = self.on_log, params.get("level")
        if handler is not None and isinstance(level, str):
            logger = params.get("logger")
            self._later(
                lambda: handler(level, params.get("data"), logger if isinstance(logger, str) else None)
            )

    def _later(self, tell: Callable[[], Any]) -> None:
        try:
            outcome = tell()
        except Exception:
            log.exception("a notification handler failed")
            return
        if inspect.isawaitable(outcome):
            if len(self._waiting) == MAX_WAITING:
                _discard(self._waiting.popleft())
            self._waiting.append(outcome)
            self._parked.unpark()

    async def run(self) -> None:
        """Awaits async handlers for ever. One that raises is logged; the next notice is told all the same."""
        try:
            while True:
                while self._waiting:
                    try:
                        await self._waiting.popleft()
                    except Exception:
                        log.exception("a notification handler failed")
                await self._parked.park()
        finally:
            while self._waiting:
                _discard(self._waiting.popleft())


def _discard(outcome: Awaitable[None]) -> None:
    """A coroutine that will never be awaited says so unless it is closed."""
    if inspect.iscoroutine(outcome):
        outcome.close()
