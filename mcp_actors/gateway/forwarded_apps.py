"""Apps behind a gateway (SEP-1865): the pages of tools, under the URIs that they have there.

The pages of an upstream lie in a folder that is called like the upstream: ``ui://board`` of the upstream ``shop`` is
``ui://shop/board``, in the list of tools, in that of resources, and in results. A page has no other URI there, so that
a tool of one upstream is never shown on a page of another one. The pages themselves stay as they are.

A page calls tools by the names that its server has for them, and its host sends such calls to the gateway. So these
names lead to a tool there as well, if one server alone has it: see `UpstreamRoutes.of_page`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mcp_actors._server.names import NameTable
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.types import ServerCapabilities
from mcp_actors.types.apps import APP_SCHEME, APPS

__all__ = ["result_in_gateway", "with_apps"]

# The blocks of a result that name a resource, and where they do.
_LINK, _EMBEDDED = "resource_link", "resource"


def with_apps(capabilities: ServerCapabilities, actors: Iterable[UpstreamActor]) -> ServerCapabilities:
    """Returns the capabilities with apps, if an upstream that was met has any.

    Nothing depends on it: a host asks tools for their pages.
    """
    for each in actors:
        if each.met is not None and APPS in (each.met.server.negotiated.capabilities.extensions or {}):
            extensions = {**(capabilities.extensions or {}), APPS: {}}
            return attrs.evolve(capabilities, extensions=extensions)
    return capabilities


def result_in_gateway(table: NameTable, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a tool with the URIs that the pages in it have in the gateway."""
    meta, content = result.get("_meta"), result.get("content")
    changed: dict[str, Any] = {}
    if isinstance(meta, dict) and (renamed := table.outside_meta(meta)) is not meta:
        changed["_meta"] = renamed
    if isinstance(content, list) and any(map(_page_in, content)):
        changed["content"] = [_block_in_gateway(table, each) for each in content]
    return {**result, **changed} if changed else result


def _page_in(block: Any) -> Mapping[str, Any] | None:
    """Returns the part of a block that names a page, ``None`` if there is none in it."""
    if not isinstance(block, dict) or block.get("type") not in (_LINK, _EMBEDDED):
        return None
    part = block if block["type"] == _LINK else block.get("resource")
    uri = part.get("uri") if isinstance(part, dict) else None
    return part if isinstance(uri, str) and uri.startswith(APP_SCHEME) else None


def _block_in_gateway(table: NameTable, block: Any) -> Any:
    part = _page_in(block)
    if part is None:
        return block
    renamed = {**part, "uri": table.outside_uri(part["uri"]) or part["uri"]}
    return renamed if part is block else {**block, "resource": renamed}
