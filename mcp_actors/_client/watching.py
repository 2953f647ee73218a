"""Lists and resources that keep themselves: first the state, then what differs, for as long as a block is open.

The reader asks, and not a task in the background: `StateWatch.__anext__` waits until the state may be another one,
reads it from the server, and returns it if it differs from what this reader saw last. So a slow reader gets the newest
state, the differences of all that it has missed are one, and nothing waits in a queue.

=============================================== ====================================================================
the state is read                               because
=============================================== ====================================================================
at the first look                               the reader has seen nothing
after the server has said that it changed       the answer to an earlier request may be older than that
whenever a subscription begins                  changes before it were told to no one: after a loss of the connection,
                                                a restart of the server, a subscription that broke off
whenever a session's stream begins anew         the connection of the stream was lost, and what the server had to say in
                                                between is kept nowhere
a second after a change that no answer shows    behind a load balancer the answer may come from a node that has not
                                                heard of the change yet; once for each change
after `ttlMs`, where no changes are announced   the server has said for how long its answer is good
each minute, where announced changes get lost   a session over HTTP has no stream, or has lost it for good
=============================================== ====================================================================

Where a server announces no changes and names no time, the state is read once, and again in each new connection.

No state is older than the one before. Each is asked for after the answer to the one before has come, and after
whatever made it necessary. A list of several pages is read again if something has changed between them, or if they
are not of one session, `MOST_READS` times at most. What several nodes of a server answer differently at one time has
no order, and is shown as it comes.

A failure of the connection delays the next state until there is one again. What the server itself says is raised, and
the iteration may go on after it, for as long as the program likes: the server is asked again after a pause that grows
from 1 s to 30 s with each failure in a row, and at once when it has announced something meanwhile. A resource that is
gone is asked for again when something is heard of it, if the server announces its changes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar

import attrs
import trio

from mcp_actors._client.connectivity import Connectivity, Negotiated
from mcp_actors._client.notifications import LISTEN_AGAIN, Listener, Subscriptions
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import Requests
from mcp_actors._eras.era import Event, EventKind
from mcp_actors.errors import (
    INVALID_PARAMS,
    AuthorizationError,
    AuthorizationUnavailable,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    Overloaded,
    ResourceNotFound,
    RpcError,
    ServerStopping,
    SessionExpired,
    SharedStateUnavailable,
    Unavailable,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from mcp_actors.supervision.logging import log
from mcp_actors.types import ReadResourceResult, SubscriptionFilter

__all__ = ["ListChange", "StateWatch", "WatchedList", "WatchedResource", "WatchedState"]

T = TypeVar("T")

# Seconds: what a server calls good for less is not asked for more often; what it calls good for longer is asked for
# again after a day.
LEAST_AGE, MOST_AGE = 1.0, 24 * 3600.0
# Seconds between two looks at what changes and cannot be heard of.
LOOK_WITHOUT_STREAM = 60.0
# Seconds after which a change is looked for again that no answer shows.
LOOK_AGAIN = 1.0
# A list that changes all the time is shown after so many attempts, as it was read.
MOST_READS = 3
# The failures after which the same request may well be answered.
_PASSING = (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    ServerStopping,
    SessionExpired,
    SharedStateUnavailable,
    Unavailable,
    UpstreamTimeout,
    UpstreamUnavailable,
)


@attrs.frozen(eq=False)
class ListChange(Generic[T]):
    """A list as it is now, and what differs from what the same reader saw before. At first all of it was added.

    An entry is the same one as long as it has its name, or its URI. Where nothing was added, removed or changed, the
    server lists the same entries in another order.
    """

    added: list[T]
    """The entries that were not there."""
    removed: list[T]
    """The entries that are not there any more, as they were."""
    changed: list[T]
    """The entries that were described differently, as they are now."""
    all: list[T]
    """All entries, in the server's order."""

    def __repr__(self) -> str:
        return (
            f"<ListChange {len(self.all)} entries: +{len(self.added)} -{len(self.removed)} "
            f"~{len(self.changed)}>"
        )


@attrs.define
class _Counts:
    marks: int = 0
    """Beginnings of subscriptions, and changes that were announced."""
    events: int = 0
    """The latter alone."""


@attrs.define
class _NextLook:
    """The next one of a watch that hears nothing."""

    at: float = math.inf
    failures: int = 0
    """Looks in a row that have failed."""


@attrs.frozen(eq=False)
class WatchedState:
    """The thing that a client watches: a kind of changes, and for a resource its URI."""

    kind: EventKind
    uri: str | None
    method: str
    """The request that reads it."""

    def filter(self, negotiated: Negotiated) -> SubscriptionFilter:
        """Returns the subscription to its changes."""
        return SubscriptionFilter(
            tools_list_changed=self.kind == "tools" or None,
            prompts_list_changed=self.kind == "prompts" or None,
            resources_list_changed=self.kind == "resources" or None,
            resource_subscriptions=None if self.uri is None else [self.uri],
        )

    def is_announced(self, listener: Listener, negotiated: Negotiated) -> bool:
        """Whether the server tells of all changes: it has granted the subscription, or declared it for sessions."""
        if negotiated.era.client.listen_method is None:
            # What a session has subscribed to was granted by the answer to the request.
            declared = getattr(negotiated.capabilities, self.kind, None)
            return self.uri is not None or bool(declared is not None and declared.list_changed)
        honored = listener.honored
        if honored is None:
            return False
        if self.uri is not None:
            return self.uri in (honored.resource_subscriptions or ())
        return bool(getattr(honored, f"{self.kind}_list_changed"))


