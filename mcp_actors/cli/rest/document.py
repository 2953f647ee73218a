"""The OpenAPI 3.1 document of a server, made of the schemas of its tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from mcp_actors import Client
from mcp_actors.types import Prompt, Tool

__all__ = ["document_of"]

# OpenAPI 3.1, Components Object: what the key of a component may be.
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9._-]")
# Members that would make a schema a document of its own, in which references have another base.
_OWN_DOCUMENT = ("$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$vocabulary")
# JSON Schema 2020-12: members that hold values, and those that hold schemas by names of any kind.
_VALUES = ("const", "default", "enum", "examples", "example", "required")
_BY_NAME = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_FAILURE = {
    "type": "object",
    "properties": {
        "detail": {
            "type": "object",
            "properties": {"message": {"type": "string"}, "data": {}},
            "required": ["message"],
        }
    },
    "required": ["detail"],
}


async def document_of(client: Client, *, with_keys: bool = False) -> dict[str, Any]:
    """Returns the document of the tools, resources and prompts that a client of the server is listed.

    Args:
        client: The client.
        with_keys: Whether callers present a key.

    Raises:
        McpError: As the lists of `~mcp_actors.Client`.
    """
    capabilities = client.server_capabilities
    tools = [each async for each in client.tools()] if capabilities.tools is not None else []
    prompts = [each async for each in client.prompts()] if capabilities.prompts is not None else []
    schemas: dict[str, Any] = {"Failure": _FAILURE}
    taken = {each.name for each in tools}
    paths: dict[str, Any] = {
        f"/tools/{quote(each.name, safe='')}": {"post": _operation(each, schemas)} for each in tools
    }
    if capabilities.resources is not None:
        paths["/resources"] = {"get": _resources(_free("resources", taken))}
    for prompt in prompts:
        name = _free(f"prompt_{prompt.name}", taken)
        paths[f"/prompts/{quote(prompt.name, safe='')}"] = {"get": _prompt(prompt, name)}
    info = client.server_info
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": info.title or info.name or "MCP server",
            "version": info.version or "0",
            "description": client.instructions or f"The tools of {info.name or 'a server'}.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _operation(tool: Tool, schemas: dict[str, Any]) -> dict[str, Any]:
    key = _NOT_IN_KEYS.sub("_", tool.name)
    while f"{key}.input" in schemas:
        key += "_"
    schemas[f"{key}.input"] = _moved(tool.input_schema, f"#/components/schemas/{key}.input")
    answer: dict[str, Any] = {}
    if tool.output_schema is not None:
        schemas[f"{key}.output"] = _moved(tool.output_schema, f"#/components/schemas/{key}.output")
        described = {"$ref": f"#/components/schemas/{key}.output"}
        # A server may put a value that is no object into one, and have the value itself in its text.
        answer = {"anyOf": [described, {}]}
    return {
        "operationId": tool.name,
        "summary": tool.title or tool.name,
        "description": tool.description or tool.name,
        "requestBody": {
            "required": bool(tool.input_schema.get("required")),
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{key}.input"}}},
        },
        "responses": {
            "200": {
                "description": "The content of the result: one value, or a list of several.",
                "content": {
                    "application/json": {"schema": answer},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            "default": _failure("The call failed."),
        },
    }


def _failure(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Failure"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _moved(schema: Any, to: str) -> Any:
    """Returns a schema whose references to itself lead to its place in the document."""
    if isinstance(schema, list):
        return [_moved(each, to) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUES:
            moved[key] = value
        elif key in _BY_NAME and isinstance(value, dict):
            moved[key] = {name: _moved(each, to) for name, each in value.items()}
        elif key == "$ref":
            # A reference to a name, or to another document, would lead nowhere from here.
            if isinstance(value, str) and (value == "#" or value.startswith("#/")):
                moved[key] = to + value[1:]
        elif key not in _OWN_DOCUMENT:
            moved[key] = _moved(value, to)
    return moved


def _resources(name: str) -> dict[str, Any]:
    uri = {
        "name": "uri",
        "in": "query",
        "schema": {"type": "string"},
        "description": "The resource to read; without it they are listed.",
    }
    return {
        "operationId": name,
        "summary": "List the resources, or read one",
        "parameters": [uri],
        "responses": _answers("The list, or the contents.", {}, "There is no such resource."),
    }


def _prompt(prompt: Prompt, name: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": prompt.title or prompt.name,
        "description": prompt.description or prompt.name,
        "parameters": _parameters(prompt.arguments or ()),
        "responses": _answers("The messages.", {"type": "array"}, "There is no such prompt."),
    }


def _parameters(arguments: Sequence[Any]) -> list[dict[str, Any]]:
    # OpenAPI 3.1, Operation Object: a parameter is in the list once.
    named = {each.name: each for each in arguments}
    return [
        {
            "name": each.name,
            "in": "query",
            "required": bool(each.required),
            "schema": {"type": "string"},
            "description": each.description or each.name,
        }
        for each in named.values()
    ]


def _answers(success: str, schema: dict[str, Any], failure: str) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"200": {"description": success, "content": content}, "default": _failure(failure)}
