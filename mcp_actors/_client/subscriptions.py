"""Subscriptions of a client in either era: a listen request held open, or a session's unsolicited notifications."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.listener import Listener
from mcp_actors._client.requests import Requests
from mcp_actors._client.supervisor import Supervisor
from mcp_actors._eras.changes import Event, EventKind
from mcp_actors._wire.messages import JsonRpcError
from mcp_actors.errors import CallTimeout, McpError, RpcError, SubscriptionLost
from mcp_actors.logging import log
from mcp_actors.types import SubscriptionFilter

__all__ = ["Subscriptions"]

# A listener that is no longer wanted waits this long for the server to take its subscriptions back, seconds.
UNSUBSCRIBE_TIMEOUT = 1.0

# Waits before a subscription is asked for again on a connection that goes on, seconds; the last one repeats. One that
# lasted longer than that begins anew.
LISTEN_AGAIN = (1.0, 2.0, 5.0, 15.0, 30.0)

# A listen request is answered when the subscription ends.
UNBOUNDED = CallOptions(idle=math.inf, cap=math.inf)

_LISTS: tuple[EventKind, ...] = ("tools", "prompts", "resources")


class Subscriptions:
    """All open listeners of one client, by the id of their listen request (legacy ones have an id of their own)."""

    def __init__(self, supervisor: Supervisor, requests: Requests) -> None:
        self._supervisor = supervisor
        self._requests = requests
        self._open: dict[int | str, Listener] = {}
        self._kept: set[str] = set()

    def __repr__(self) -> str:
        return f"<Subscriptions open={len(self._open)}>"

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

    def cancelled(self, subscription: Any, reason: str | None) -> None:
        """The server takes a subscription back. That is no end in order: only the closing result is."""
        # 1 == True for a dict, but not for JSON.
        known = type(subscription) is int or isinstance(subscription, str)
        listener = self._open.get(subscription) if known else None
        if listener is not None:
            listener.end(SubscriptionLost(f"the server cancelled it: {reason or 'no reason given'}"))
            # So the request counts as answered, and the server is not told what it knows.
            self._supervisor.session.outbound.answered(
                JsonRpcError(subscription, 0, "cancelled by the server")
            )

    async def follow(self, tell: Callable[[str, str | None], None]) -> None:
        """Tells of every change of a modern server's lists, which speaks of them only to who listens.

        A subscription that ended is asked for again: at once on a new connection, after a while on one that goes on,
        as over HTTP, and not at all on one whose server refused it. Then everything counts as changed: what happened
        in between is unknown. Returns when nothing more will come.
        """
        try:
            missed: tuple[EventKind, ...] = ()
            times = 0
            while self._requests.negotiated.era.name == "modern":
                session = await self._supervisor.live_session(self._requests.options.idle)
                began = trio.current_time()
                again = await self._follow_once(tell, missed)
                if trio.current_time() - began > LISTEN_AGAIN[-1]:
                    times = 0
                with trio.move_on_after(
                    LISTEN_AGAIN[min(times, len(LISTEN_AGAIN) - 1)] if again else math.inf
                ):
                    await session.ended.wait()
                missed, times = _LISTS, times + 1
        except McpError as error:
            log.debug("changes are no longer followed", error=str(error))

    async def _follow_once(
        self, tell: Callable[[str, str | None], None], missed: Sequence[EventKind]
    ) -> bool:
        """Returns when the subscription has ended: whether the server may grant another one."""
        kinds = [kind for kind in _LISTS if kind in self._requests.negotiated.declared]
        try:
            async with self.opened(Listener(_filter_of(kinds))) as listener:
                for kind in missed:
                    tell(kind, None)
                async for event in listener:
                    tell(event.kind, event.uri)
        except SubscriptionLost as lost:
            return not isinstance(lost.__cause__, RpcError)
        return True

    async def keep(self, uri: str) -> None:
        """Subscribes a session to a resource until `give_back`, whatever listeners come and go."""
        await self._requests.call("resources/subscribe", {"uri": uri})
        self._kept.add(uri)

    async def give_back(self, uri: str) -> None:
        """Takes `keep` back; a listener of the same resource goes on."""
        self._kept.discard(uri)
        if uri not in self._wanted():
            await self._requests.call("resources/unsubscribe", {"uri": uri})

    def _wanted(self) -> set[str]:
        return self._kept.union(*(listener.uris for listener in self._open.values()))

    @asynccontextmanager
    async def opened(self, listener: Listener) -> AsyncIterator[Listener]:
        """Subscribes for the length of the block."""
        subscribe = self._legacy if self._requests.negotiated.era.name == "legacy" else self._modern
        async with subscribe(listener):
            yield listener

    @asynccontextmanager
    async def _legacy(self, listener: Listener) -> AsyncIterator[None]:
        key = self._supervisor.session.outbound.next_id()
        uris = listener.filter.resource_subscriptions or []
        self._open[key] = listener
        self._supervisor.start_soon(lambda: self._end_with_connection(listener))
        try:
            for uri in uris:
                await self._requests.call("resources/subscribe", {"uri": uri})
            yield
        finally:
            self._forget(key, listener)
            with trio.move_on_after(UNSUBSCRIBE_TIMEOUT, shield=True):
                await self._unsubscribe(set(uris) - self._wanted())

    async def _unsubscribe(self, uris: set[str]) -> None:
        try:
            for uri in sorted(uris):
                await self._requests.call("resources/unsubscribe", {"uri": uri})
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
            with trio.move_on_after(self._requests.options.idle):
                await listener.acknowledged.wait()
            listener.raise_if_lost()
            if not listener.acknowledged.is_set():
                raise CallTimeout("subscriptions/listen", "idle", self._requests.options.idle)
            yield
        finally:
            self._forget(id, listener)

    def _forget(self, id: int, listener: Listener) -> None:
        # Ids begin anew with each connection: another listener may have this one by now.
        if self._open.get(id) is listener:
            del self._open[id]
        listener.end()

    async def _hold_open(self, id: int, listener: Listener) -> None:
        filter = self._requests.negotiated.era.unstructure(listener.filter)
        method, params = "subscriptions/listen", {"notifications": filter}
        lost: BaseException | None = None
        try:
            with trio.CancelScope() as scope:
                listener.on_end = lambda: scope.cancel(reason="the listener is closed")
                session = self._supervisor.session
                metadata = self._requests.mirroring.image(
                    session, self._requests.negotiated.era, method, params
                )
                await session.request(method, params, UNBOUNDED, id=id, metadata=metadata)
        except McpError as error:
            lost = error
        finally:
            listener.end(lost)


def _filter_of(kinds: Collection[EventKind]) -> SubscriptionFilter:
    return SubscriptionFilter(
        tools_list_changed="tools" in kinds or None,
        prompts_list_changed="prompts" in kinds or None,
        resources_list_changed="resources" in kinds or None,
    )