class StateWatch(AsyncIterator[T], Generic[T]):
    """One watch, as an async iterator; made by `Client.watch_tools` and its like.

    Args:
        watched: Its subject.
        connectivity: The client's session of the moment.
        requests: Make the requests.
        subscriptions: Hold the subscription.
    """

    def __init__(
        self,
        watched: WatchedState,
        connectivity: Connectivity,
        requests: Requests,
        subscriptions: Subscriptions,
    ) -> None:
        self._watched = watched
        self._connectivity = connectivity
        self._requests = requests
        self._subscriptions = subscriptions
        # What may have changed the state, and how much of it the state was read after.
        self._now, self._seen = _Counts(), _Counts(-1)
        self._next = _NextLook()
        self._changes: Literal["not announced", "announced", "announced, and lost"] = "not announced"
        self._woken = trio.Event()
        # One reader at a time: each gets what differs from what was returned last.
        self._lock = trio.Lock()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._failure: McpError | None = None
        self._is_left = False

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "open"
        return f"<StateWatch of {self._watched.method} {state} {self._now.marks} changes>"

    # -- the subscription ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[StateWatch[T]]:
        """Subscribes for the length of the block, in whatever connections there are meanwhile.

        Raises:
            LocalProtocolError: The server did not declare what is watched, or the client is not connected.
        """
        self._requests.require(self._watched.method)
        self._subscriptions.run(self._follow)
        try:
            yield self
        finally:
            self._is_left = True
            self._scope.cancel(reason="the watch is closed")
            # The end of a subscription is bounded.
            with trio.CancelScope(shield=True):
                await self._ended.wait()

    async def _follow(self) -> None:
        try:
            with self._scope:
                await self._subscriptions.hold(self._watched.filter, self._began, self._changed)
        except McpError as error:
            self._failure = error
        finally:
            self._ended.set()
            self._woken.set()

    def _began(self, listener: Listener | None) -> None:
        self._changes = "not announced"
        negotiated = self._connectivity.negotiated
        if listener is not None and self._watched.is_announced(listener, negotiated):
            arrive = self._subscriptions.receives_changes(negotiated)
            self._changes = "announced" if arrive else "announced, and lost"
        # The answer to a request that is on its way may be older than this.
        self._requests.flights.close(self._watched.method)
        self._mark()

    def _changed(self, event: Event) -> None:
        self._now.events += 1
        self._mark()

    def _mark(self) -> None:
        self._now.marks += 1
        self._woken.set()
        if not self._ended.is_set():
            self._woken = trio.Event()

    # -- the reader ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> StateWatch[T]:
        return self

    async def __anext__(self) -> T:
        """Returns the state once it differs from the one that was returned last; cancelled, nothing is lost.

        Raises:
            StopAsyncIteration: The block was left.
            ConnectionLost: There is no connection, and none will be made.
            ConnectFailed: The last attempt to connect again failed, and no other one will be made.
            McpError: What the request raises, but for a connection that failed, a call without an answer in time, and
                a server that is overloaded or stops: after these it is made again. The next look after an error waits,
                for 1 s to 30 s as errors follow each other, unless the server announces a change.
        """
        async with self._lock:
            while True:
                await self._wait_until_due()
                marks, events = self._now.marks, self._now.events
                try:
                    differs, ttl_ms = await self._read()
                except McpError as error:
                    self._seen.marks = marks
                    self._plan_after(error, events)
                    if not _is_passing(error):
                        raise
                    log.debug(
                        "what is watched cannot be read yet", method=self._watched.method, error=str(error)
                    )
                    continue
                self._next.failures = 0
                self._seen.marks = marks
                self._plan(not differs and events != self._seen.events, ttl_ms)
                self._seen.events = events
                if differs:
                    return self._shown()

    async def next_many(self) -> list[T]:
        """Returns the next state in a list, for programs that do not run on Trio; raises as `__anext__` does."""
        return [await self.__anext__()]

    def _plan(self, is_hidden: bool, ttl_ms: int | None) -> None:
        """Decides when the state is read again although nothing is heard of it."""
        now = trio.current_time()
        self._next.at = math.inf
        if is_hidden:
            self._next.at = now + LOOK_AGAIN
        elif self._changes != "announced" and ttl_ms:
            self._next.at = now + max(LEAST_AGE, min(ttl_ms / 1000, MOST_AGE))
        elif self._changes == "announced, and lost":
            self._next.at = now + LOOK_WITHOUT_STREAM

    def _plan_after(self, error: McpError, events: int) -> None:
        """Decides when the state is read again after an attempt that failed, although nothing is heard of it."""
        asked = getattr(error, "retry_after", None)
        pause = LISTEN_AGAIN[min(self._next.failures, len(LISTEN_AGAIN) - 1)]
        self._next.at = trio.current_time() + max(pause, min(asked or 0.0, MOST_AGE))
        self._next.failures += 1
        if isinstance(error, ResourceNotFound):
            self._seen.events = events
            if self._changes == "announced":
                self._next.at = math.inf

    async def _wait_until_due(self) -> None:
        await trio.lowlevel.checkpoint()
        while True:
            if self._ended.is_set() or self._is_left:
                self._raise_end()
            left = self._next.at - trio.current_time()
            # Before the first subscription is in force, or refused, the state would have to be read once more.
            if self._now.marks and (self._now.marks != self._seen.marks or left <= 0):
                return
            with trio.move_on_after(left):
                await self._woken.wait()

    def _raise_end(self) -> None:
        if self._is_left:
            raise StopAsyncIteration
        if isinstance(self._failure, AuthorizationError):
            raise self._failure.as_new()
        # It raises why there is none.
        session = self._connectivity.session
        raise ConnectionLost(f"the client is closed, and its connection to {session.peer}")

    async def _read(self) -> tuple[bool, int | None]:
        """Reads the state. Returns whether it differs from the one that was shown last, and for how long it is good."""
        raise NotImplementedError

    def _shown(self) -> T:
        """Returns the state that was read, which counts as shown from now on."""
        raise NotImplementedError


