"""Prompts and resources as tools, for hosts that have tools only.

Each tool asks the server what a client with prompts and resources would ask: through all middleware, with the scopes
of the caller, and with the names and URIs that the server shows.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mcp_actors._server.context import Context, check_scopes
from mcp_actors._server.middleware import answer_within, pages_within
from mcp_actors.errors import ResourceNotFound, RpcError, ToolError
from mcp_actors.types import (
    CallToolResult,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

__all__ = ["prompts_as_tools", "resources_as_tools"]


def prompts_as_tools(server: Any) -> None:
    """Adds the tools ``list_prompts`` and ``get_prompt`` to a server, for hosts that have tools only.

    They show what a caller may see of the prompts, those of mounted servers included, now and later.

    Args:
        server: The `~mcp_actors.Server`, which is no `~mcp_actors.gateway.Gateway`.

    Raises:
        TypeError: It is one.
        LocalProtocolError: It has a tool of such a name.
    """
    features = _features_of(server)

    async def list_prompts(ctx: Context[Any]) -> list[dict[str, Any]]:
        pages = await pages_within(features, ctx, "prompts/list")
        return [_as_json(ctx, each) for page in pages for each in page.prompts]

    async def get_prompt(
        name: Annotated[str, msgspec.Meta(description="A name that list_prompts returned")],
        ctx: Context[Any],
        arguments: Annotated[
            dict[str, str] | None, msgspec.Meta(description="Its arguments, as text")
        ] = None,
    ) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments or {}}
        result = await _answer(features, ctx, "prompts/get", params)
        return {
            "description": result.description,
            "messages": [
                {"role": each.role, "content": _as_json(ctx, each.content)} for each in result.messages
            ],
        }

    for function, description in (
        (list_prompts, "List the prompts: prepared instructions, with the arguments that each takes."),
        (get_prompt, "Get the messages of a prompt."),
    ):
        server.add_tool(function, description=description, annotations=ToolAnnotations(read_only_hint=True))


def resources_as_tools(server: Any) -> None:
    """Adds the tools ``list_resources`` and ``read_resource`` to a server, for hosts that have tools only.

    They show what a caller may see of the resources and templates, those of mounted servers included, now and later.
    Text is returned as text, and everything else as an embedded resource.

    Args:
        server: The `~mcp_actors.Server`, which is no `~mcp_actors.gateway.Gateway`.

    Raises:
        TypeError: It is one.
        LocalProtocolError: It has a tool of such a name.
    """
    features = _features_of(server)

    async def list_resources(ctx: Context[Any]) -> dict[str, Any]:
        resources = await pages_within(features, ctx, "resources/list")
        templates = await pages_within(features, ctx, "resources/templates/list")
        return {
            "resources": [_as_json(ctx, each) for page in resources for each in page.resources],
            "resourceTemplates": [
                _as_json(ctx, each) for page in templates for each in page.resource_templates
            ],
        }

    async def read_resource(
        uri: Annotated[
            str, msgspec.Meta(description="A URI that list_resources returned, or one of a template of it")
        ],
        ctx: Context[Any],
    ) -> CallToolResult:
        result = await _answer(features, ctx, "resources/read", {"uri": uri})
        return CallToolResult(
            [
                TextContent(each.text) if isinstance(each, TextResourceContents) else EmbeddedResource(each)
                for each in result.contents
            ]
        )

    for function, description in (
        (list_resources, "List the resources that can be read, and the templates of their URIs."),
        (read_resource, "Read a resource by its URI."),
    ):
        server.add_tool(function, description=description, annotations=ToolAnnotations(read_only_hint=True))


def _features_of(server: Any) -> Any:
    if not getattr(server, "_is_mountable", False):
        raise TypeError(
            f"{server!r:.80} cannot have its prompts or resources as tools: give a Server object, which is no gateway"
        )
    return server._features


async def _answer(features: Any, ctx: Context[Any], method: str, params: dict[str, Any]) -> Any:
    """Returns the answer of another method, for what the caller has the scopes for."""
    check_scopes(ctx.call, ctx._scope, features.scopes_needed(method, params))
    try:
        return await answer_within(features, ctx, method, params)
    except ResourceNotFound as error:
        raise ToolError(f"there is no resource {params['uri']!r:.200}") from error
    except RpcError as error:
        raise ToolError(error.message) from error


def _as_json(ctx: Context[Any], value: Any) -> Any:
    return ctx.era.unstructure(value)
