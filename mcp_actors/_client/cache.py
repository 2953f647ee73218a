"""Spares a client from asking: requests that are one, answers that it has, and answers that others were given.

================= ==================================================================================================
`Flights`         lists and reads that are asked for at the same time are one request
`ResponseCache`   answers are good for as long as the server says (MCP 2026-07-28, Caching); one with a tag is kept
                  longer, and the server is asked whether it still is the answer (`mcp_actors.extensions.ETags`)
`SharedAnswers`   what a server has answered one process is good for the others: ``Client(cache=shared_state)``
================= ==================================================================================================
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.options import ClientOptions
from mcp_actors._eras.era import ETAG, UNCHANGED, EventKind
from mcp_actors._wire.codec import decode_value, encode_params, encode_value
from mcp_actors.abc import OpenState, SharedState
from mcp_actors.errors import (
    CallTimeout,
    ConnectionLost,
    MalformedMessage,
    RemoteProtocolError,
    SharedStateUnavailable,
)
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CLIENT_READ

__all__ = ["STALE", "Flights", "KnownAnswer", "ResponseCache", "SharedAnswers", "validated"]

STALE: dict[EventKind, tuple[str, ...]] = {
    "tools": ("tools/list",),
    "prompts": ("prompts/list",),
    "resources": ("resources/list", "resources/templates/list"),
    "resource_updated": ("resources/read",),
}
"""Which answers a change notification makes stale, whatever their time to live."""

# Enough for the lists and resources a program works with; beyond it the oldest answer goes.
MAX_ENTRIES = 256
# Seconds. What a server calls good for longer is asked for again after a day.
MAX_AGE = 24 * 3600.0


# -- one request for all who ask -------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _SharedRequest:
    """A request that is on its way, for all who wait for its answer."""

    began: float
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    done: trio.Event = attrs.field(factory=trio.Event)
    waiting: int = 0
    result: Any = None
    error: Exception | None = None


class Flights:
    """The lists and reads of one client that are on their way.

    Each has a task of its own, so that a caller which gives up ends nobody else's request; the last one that leaves
    cancels it. A caller joins a request only if the answer cannot be older than what it knows: not after a change was
    announced, after another call of this client was answered, which may have changed something, or in another session.
    """

    def __init__(self) -> None:
        self.open: dict[Any, _SharedRequest] = {}
        """Those that may be joined. The first part of a key is the method."""
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Flights {len(self.open)}>"

    def run_in(self, nursery: trio.Nursery) -> None:
        """Takes the nursery for the tasks."""
        self._nursery = nursery

    def takes(self, options: CallOptions) -> bool:
        """Whether nothing about a request is its caller's own."""
        return (
            self._nursery is not None
            and options.on_progress is None
            and options.on_message is None
            and options.envelope is None
            and not options.meta
            and not options.sends_deadline
            and options.waits_for_server
        )

    def close(self, *methods: str) -> None:
        """Lets no further caller join requests of these methods, by default of all."""
        if methods:
            for key in [key for key in self.open if key[0] in methods]:
                del self.open[key]
        else:
            self.open.clear()

    async def share(
        self, key: Any, options: CallOptions, ask: Callable[[CallOptions], Awaitable[Any]]
    ) -> Any:
        """Returns the answer to a request that ``ask`` makes, or to the same one that is on its way.

        Raises:
            Exception: What the request raises; the time of a caller that has joined it late begins with its own call.
        """
        flight = self.open.get(key)
        has_joined, began = flight is not None, trio.current_time()
        if flight is None:
            flight = self.open[key] = _SharedRequest(began)
            assert self._nursery is not None
            start(self._nursery, CLIENT_READ, self._fly, key, flight, options, ask, about=key[0])
        flight.waiting += 1
        try:
            await flight.done.wait()
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.done.is_set():
                self._forget(key, flight)
                flight.scope.cancel(reason="the last caller has gone")
                # As for any request, the cancellation is on its way when its caller goes on.
                with trio.CancelScope(shield=True):
                    await flight.done.wait()
        if has_joined and isinstance(flight.error, CallTimeout):
            left = options.cap - (trio.current_time() - began)
            if left > 0:
                return await ask(attrs.evolve(options, cap=left))
        return _taken(flight)

    async def _fly(
        self,
        key: Any,
        flight: _SharedRequest,
        options: CallOptions,
        ask: Callable[[CallOptions], Awaitable[Any]],
    ) -> None:
        try:
            with flight.scope:
                flight.result = await ask(options)
        except Exception as error:
            flight.error = error
        finally:
            self._forget(key, flight)
            if flight.result is None and flight.error is None:
                flight.error = ConnectionLost("the client is closed")
            flight.done.set()

    def _forget(self, key: Any, flight: _SharedRequest) -> None:
        if self.open.get(key) is flight:
            del self.open[key]


