"""Skills behind a gateway (SEP-2640): their entries, folders and files, under the URIs that they have there.

The skills of an upstream that has a prefix lie in a folder that is called like the upstream: ``skill://refunds`` of the
upstream ``shop`` is ``skill://shop/refunds``. What stands in the files is never changed, so their digests stay as they
are. Whoever asks by the URI that the upstream has is answered by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from mcp_actors._client.skills import read_skill, written_skill
from mcp_actors._server.names import NameTable
from mcp_actors._wire.skill_format import SKILLS
from mcp_actors.errors import (
    McpError,
    MethodNotFound,
    ResourceNotFound,
    RpcError,
    UpstreamMisbehaved,
    invalid_params,
)
from mcp_actors.gateway.forwarding import forward
from mcp_actors.gateway.listing import renamed_skill
from mcp_actors.gateway.routes import Route, UpstreamRoutes
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.types import ServerCapabilities
from mcp_actors.types.content import BlobResourceContents, TextResourceContents
from mcp_actors.types.resources import ReadResourceResult

__all__ = [
    "GET_SKILL",
    "READ_DIRECTORY",
    "file_of_skill",
    "forward_about_skill",
    "refusal_of_read",
    "with_skills",
]

GET_SKILL = "skills/get"
READ_DIRECTORY = "resources/directory/read"


def with_skills(capabilities: ServerCapabilities, actors: Iterable[UpstreamActor]) -> ServerCapabilities:
    """Returns the capabilities with skills, if an upstream has any, or may have any because it was never met.

    Folders can be read if that is so for all skills, as the extension says.
    """
    actors = list(actors)
    settings = [_settings(each) for each in actors if each.met is not None]
    found = [each for each in settings if each is not None]
    if not found and all(each.met is not None for each in actors):
        return capabilities
    reads = bool(found) and all(each.get("directoryRead") is True for each in found)
    declared: dict[str, Any] = {"directoryRead": True} if reads else {}
    return attrs.evolve(capabilities, extensions={**(capabilities.extensions or {}), SKILLS: declared})


def _settings(actor: UpstreamActor) -> dict[str, Any] | None:
    """Returns what an upstream that was met has declared of its skills, ``None`` if it has none."""
    assert actor.met is not None
    found = (actor.met.server.negotiated.capabilities.extensions or {}).get(SKILLS)
    return found if isinstance(found, dict) else None


async def forward_about_skill(ctx: Context[Any], routes: UpstreamRoutes, uri: str) -> Any:
    """Answers ``skills/get`` or ``resources/directory/read`` by the first upstream that has what is asked for.

    Raises:
        RpcError: No upstream has it (-32602), or the one that may have it cannot be asked.
        DefinitionChanged: It is a skill that the lock of its upstream does not have like that.
    """
    refusal: RpcError | None = None
    for route in await routes.to_ask(ctx, uri):
        if not await _may_ask(ctx, route):
            continue
        try:
            result = await forward(ctx, route, {**ctx.params, "uri": route.target})
        except MethodNotFound:
            continue
        except RpcError as error:
            refusal = refusal or error
            continue
        if ctx.method == GET_SKILL:
            _require_approved(route.upstream, result)
        if route.target == uri:
            return result
        table = routes.table_of(route)
        return _skill_in_gateway(route, table, result) if ctx.method == GET_SKILL else _listed(table, result)
    try:
        what = "no skill is served at" if ctx.method == GET_SKILL else "there is no directory resource"
        raise refusal or invalid_params(f"{what} {uri:.200}")
    finally:
        # Its traceback has this frame, which the collector would have to free.
        del refusal


async def _may_ask(ctx: Context[Any], route: Route) -> bool:
    """Whether the upstream of a route has declared the method; one that was never met is connected to."""
    actor = route.upstream
    if actor.met is None:
        try:
            async with actor.borrowed(ctx):
                pass
        except McpError as error:
            log.debug(
                "an upstream cannot be asked for skills", upstream=actor.settings.name, error=str(error)
            )
    settings = None if actor.met is None else _settings(actor)
    return settings is not None and (ctx.method == GET_SKILL or settings.get("directoryRead") is True)


def _require_approved(actor: UpstreamActor, result: dict[str, Any]) -> None:
    """Raises `DefinitionChanged` for a skill that is not what was approved of its upstream, where there is a lock."""
    lock = actor.settings.lock
    if lock is not None:
        assert actor.met is not None
        negotiated = actor.met.server.negotiated
        lock.require_skill(result.get("skill"), negotiated.era, negotiated.info.name)


def _skill_in_gateway(route: Route, table: NameTable, result: dict[str, Any]) -> dict[str, Any]:
    try:
        skill = read_skill(result.get("skill"))
    except ValueError as error:
        raise UpstreamMisbehaved(route.upstream.settings.name, f"its answer is no skill: {error}") from None
    uri = table.outside_uri(skill.uri) or skill.uri
    return {**result, "skill": written_skill(renamed_skill(skill, uri, table))}


def _listed(table: NameTable, result: dict[str, Any]) -> dict[str, Any]:
    listed = result.get("resources")
    found = [_renamed(table, each) for each in listed] if isinstance(listed, list) else []
    return {**result, "resources": found}


def _renamed(table: NameTable, item: Any) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get("uri"), str):
        return item
    return {**item, "uri": table.outside_uri(item["uri"]) or item["uri"]}


def file_of_skill(table: NameTable, result: Any) -> Any:
    """Returns the result of ``resources/read`` with the URIs that the contents have in the gateway."""
    if isinstance(result, ReadResourceResult):
        contents = [_content(table, each) for each in result.contents]
        return attrs.evolve(result, contents=contents)
    listed = result.get("contents") if isinstance(result, dict) else None
    if not isinstance(listed, list):
        return result
    return {**result, "contents": [_renamed(table, each) for each in listed]}


def _content(
    table: NameTable, content: TextResourceContents | BlobResourceContents
) -> TextResourceContents | BlobResourceContents:
    return attrs.evolve(content, uri=table.outside_uri(content.uri) or content.uri)


def refusal_of_read(error: RpcError, route: Route, uri: str) -> RpcError:
    """Returns the error of a read with the URI that the client has asked for."""
    about = error.data.get("uri") if isinstance(error.data, dict) else None
    return ResourceNotFound(uri) if about == route.target != uri else error
