"""The upstream that a name or URI belongs to, and the pages of the lists that show them.

==================  =================================================================================================
a tool or prompt    the upstream that has listed the name; else the only one that can have it, by its prefix and
                    renames; else those that can have it are listed, and the first one that has it is asked
a resource          the upstream that has listed the URI; else the first one with a template that matches it; else
                    those that have resources are asked in order, the ones that use the scheme of the URI first
==================  =================================================================================================

A server may read what it lists nowhere, and its tools may return links to that; this is why an unlisted URI is asked
for. An upstream whose patterns leave the URI out is not asked.

A page of a list has the gateway's own entries first, then those of the upstreams in their order. A cursor names the
last entry that was shown (`mcp_actors._server.registry`), so it stays good while upstreams come and go: the next page
begins behind that entry, or where it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any

import attrs
import trio

from mcp_actors._eras.era import Invocation
from mcp_actors._server.context import check_scopes, has_scopes, note_listing
from mcp_actors._server.names import NameTable
from mcp_actors._server.registry import page
from mcp_actors._server.visibility import decided
from mcp_actors.errors import DefinitionChanged, UpstreamUnavailable
from mcp_actors.gateway.connections import GatewayCircle, gateways_of, is_gateway
from mcp_actors.gateway.held_calls import ASKED_BY
from mcp_actors.gateway.listing import LIST_KINDS, ListKind, UpstreamListing
from mcp_actors.gateway.lists import ListedRow, UpstreamLists
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import CacheScope

__all__ = ["CachingHints", "Route", "UpstreamRoutes", "Visible", "merged_page"]

Visible = Callable[[Principal | None, str, str, str], bool]
"""Says whether a caller sees something: the caller, the upstream, one of ``"tools"``, ``"prompts"``, ``"resources"``
and ``"templates"``, and its name or URI at the upstream."""


@attrs.frozen
class Route:
    """The upstream that a request is for, and the name or URI that it has there."""

    upstream: UpstreamActor
    target: str


class UpstreamRoutes:
    """The routes of one `serve`.

    Args:
        actors: The upstreams by name, in the order in which they were given.
        lists: Their lists and names.
        visible: Says whether a caller sees something; ``None`` if everybody sees all.
        circle: Says which requests have come back to the gateway, and marks what other gateways are shown.
    """

    def __init__(
        self,
        actors: dict[str, UpstreamActor],
        lists: UpstreamLists,
        visible: Visible | None,
        circle: GatewayCircle,
    ) -> None:
        self._actors = actors
        self._lists = lists
        self._visible = visible
        self._circle = circle

    def __repr__(self) -> str:
        return f"<UpstreamRoutes to {', '.join(self._actors)}>"

    # -- who sees what -------------------------------------------------------------------------------------------------

    @property
    def is_same_for_all(self) -> bool:
        """Whether all callers see the same."""
        return self._visible is None and not any(each.settings.scopes for each in self._actors.values())

    @property
    def sees_all(self) -> bool:
        """Whether a caller sees everything of the upstreams that it has the scopes for."""
        return self._visible is None

    def seen_by(self, ctx: Context[Any]) -> list[UpstreamActor]:
        """Returns the upstreams that a caller has the scopes for, and is not itself."""
        return [
            each
            for each in self._actors.values()
            if has_scopes(ctx.call, frozenset(each.settings.scopes)) and not self._is_caller(ctx, each)
        ]

    def _is_caller(self, ctx: Context[Any], actor: UpstreamActor) -> bool:
        """Whether an upstream is the gateway that asks, or one before it."""
        gateway = None if actor.met is None else actor.met.server.gateway
        return gateway is not None and gateway in gateways_of(ctx.peer.raw_capabilities)

    def shown_to(self, ctx: Context[Any], entries: Iterable[Any]) -> list[Any]:
        """Returns entries of a list as a caller is shown them."""
        if is_gateway(ctx.peer.raw_capabilities):
            return list(map(self._circle.marked, entries))
        return list(entries)

    def sees(self, ctx: Context[Any], upstream: str, kind: ListKind, own: str) -> bool:
        """Whether a caller sees one thing of an upstream. A function that fails hides it."""
        if self._visible is None:
            return True
        try:
            # A skill is seen where its file is.
            shown = "resources" if kind.extension is not None else kind.name
            return decided(self._visible(ctx.principal, upstream, shown, own))
        except Exception as error:
            log.error(
                "visible= of the gateway failed, so something is hidden", upstream=upstream, exc_info=error
            )
            return False

    # -- names ---------------------------------------------------------------------------------------------------------

    def listed(self, ctx: Context[Any], kind: ListKind, name: str) -> Route | None:
        """Returns the route of a name that was listed, ``None`` if no upstream has listed it.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
        """
        claim = self._lists.claims[kind.name].owners.get(name)
        return None if claim is None else self._checked(ctx, kind, claim.upstream, claim.target)

    async def named(self, ctx: Context[Any], kind: ListKind, name: str) -> Route | None:
        """Returns the route of a tool or prompt by its name in the gateway, ``None`` if no upstream has it.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
            UpstreamUnavailable: An upstream that may have it cannot be asked.
        """
        if name in self._lists.claims[kind.name].owners:
            return self.listed(ctx, kind, name)
        if self._has_come_back(ctx):
            return None
        if kind.name == "tools":
            # An upstream without a prefix may have any name. What is listed already is surer.
            known = {each: self._known(ctx, each, "tools") for each in self._actors}
            route = self._of_page(
                ctx, name, {each: tools for each, tools in known.items() if tools is not None}
            )
            if route is not None:
                return route
        able = [
            name_of
            for name_of, actor in self._actors.items()
            if self._lists.table(kind, name_of).own(name) is not None and not self._is_caller(ctx, actor)
        ]
        if len(able) < 2:
            own = None if not able else self._lists.table(kind, able[0]).own(name)
            return None if own is None else self._checked(ctx, kind, able[0], own)
        found = await self._lists.of_all(ctx, kind, [self._actors[each] for each in able])
        self._lists.claim(kind, found)
        if name in self._lists.claims[kind.name].owners:
            return self.listed(ctx, kind, name)
        away = [each for each in able if each not in found]
        if away:
            raise UpstreamUnavailable(away[0], f"it may have the {kind.what}, and cannot be asked")
        return None

    async def of_page(self, ctx: Context[Any], name: str) -> Route | None:
        """Returns the route of a tool by the name that its own server has for it, as pages of that call it (SEP-1865).

        It is a tool that pages may call, of an upstream that has pages. ``None`` if no upstream has such a tool, or if
        several have, as a call does not say which page has made it.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
        """
        if self._has_come_back(ctx):
            return None
        kind = LIST_KINDS["tools"]
        return self._of_page(ctx, name, await self._lists.of_all(ctx, kind, self.seen_by(ctx)))

    def _of_page(self, ctx: Context[Any], name: str, tools: Mapping[str, UpstreamListing]) -> Route | None:
        kind = LIST_KINDS["tools"]
        found = [each for each, listing in tools.items() if listing.lets_pages_call(name)]
        if len(found) != 1 or self._lists.outside(kind, found[0], name) is None:
            return None
        return self._checked(ctx, kind, found[0], name)

    async def require_approved(self, ctx: Context[Any], kind: ListKind, route: Route) -> None:
        """Compares a tool or prompt with what was approved of its upstream, where there is a lock.

        Raises:
            DefinitionChanged: It is different now, was not approved, or is not listed any more.
            UpstreamUnavailable: The list that has it cannot be read.
        """
        lock = route.upstream.settings.lock
        if lock is None:
            return
        name = route.upstream.settings.name
        listing = (await self._lists.of_all(ctx, kind, [route.upstream])).get(name)
        if listing is None:
            reason = f"its {kind.name} cannot be listed, and compared with what was approved"
            raise UpstreamUnavailable(name, reason)
        if route.target not in listing.entries:
            change = "changed" if route.target in lock.definitions[kind.name] else "added"
            raise DefinitionChanged(kind.what, route.target, change)

    def table_of(self, route: Route) -> NameTable:
        """Returns the names of the upstream of a route."""
        return self._lists.tables[route.upstream.settings.name]

    # -- URIs ----------------------------------------------------------------------------------------------------------

    async def of_uri(self, ctx: Context[Any], uri: str) -> list[Route]:
        """Returns the upstreams to ask for a resource, the likeliest first; the rest in case that it has none.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
        """
        kind = LIST_KINDS["resources"]
        tables = self._lists.tables
        owners = [each for each in self._actors if tables[each].has_in_folder(uri)]
        if owners and not self._has_come_back(ctx):
            routes = (self._route_of_uri(ctx, each, uri) for each in owners)
            if found := [each for each in routes if each is not None]:
                return found
        is_certain = len(tables) == 1 and all(each.is_offered(uri) for each in tables.values())
        if uri not in self._lists.claims["resources"].owners and not is_certain:
            await self._list_uris(ctx)
        if uri in self._lists.claims["resources"].owners:
            route = self.listed(ctx, kind, uri)
            return [] if route is None else [route]
        if self._has_come_back(ctx):
            return []
        able = [
            each
            for each in self._actors
            if tables[each].may_have(uri)
            and not tables[each].is_excluded(tables[each].own_uri(uri))
            and self._may_read(ctx, each, uri)
        ]
        matching = next((each for each in able if self._has_template(ctx, each, uri)), None)
        if matching is not None:
            route = self._checked(ctx, kind, matching, tables[matching].own_uri(uri))
            return [] if route is None else [route]
        scheme = uri.partition(":")[0].lower()
        seen = [each.settings.name for each in self.seen_by(ctx)]
        unlisted = [each for each in able if each in seen and tables[each].is_offered(uri)]
        unlisted.sort(key=lambda each: not self._uses(ctx, each, scheme))
        routes = (self._checked(ctx, kind, each, uri) for each in unlisted)
        return [each for each in routes if each is not None]

    async def to_ask(self, ctx: Context[Any], uri: str) -> Iterator[Route]:
        """Returns the upstreams of `of_uri` to ask one after the other, as long as none has the resource.

        A retry with answers belongs to the upstream that has asked for them. It goes on there, and those after that one
        are asked anew: nothing that a caller has answered to one upstream is told to another one.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
            RpcError: -32602: The state of a retry is forged, too old, or another call's.
        """
        invocation = ctx.call.invocation
        asked_by = ctx._scope.sealed_answers(invocation).get(ASKED_BY)
        routes = await self.of_uri(ctx, uri)
        if asked_by is not None:
            routes = list(dropwhile(lambda each: each.upstream.settings.name != asked_by, routes))
        return _one_after_the_other(routes, invocation)

    def _route_of_uri(self, ctx: Context[Any], upstream: str, uri: str) -> Route | None:
        own = self._lists.tables[upstream].own_uri(uri)
        if not self._lists.tables[upstream].is_offered(own):
            return None
        return self._checked(ctx, LIST_KINDS["resources"], upstream, own)

    async def of_template(self, ctx: Context[Any], text: str) -> Route | None:
        """Returns the upstream that completes the variables of a template, ``None`` if no one has it.

        Raises:
            InsufficientScope: The caller lacks a scope that the upstream needs.
        """
        if len(self._actors) > 1:
            await self._list_uris(ctx)
        if text in self._lists.claims["templates"].owners:
            return self.listed(ctx, LIST_KINDS["templates"], text)
        routes = await self.of_uri(ctx, text)
        return routes[0] if routes else None

    async def _list_uris(self, ctx: Context[Any]) -> None:
        """Reads the lists of resources and templates of all upstreams of which nothing is known yet."""
        for name in ("resources", "templates"):
            unknown = [
                each for each in self.seen_by(ctx) if self._known(ctx, each.settings.name, name) is None
            ]
            if unknown:
                await self._lists.of_all(ctx, LIST_KINDS[name], unknown)
            known = {each: self._known(ctx, each, name) for each in self._actors}
            self._lists.claim(LIST_KINDS[name], {each: list for each, list in known.items() if list})

    def _has_come_back(self, ctx: Context[Any]) -> bool:
        """Whether a request for what is not listed has asked all gateways of a circle already."""
        return self._circle.has_come_back(ctx.call.invocation.meta)

    def _known(self, ctx: Context[Any], upstream: str, kind: str) -> UpstreamListing | None:
        return self._lists.newest(self._actors[upstream], ctx, LIST_KINDS[kind])

    def _may_read(self, ctx: Context[Any], upstream: str, uri: str) -> bool:
        """Whether the patterns let a URI through, or one of a template that they let through."""
        table = self._lists.tables[upstream]
        return table.is_offered(table.own_uri(uri)) or self._has_template(ctx, upstream, uri)

    def _has_template(self, ctx: Context[Any], upstream: str, uri: str) -> bool:
        listing, table = self._known(ctx, upstream, "templates"), self._lists.tables[upstream]
        own = table.own_uri(uri)
        return listing is not None and any(
            each.match(own) is not None
            for each in listing.templates
            if table.outside_uri(each.text) in listing.held
        )

    def _uses(self, ctx: Context[Any], upstream: str, scheme: str) -> bool:
        listings = (self._known(ctx, upstream, name) for name in ("resources", "templates"))
        return any(each is not None and scheme in each.schemes for each in listings)

    def _checked(self, ctx: Context[Any], kind: ListKind, upstream: str, own: str) -> Route | None:
        actor = self._actors[upstream]
        if self._is_caller(ctx, actor):
            return None
        check_scopes(ctx.call, ctx._scope, frozenset(actor.settings.scopes))
        return Route(actor, own) if self.sees(ctx, upstream, kind, own) else None


def _one_after_the_other(routes: list[Route], invocation: Invocation) -> Iterator[Route]:
    for route in routes:
        yield route
        invocation.state = invocation.answers = invocation.opened = None


@attrs.frozen
class CachingHints:
    """The promises that the gateway makes for itself, and for upstreams that make none."""

    ttl_ms: int
    cache_scope: CacheScope


async def merged_page(
    lists: UpstreamLists,
    routes: UpstreamRoutes,
    ctx: Context[Any],
    kind: ListKind,
    own: Sequence[ListedRow],
    hints: CachingHints,
    page_size: int,
) -> Any:
    """Returns the page of a list that a caller asks for.

    Args:
        lists: The lists of the upstreams.
        routes: Says which of them the caller sees.
        ctx: The request.
        kind: The list.
        own: The entries of the gateway itself.
        hints: What the gateway promises.
        page_size: Entries of a page.

    Raises:
        RpcError: The cursor does not belong to this list.
    """
    actors = routes.seen_by(ctx)
    is_same_for_all = routes.is_same_for_all and not is_gateway(ctx.peer.raw_capabilities)
    if not is_same_for_all:
        note_listing(ctx)
    listings = await lists.of_all(ctx, kind, actors)
    rows = list(own)
    taken = {each.key for each in own}
    for name, listing in listings.items():
        found = lists.rows(kind, name, listing)
        if not taken and routes.sees_all:
            rows += found
            continue
        for row in found:
            if row.key in taken:
                lists.claims[kind.name].collided(row.key, "the gateway itself", name)
            elif routes.sees(ctx, name, kind, row.own):
                rows.append(row)
    shown, cursor = page(rows, ctx.params, kind=kind.name, size=page_size, weigh=kind.weigh)
    is_private = ctx.principal is not None or not is_same_for_all
    said = [*listings.values()]
    return kind.result(
        routes.shown_to(ctx, (each.entry for each in shown)),
        cursor,
        ttl_ms=0 if len(listings) < len(actors) else _ttl(said, bool(own), hints),
        cache_scope="private" if is_private else _scope(said, bool(own), hints),
    )


def _ttl(listings: Sequence[UpstreamListing], has_own: bool, hints: CachingHints) -> int:
    now = trio.current_time()
    lefts = [each.left_ms(now) for each in listings]
    if has_own or not lefts:
        lefts.append(None)
    return min(hints.ttl_ms if each is None else each for each in lefts)


def _scope(listings: Sequence[UpstreamListing], has_own: bool, hints: CachingHints) -> CacheScope:
    scopes = {each.cache_scope or hints.cache_scope for each in listings}
    if has_own or not scopes:
        scopes.add(hints.cache_scope)
    return "public" if scopes == {"public"} else "private"