def _taken(flight: _SharedRequest) -> Any:
    """Returns the result, or raises the error: the last caller gets it itself, and those before it have copies.

    A caller may change what it got before the next one has taken its own.
    """
    is_last = not flight.waiting
    result, error = flight.result, flight.error
    if is_last:
        # The traceback of the error leads back to this, which must not keep it.
        flight.result = flight.error = None
    if error is None:
        return result if is_last else copy.deepcopy(result)
    if not is_last:
        # One that is raised twice mixes up two tracebacks.
        first = error
        error = type(first).__new__(type(first))
        error.args = first.args
        error.__dict__.update(first.__dict__)
        error.__cause__ = first.__cause__
        del first
    try:
        raise error
    finally:
        del error


# -- answers that the client has -------------------------------------------------------------------------------------


class KnownAnswer(NamedTuple):
    """An answer that may still be the right one."""

    etag: str
    data: bytes


class _CachedAnswer(NamedTuple):
    fresh_until: float
    data: bytes
    etag: str | None


class ResponseCache:
    """Answers by method and params; the oldest are dropped. Times are those of the caller's clock, in seconds.

    Answers are kept as bytes, which are what ``max_bytes`` bounds: as objects they take many times that.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[tuple[str, bytes], _CachedAnswer] = {}
        self.changes = 0
        self.clears = 0
        """How often everything was dropped."""

    def __repr__(self) -> str:
        return f"<ResponseCache {len(self._entries)}/{MAX_ENTRIES} {self._bytes}/{self._max_bytes} bytes>"

    def get(self, method: str, params: dict[str, Any], now: float) -> dict[str, Any] | None:
        """Returns the answer if it is still fresh."""
        found = self.fresh(method, params, now)
        if found is None:
            return None
        answer: dict[str, Any] = decode_value(found[1])
        return answer

    def fresh(self, method: str, params: dict[str, Any], now: float) -> tuple[float, bytes] | None:
        """Returns for how many seconds an answer is still fresh, and the answer."""
        if not self._entries:
            return None
        key = (method, encode_params(method, params))
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.fresh_until <= now:
            if entry.etag is None:
                self._drop(key)
            return None
        return entry.fresh_until - now, entry.data

    def known(self, method: str, params: dict[str, Any]) -> KnownAnswer | None:
        """Returns an answer that has a tag, fresh or not."""
        entry = self._entries.get((method, encode_params(method, params))) if self._entries else None
        return None if entry is None or entry.etag is None else KnownAnswer(entry.etag, entry.data)

    def put(
        self,
        method: str,
        params: dict[str, Any],
        result: dict[str, Any],
        now: float,
        changes: int,
        may_be_fresh: bool = True,
    ) -> None:
        """Keeps an answer that says how long it is good for, or has a tag.

        Without ``ttlMs``, or with 0, it is never fresh. ``changes`` is what this object's was when the question was
        sent: an answer that was overtaken by a change may be an old one, and is not fresh either. It takes the place of
        an older one that was refreshed.
        """
        key = (method, encode_params(method, params))
        self._drop(key)
        ttl = result.get("ttlMs")
        # Compared before it is divided: an integer of a peer may be too large for a float.
        is_fresh = (
            may_be_fresh
            and changes == self.changes
            and isinstance(ttl, int | float)
            and not isinstance(ttl, bool)
            and ttl > 0
        )
        etag = _etag_of(result)
        if not is_fresh and etag is None:
            return
        answer = encode_value(result)
        size = len(key[1]) + len(answer)
        if size > self._max_bytes:
            return
        while len(self._entries) >= MAX_ENTRIES or self._bytes + size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        fresh_until = now + min(ttl, MAX_AGE * 1000) / 1000 if is_fresh and ttl is not None else now
        self._entries[key] = _CachedAnswer(fresh_until, answer, etag)
        self._bytes += size

    def _drop(self, key: tuple[str, bytes]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(key[1]) + len(entry.data)

    def _make_stale(self, key: tuple[str, bytes]) -> None:
        entry = self._entries[key]
        if entry.etag is None:
            self._drop(key)
        else:
            self._entries[key] = entry._replace(fresh_until=-1.0)

    def invalidate(self, kind: EventKind) -> None:
        """Has no answer fresh that a change on the server makes stale.

        An update may be of something below a URI, so it concerns all resources that were read.
        """
        self.discard(*STALE[kind])

    def discard(self, *methods: str) -> None:
        """Has no answer to these methods fresh, all pages of a list."""
        self.changes += 1
        for key in [key for key in self._entries if key[0] in methods]:
            self._make_stale(key)

    def clear(self) -> None:
        """Has no answer fresh: the server is another one, or was started anew."""
        self.changes += 1
        self.clears += 1
        for key in list(self._entries):
            self._make_stale(key)

    def forget(self) -> None:
        """Drops everything: the answers were those of another caller."""
        self.changes += 1
        self.clears += 1
        self._entries.clear()
        self._bytes = 0


def _etag_of(result: Mapping[str, Any]) -> str | None:
    meta = result.get("_meta")
    etag = meta.get(ETAG) if isinstance(meta, dict) else None
    return etag if isinstance(etag, str) and 0 < len(etag) <= 256 else None


def validated(result: dict[str, Any], known: KnownAnswer | None) -> dict[str, Any]:
    """Returns the answer that a result stands for: itself, or the one that the client has, with the newest hints.

    Raises:
        RemoteProtocolError: It stands for an answer that the server was not asked about.
    """
    meta = result.get("_meta")
    if not isinstance(meta, dict) or UNCHANGED not in meta:
        return result
    if known is None:
        raise RemoteProtocolError(
            "the server says that an answer is unchanged which this client does not have"
        )
    answer: dict[str, Any] = decode_value(known.data)
    for name in ("ttlMs", "cacheScope"):
        if name in result:
            answer[name] = result[name]
        else:
            answer.pop(name, None)
    return answer


# -- answers that other processes were given -------------------------------------------------------------------------

# Seconds for which a request waits for the shared state at most; then it is made as if there was none.
SHARED_WAIT = 1.0
# Bytes of one answer that are kept for others.
LARGEST_SHARED = 1024 * 1024
_NAME = "mcp-actors-client-cache"


class SharedPlace(NamedTuple):
    """The places of one answer: for this caller alone, and for every caller."""

    method: str
    private: str | None
    """``None`` where callers cannot be told apart."""
    public: str


class SharedAnswers:
    """The answers of one server in a shared state; see ``Client(cache=)``.

    An answer is kept for as long as it says, a day at most. Unless it says that it is the same for every caller
    (``cacheScope``), it is kept under the caller: that a client has no ``auth``, or the digest of its token. With
    tokens that come and go, as those of OAuth do, only what is the same for every caller is kept. After a change, or
    with ``refresh=True``, this client asks the server itself, and replaces what is there.

    Args:
        state: Where they are kept.
        server: The URL of the server, and what the client declares.
        caller: Names the caller; ``None`` if that is not known.
    """

    def __init__(self, state: SharedState, server: bytes, caller: bytes | None) -> None:
        self._state = state
        self._server, self._caller = server, caller
        self._open: OpenState | None = None
        # By what has changed, the answers that this client has replaced since then: only these are newer.
        self._doubted: dict[str, set[str]] = {}

    def __repr__(self) -> str:
        return f"<SharedAnswers {'open' if self._open is not None else 'closed'} doubted={sorted(self._doubted)}>"

    @classmethod
    def of(cls, options: ClientOptions) -> SharedAnswers | None:
        """Returns those of a client, ``None`` if it shares none."""
        if options.cache is None:
            return None
        assert isinstance(options.target, str)
        caller: bytes | None = b""
        if options.auth is not None:
            token = getattr(options.auth, "token", None)
            caller = token.encode() if isinstance(token, str) else None
        declared = repr((options.target, options.capabilities, options.settings, sorted(options.handlers)))
        return cls(options.cache, declared.encode(), caller)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keeps the state open; without it the client asks the server each time."""
        async with AsyncExitStack() as stack:
            try:
                self._open = await stack.enter_async_context(self._state.open(_NAME))
            except SharedStateUnavailable as error:
                log.warning("a client shares no answers with others", cause=error.cause)
            try:
                yield
            finally:
                self._open = None

    def doubt(self, kind: EventKind) -> None:
        """Something has changed on the server: what others have kept may be older."""
        for method in STALE[kind]:
            self._doubted[method] = set()

    def place_of(self, method: str, params: Mapping[str, Any], negotiated: Negotiated) -> SharedPlace:
        """Returns where an answer is kept."""
        asked = encode_value([negotiated.era.version, method]) + encode_params(method, params)
        private = None if self._caller is None else _digest(self._server, b"private", self._caller, asked)
        return SharedPlace(method, private, _digest(self._server, b"public", b"", asked))

    async def get(self, place: SharedPlace) -> dict[str, Any] | None:
        """Returns an answer that is still good, with the rest of its time."""
        state, replaced = self._open, self._doubted.get(place.method)
        if state is None:
            return None
        with trio.move_on_after(SHARED_WAIT):
            for key in (place.private, place.public):
                if key is None or (replaced is not None and key not in replaced):
                    continue
                try:
                    data = await state.values.load(key)
                    found = None if data is None else decode_value(data)
                except (SharedStateUnavailable, MalformedMessage) as error:
                    log.debug("an answer of another process cannot be read", error=str(error))
                    return None
                if isinstance(found, list) and len(found) == 2 and found[0] > time.time():
                    result: dict[str, Any] = found[1]
                    return {**result, "ttlMs": round((found[0] - time.time()) * 1000)}
        return None

    async def put(self, place: SharedPlace, seconds: float, data: bytes) -> None:
        """Keeps an answer, in the place of an older one."""
        state = self._open
        result = decode_value(data)
        key = place.public if result.get("cacheScope") == "public" else place.private
        if state is None or key is None or len(data) > LARGEST_SHARED:
            return
        after = encode_value([time.time() + seconds, result])
        with trio.move_on_after(SHARED_WAIT):
            try:
                if await state.values.replace(key, await state.values.load(key), after, seconds):
                    replaced = self._doubted.get(place.method)
                    if replaced is not None and len(replaced) < MAX_ENTRIES:
                        replaced.add(key)
            except SharedStateUnavailable as error:
                log.debug("an answer is not kept for other processes", cause=error.cause)


def _digest(*parts: bytes) -> str:
    # Each part by its own digest: no two lists of parts have the same bytes.
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in parts)).hexdigest()
