"""Lists that go on from a registry into its sources, and components that only a source has.

`list_result` answers a request for a page, and `with_entry` one for a component, at once where no source is asked.

A list has the entries of the registry first, then those of the sources in their order. A page is filled by asking one
source after the other for as much as there is room for, and no source is read further. The cursor of a page that ends
within the sources has the place of a source, its own cursor, and how many entries of that page were shown; it is sealed
with the server's key, so that a source is given no cursor but its own ones. `registry.page` has those of the rest.

A source that fails or is too slow costs its own part of a list, of which the client is told in a log message, and the
calls of what it has. Its page may be full of what a caller does not see: after `MOST_ASKED` pages the client gets the
cursor, and what was found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import trio

from mcp_actors._actors.inbound_call import Continuation, finished
from mcp_actors._server.components import KINDS_OF_NAMED_LISTS, ComponentKind
from mcp_actors._server.context import Context, principal_of
from mcp_actors._server.registry import ComponentSource, Registry, page
from mcp_actors._server.visibility import Caller, caller_of
from mcp_actors.errors import RpcError, UpstreamUnavailable, invalid_params
from mcp_actors.supervision.printable import printable

__all__ = ["MOST_ASKED", "found_in_sources", "list_result", "with_entry", "with_provided"]

# Pages of sources that are asked for to fill one page of a list.
MOST_ASKED = 10
# Seconds after which no further page of a source is asked for.
LIST_WAIT = 5.0
# What a cursor of `registry.page` cannot begin with.
_SEALED = "."
# Sources that a log message names, and characters of a name there.
_MOST_NAMED, _SHOWN = 10, 100

T = TypeVar("T")


class _PlaceInSources(NamedTuple):
    """The place in the sources at which a page begins."""

    source: int = 0
    cursor: str | None = None
    offset: int = 0
    """How many entries of the source's page were shown."""
    name: str = ""
    """The name of the source, by which it is found when others were added and removed."""


def list_result(
    registry: Registry[Any], ctx: Context, which: str, rows: Sequence[Any], make: Callable[..., T]
) -> T | Continuation:
    """Returns the page of a list that a request asks for.

    Args:
        registry: Has the entries and the sources.
        ctx: The request.
        which: The list.
        rows: The entries of the registry that the caller is listed.
        make: The class of the result.

    Raises:
        RpcError: The cursor does not belong to this list.
    """
    if registry.sources:
        return Continuation(_list_with_sources, registry, ctx, which, rows, make)
    shown, cursor = page(rows, ctx.params, kind=which, size=registry.page_size)
    return _result(registry, make, shown, cursor)


def _result(
    registry: Registry[Any],
    make: Callable[..., T],
    entries: Sequence[Any],
    cursor: str | None,
    ttl_ms: int | None = None,
) -> T:
    shown = list(map(attrgetter(registry.shown_as), entries))
    return make(shown, cursor, ttl_ms=ttl_ms, cache_scope=registry.list_cache_scope)


async def _list_with_sources(
    registry: Registry[Any], ctx: Context, which: str, rows: Sequence[Any], make: Callable[..., T]
) -> T:
    kind = KINDS_OF_NAMED_LISTS[which]
    sources = [each for each in registry.sources if kind in each.kinds]
    cursor = ctx.params.get("cursor")
    shown: list[Any] = []
    if isinstance(cursor, str) and cursor.startswith(_SEALED):
        place = _opened(ctx, which, cursor, sources)
    else:
        own, following = page(rows, ctx.params, kind=which, size=registry.page_size)
        if following is not None or not sources:
            return _result(registry, make, own, following)
        shown += own
        place = _PlaceInSources()
    reading = _PageOfSources(registry, caller_of(ctx), kind, sources, shown)
    left = await reading.fill(place)
    if reading.missing:
        await _say_what_is_missing(ctx, which, reading.missing)
    following = None if left is None else _sealed(ctx, which, left, sources)
    # What is incomplete must not be kept by a client.
    return _result(registry, make, shown, following, 0 if reading.missing else None)


