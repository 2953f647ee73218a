"""Lists that go on from a registry into its sources, and components that only a source has.

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
from collections.abc import Sequence
from typing import Any, NamedTuple

import trio

from mcp_actors._server.components import KINDS_OF_NAMED_LISTS, ComponentKind
from mcp_actors._server.context import Context, principal_of
from mcp_actors._server.registry import Registry, Source, page
from mcp_actors._server.visibility import Caller, caller_of
from mcp_actors.errors import RpcError, UpstreamUnavailable, invalid_params
from mcp_actors.supervision.printable import printable

__all__ = ["MOST_ASKED", "FoundPage", "found_in_sources", "page_with_sources"]

# Pages of sources that are asked for to fill one page of a list.
MOST_ASKED = 10
# Seconds after which no further page of a source is asked for.
LIST_WAIT = 5.0
# Characters of a name that sources are asked for. What model providers take is a tenth of them.
LONGEST_NAME = 1_024
# What a cursor of `registry.page` cannot begin with.
_SEALED = "."
# Sources that a log message names, and characters of a name there.
_MOST_NAMED, _SHOWN = 10, 100


class FoundPage(NamedTuple):
    """One page of a list."""

    entries: Sequence[Any]
    cursor: str | None
    ttl_ms: int | None
    """0 where something is missing, so that no client keeps it; ``None`` for that of the server."""


class _Place(NamedTuple):
    """The place in the sources at which a page begins."""

    index: int = 0
    cursor: str | None = None
    offset: int = 0
    """How many entries of the source's page were shown."""
    name: str = ""
    """The name of the source, by which it is found when others were added and removed."""


async def page_with_sources(
    registry: Registry[Any], ctx: Context, which: str, rows: Sequence[Any]
) -> FoundPage:
    """Returns the page of a list that a request asks for.

    Args:
        registry: Has the entries and the sources.
        ctx: The request.
        which: The list.
        rows: The entries of the registry that the caller is listed.

    Raises:
        RpcError: The cursor does not belong to this list.
    """
    kind = KINDS_OF_NAMED_LISTS[which]
    sources = [each for each in registry.sources if kind in each.kinds]
    cursor = ctx.params.get("cursor")
    shown: list[Any] = []
    if isinstance(cursor, str) and cursor.startswith(_SEALED):
        place = _opened(ctx, which, cursor, sources)
    else:
        own, following = page(rows, ctx.params, kind=which, size=registry.page_size)
        if following is not None or not sources:
            return FoundPage(own, following, None)
        shown += own
        place = _Place()
    reading = _Reading(registry, caller_of(ctx), kind, sources, shown)
    left = await reading.fill(place)
    if reading.missing:
        await _say_what_is_missing(ctx, which, reading.missing)
    return FoundPage(
        shown, None if left is None else _sealed(ctx, which, left, sources), 0 if reading.missing else None
    )


class _Reading:
    """A page that is being filled."""

    def __init__(
        self,
        registry: Registry[Any],
        caller: Caller,
        kind: ComponentKind,
        sources: Sequence[Source],
        shown: list[Any],
    ) -> None:
        self.missing: list[str] = []
        self._registry = registry
        self._caller = caller
        self._kind = kind
        self._sources = sources
        self._shown = shown
        self._keys: set[str] = set()

    async def fill(self, place: _Place) -> _Place | None:
        """Fills the page from a place on, and returns the place of the next one, ``None`` at the end."""
        end = trio.current_time() + LIST_WAIT
        asked = 0
        while place.index < len(self._sources):
            room = self._registry.page_size - len(self._shown)
            if room <= 0 or asked == MOST_ASKED or trio.current_time() >= end:
                return place
            asked += 1
            source = self._sources[place.index]
            if source.is_late:
                self.missing.append(source.name)
                place = _Place(place.index + 1)
                continue
            try:
                found = await source.page(self._caller, self._kind, place.cursor, room)
            except RpcError:
                self.missing.append(source.name)
                place = _Place(place.index + 1)
            else:
                place = self._taken(source, place, *found)
        return None

    def _taken(self, source: Source, place: _Place, entries: Sequence[Any], following: str | None) -> _Place:
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
        return _Place(place.index + 1) if following is None else _Place(place.index, following)


async def _say_what_is_missing(ctx: Context, which: str, names: Sequence[str]) -> None:
    shown = ", ".join(printable(each, _SHOWN) for each in names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    verb = "does" if len(names) == 1 else "do"
    text = f"the list of {which} is not complete: {shown}{more} {verb} not answer; a notification follows when it is"
    await ctx.log("warning", text, "providers")


def _sealed(ctx: Context, which: str, place: _Place, sources: Sequence[Source]) -> str:
    payload = {"place": [place.index, place.cursor, place.offset, sources[place.index].name]}
    return _SEALED + ctx._scope.sealer.seal(payload, now=time.time(), **_binding(ctx, which))


def _opened(ctx: Context, which: str, cursor: str, sources: Sequence[Source]) -> _Place:
    try:
        opened = ctx._scope.sealer.open(cursor[1:], now=time.time(), **_binding(ctx, which))
        place = _Place(*opened["place"])
    except (RpcError, KeyError, TypeError):
        raise invalid_params("invalid cursor") from None
    index = next((at for at, each in enumerate(sources) if each.name == place.name), None)
    # Without that source the list goes on with the one behind it, which is in its place now.
    return _Place(place.index) if index is None else place._replace(index=index)


def _binding(ctx: Context, which: str) -> dict[str, Any]:
    """A cursor is good for one list of one principal."""
    return {"method": "cursor", "target": which, "principal": principal_of(ctx.call)}


async def found_in_sources(
    registry: Registry[Any], ctx: Context, kind: ComponentKind, key: str
) -> Any | None:
    """Returns the entry that a caller asks for and only a source has; ``None`` if it must not know of one.

    Raises:
        InsufficientScope, NotAllowed: The caller may not use it.
        UpstreamUnavailable: A source that may have it cannot be asked, and no other one has it.
        RpcError: A source has raised it.
    """
    if key in registry.by_key or (kind in ("tool", "prompt") and len(key) > LONGEST_NAME):
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
            registry.learn(key, source)
            return registry.chosen(ctx, (entry,))
    if failure is not None:
        raise failure
    return None
