"""Subscriptions of a client in either era: a listen request held open, or a session's unsolicited notifications."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors._caller import Caller
from mcp_actors._capabilities.broadcast import Event
from mcp_actors._capabilities.listening import Listener
from mcp_actors._logs import log
from mcp_actors._supervisor import Supervisor
from mcp_actors.errors import CallTimeout, McpError

__all__ = ["Listeners"]

# A listener that is no longer wanted waits this long for the server to take its subscriptions back, seconds.
UNSUBSCRIBE_TIMEOUT = 1.0


class Listeners:
    """All open listeners of one client, by the id of their listen request (legacy ones have an id of their own)."""

    def __init__(self, supervisor: Supervisor, caller: Caller) -> None:
        self._supervisor = supervisor
        self._caller = caller
        self._open: dict[int | str, Listener] = {}

    def __repr__(self) -> str:
        return f"<Listeners open={len(self._open)}>"

    def heard(self, event: Event, subscription: Any) -> None:
        """A change notification arrived; one with a subscription id is for that listener only."""
        if subscription is None:
            for listener in self._open.values():
                listener.deliver(event.kind, event.uri)
        elif (addressed := self._open.get(subscription)) is not None:
            addressed.deliver(event.kind, event.uri)

    def acknowledged(self, subscription: Any) -> None:
        """The server says that a subscription is in force."""
        listener = self._open.get(subscription)
        if listener is not None:
            listener.acknowledged.set()

    @asynccontextmanager
    async def opened(self, listener: Listener) -> AsyncIterator[None]:
        """Subscribes for the length of the block."""
        subscribe = self._legacy if self._caller.agreement.era.name == "legacy" else self._modern
        async with subscribe(listener):
            yield

    @asynccontextmanager
    async def _legacy(self, listener: Listener) -> AsyncIterator[None]:
        key = self._supervisor.session.outbound.next_id()
        uris = listener.filter.resource_subscriptions or []
        self._open[key] = listener
        self._supervisor.start_soon(lambda: self._end_with_connection(listener))
        try:
            for uri in uris:
                await self._caller.call("resources/subscribe", {"uri": uri})
            yield
        finally:
            del self._open[key]
            listener.end()
            with trio.move_on_after(UNSUBSCRIBE_TIMEOUT, shield=True):
                await self._unsubscribe(
                    set(uris) - {uri for other in self._open.values() for uri in other.uris}
                )

    async def _unsubscribe(self, uris: set[str]) -> None:
        try:
            for uri in sorted(uris):
                await self._caller.call("resources/unsubscribe", {"uri": uri})
        except McpError as error:
            log.debug("could not unsubscribe", error=str(error))

    async def _end_with_connection(self, listener: Listener) -> None:
        session = self._supervisor.session
        with trio.CancelScope() as scope:
            listener.on_end = lambda: scope.cancel(reason="the listener is closed")
            await session.ended.wait()
            listener.end(session.loss)

    @asynccontextmanager
    async def _modern(self, listener: Listener) -> AsyncIterator[None]:
        id = self._supervisor.session.outbound.next_id()
        self._open[id] = listener
        self._supervisor.start_soon(lambda: self._hold_open(id, listener))
        try:
            with trio.move_on_after(self._caller.timeout):
                await listener.acknowledged.wait()
            listener.raise_if_lost()
            if not listener.acknowledged.is_set():
                raise CallTimeout("subscriptions/listen", "idle", self._caller.timeout)
            yield
        finally:
            del self._open[id]
            listener.end()

    async def _hold_open(self, id: int, listener: Listener) -> None:
        filter = self._caller.agreement.era.unstructure(listener.filter)
        params = {"notifications": filter, "_meta": dict(self._caller.meta)}
        lost: BaseException | None = None
        try:
            with trio.CancelScope() as scope:
                listener.on_end = lambda: scope.cancel(reason="the listener is closed")
                await self._supervisor.session.request(
                    "subscriptions/listen", params, idle=math.inf, cap=math.inf, id=id
                )
        except McpError as error:
            lost = error
        finally:
            listener.end(lost)