def _is_passing(error: McpError) -> bool:
    """Whether the same request may well be answered later."""
    if isinstance(error, AuthorizationError):
        return isinstance(error, AuthorizationUnavailable)
    return isinstance(error, _PASSING)


class WatchedList(StateWatch[ListChange[T]], Generic[T]):
    """A list that keeps itself.

    Args:
        list_page: Asks the server for the page with a cursor.
        entries: Returns the entries of a page.
        key: Returns what makes an entry the same one.
    """

    def __init__(
        self,
        watched: WatchedState,
        connectivity: Connectivity,
        requests: Requests,
        subscriptions: Subscriptions,
        list_page: Callable[[str | None], Awaitable[Any]],
        entries: Callable[[Any], list[T]],
        key: Callable[[T], str],
    ) -> None:
        super().__init__(watched, connectivity, requests, subscriptions)
        self._list_page, self._entries, self._key = list_page, entries, key
        self._former: dict[str, T] | None = None
        self._newest: dict[str, T] = {}

    async def _read(self) -> tuple[bool, int | None]:
        ttl_ms: int | None = None
        for attempt in range(MOST_READS):
            marks, session = self._now.marks, self._requests.session
            pages: list[int | None] = []
            found: dict[str, T] = {}
            try:
                async for entry in AllPages(self._page_into(pages), self._entries):
                    found[self._key(entry)] = entry
            except LocalProtocolError:
                # The server that is there now has no such list.
                if self._former is None or self._requests.has_method(self._watched.method):
                    raise
            except RpcError as error:
                # The cursor may be of a list that is gone.
                if error.code != INVALID_PARAMS or not pages or attempt == MOST_READS - 1:
                    raise
                continue
            self._newest = found
            ttl_ms = min((each for each in pages if each is not None), default=None)
            if len(pages) < 2 or (self._now.marks == marks and self._requests.session is session):
                break
        former = self._former
        return former is None or former != found or list(former) != list(found), ttl_ms

    def _page_into(self, pages: list[int | None]) -> Callable[[str | None], Awaitable[Any]]:
        async def list_page(cursor: str | None) -> Any:
            page = await self._list_page(cursor)
            pages.append(page.ttl_ms)
            return page

        return list_page

    def _shown(self) -> ListChange[T]:
        former, now = self._former or {}, self._newest
        self._former = now
        return ListChange(
            added=[entry for key, entry in now.items() if key not in former],
            removed=[entry for key, entry in former.items() if key not in now],
            changed=[entry for key, entry in now.items() if key in former and former[key] != entry],
            all=list(now.values()),
        )


class WatchedResource(StateWatch[ReadResourceResult]):
    """A resource that keeps itself.

    Args:
        read: Asks the server for its contents.
    """

    def __init__(
        self,
        watched: WatchedState,
        connectivity: Connectivity,
        requests: Requests,
        subscriptions: Subscriptions,
        read: Callable[[], Awaitable[ReadResourceResult]],
    ) -> None:
        super().__init__(watched, connectivity, requests, subscriptions)
        self._read_resource = read
        self._former: ReadResourceResult | None = None
        self._newest: ReadResourceResult | None = None

    async def _read(self) -> tuple[bool, int | None]:
        try:
            self._newest = newest = await self._read_resource()
        except ResourceNotFound:
            self._former = None
            raise
        former = self._former
        return former is None or former.contents != newest.contents, newest.ttl_ms

    def _shown(self) -> ReadResourceResult:
        assert self._newest is not None
        self._former = self._newest
        return self._newest
