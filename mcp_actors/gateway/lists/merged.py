"""One page of a list of the gateway: its own entries first, then those of the upstreams in their order.

A cursor names the last entry that was shown (`mcp_actors._server.pagination`), so it stays good while upstreams come
and go: the next page begins behind that entry, or where it would stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import trio

from mcp_actors._server.pagination import page
from mcp_actors.context import Context
from mcp_actors.gateway.lists.listing import ListKind, UpstreamListing
from mcp_actors.gateway.lists.lists import ListedRow, UpstreamLists
from mcp_actors.gateway.lists.routes import UpstreamRoutes
from mcp_actors.types import CacheScope

__all__ = ["CachingHints", "merged_page"]


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
        RpcError: The cursor is none of this list.
    """
    actors = routes.seen_by(ctx)
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
    shown, cursor = page(rows, ctx.params, kind=kind.name, size=page_size)
    is_private = ctx.principal is not None or not routes.is_same_for_all
    said = [*listings.values()]
    return kind.result(
        [each.entry for each in shown],
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