class _PageOfSources:
    """A page that is being filled."""

    def __init__(
        self,
        registry: Registry[Any],
        caller: Caller,
        kind: ComponentKind,
        sources: Sequence[ComponentSource],
        shown: list[Any],
    ) -> None:
        self.missing: list[str] = []
        self._registry = registry
        self._caller = caller
        self._kind = kind
        self._sources = sources
        self._shown = shown
        self._keys: set[str] = set()

    async def fill(self, place: _PlaceInSources) -> _PlaceInSources | None:
        """Fills the page from a place on, and returns the place of the next one, ``None`` at the end."""
        end = trio.current_time() + LIST_WAIT
        asked = 0
        while place.source < len(self._sources):
            room = self._registry.page_size - len(self._shown)
            if room <= 0 or asked == MOST_ASKED or trio.current_time() >= end:
                return place
            asked += 1
            source = self._sources[place.source]
            if source.is_late:
                self.missing.append(source.name)
                place = _PlaceInSources(place.source + 1)
                continue
            try:
                found = await source.page(self._caller, self._kind, place.cursor, room)
            except RpcError:
                self.missing.append(source.name)
                place = _PlaceInSources(place.source + 1)
            else:
                place = self._taken(source, place, *found)
        return None

    def _taken(
        self, source: ComponentSource, place: _PlaceInSources, entries: Sequence[Any], following: str | None
    ) -> _PlaceInSources:
        registry, taken = self._registry, place.offset
        for entry in entries[place.offset :]:
            if len(self._shown) == registry.page_size:
                break
            taken += 1
            # What is registered goes first, be it hidden: a call of the name would be one of that.
            is_taken = entry.key in registry.by_key or entry.key in self._keys
            if not is_taken and registry.lists(self._caller, entry):
                self._keys.add(entry.key)
                registry.learn(entry.key, source)
                self._shown.append(entry)
        if taken < len(entries):
            return place._replace(offset=taken)
        return (
            _PlaceInSources(place.source + 1)
            if following is None
            else _PlaceInSources(place.source, following)
        )


async def _say_what_is_missing(ctx: Context, which: str, names: Sequence[str]) -> None:
    shown = ", ".join(printable(each, _SHOWN) for each in names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    verb = "does" if len(names) == 1 else "do"
    text = f"the list of {which} is not complete: {shown}{more} {verb} not answer; a notification follows when it is"
    await ctx.log("warning", text, "providers")


def _sealed(ctx: Context, which: str, place: _PlaceInSources, sources: Sequence[ComponentSource]) -> str:
    payload = {"place": [place.source, place.cursor, place.offset, sources[place.source].name]}
    return _SEALED + ctx._scope.sealer.seal(payload, now=time.time(), **_binding(ctx, which))


def _opened(ctx: Context, which: str, cursor: str, sources: Sequence[ComponentSource]) -> _PlaceInSources:
    try:
        opened = ctx._scope.sealer.open(cursor[1:], now=time.time(), **_binding(ctx, which))
        place = _PlaceInSources(*opened["place"])
    except (RpcError, KeyError, TypeError):
        raise invalid_params("invalid cursor") from None
    index = next((at for at, each in enumerate(sources) if each.name == place.name), None)
    # Without that source the list goes on with the one behind it, which is in its place now.
    return _PlaceInSources(place.source) if index is None else place._replace(source=index)


def _binding(ctx: Context, which: str) -> dict[str, Any]:
    """A cursor is good for one list of one principal."""
    return {"method": "cursor", "target": which, "principal": principal_of(ctx.call)}


def with_entry(
    registry: Registry[Any], ctx: Context, kind: ComponentKind, key: str, use: Callable[[Any], Any]
) -> Any:
    """Returns what ``use`` makes of the entry that a caller asks for, which may be a `Continuation`.

    Args:
        registry: Has the entries and the sources.
        ctx: The request.
        kind: What is asked for.
        key: Its key.
        use: Is given the entry, ``None`` without one and for one that the caller must not know of.

    Raises:
        InsufficientScope, NotAllowed: As `Registry.find` says.
    """
    entry = registry.find(ctx, key)
    if entry is None and registry.sources:
        return Continuation(with_provided, registry, ctx, kind, key, use)
    return use(entry)


async def with_provided(
    registry: Registry[Any], ctx: Context, kind: ComponentKind, key: str, use: Callable[[Any], Any]
) -> Any:
    """As `with_entry`, for what the registry has not."""
    return await finished(use(await found_in_sources(registry, ctx, kind, key)))


async def found_in_sources(
    registry: Registry[Any], ctx: Context, kind: ComponentKind, key: str
) -> Any | None:
    """Returns the entry that a caller asks for and only a source has; ``None`` if it must not know of one.

    Raises:
        InsufficientScope, NotAllowed: The caller may not use it.
        UpstreamUnavailable: A source that may have it cannot be asked, and no other one has it.
        RpcError: A source has raised it.
    """
    if key in registry.by_key:
        return None
    caller, known = caller_of(ctx), registry.learned.get(key)
    able = [each for each in registry.sources if kind in each.kinds]
    # One that has had it before is asked first, and one that others would have to wait for is asked last.
    able.sort(key=lambda each: (each is not known, each.is_late))
    failure: UpstreamUnavailable | None = None
    for source in able:
        try:
            entry = await source.get(caller, kind, key)
        except UpstreamUnavailable as error:
            failure = failure or error
            continue
        if entry is not None:
            registry.learn(entry.key, source)
            return registry.chosen(ctx, (entry,))
    try:
        if failure is not None:
            raise failure
    finally:
        # Its traceback has this frame, which the collector would have to free.
        del failure
    return None
