"""The OpenAPI 3.1 document of a server, made of the schemas of its tools."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from mcp_actors import Client
from mcp_actors.types import Tool

__all__ = ["document_of"]

# OpenAPI 3.1, Components Object: what the key of a component may be.
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9._-]")
# Members that would make a schema a document of its own, in which references have another base.
_OWN_DOCUMENT = ("$schema", "$id", "$anchor")
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


async def document_of(client: Client) -> dict[str, Any]:
    """Returns the document of the tools, resources and prompts that a client of the server is listed."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {"Failure": _FAILURE}
    if client.server_capabilities.tools is not None:
        async for tool in client.tools():
            paths[f"/tools/{quote(tool.name, safe='')}"] = {"post": _operation(tool, schemas)}
    if client.server_capabilities.resources is not None:
        paths["/resources"] = {"get": _resources()}
    if client.server_capabilities.prompts is not None:
        async for prompt in client.prompts():
            paths[f"/prompts/{quote(prompt.name, safe='')}"] = {"get": _prompt(prompt)}
    info = client.server_info
    return {
        "openapi": "3.1.0",
        "info": {
            "title": info.title or info.name or "MCP server",
            "version": info.version or "0",
            "description": client.instructions or f"The tools of {info.name}.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(tool: Tool, schemas: dict[str, Any]) -> dict[str, Any]:
    key = _NOT_IN_KEYS.sub("_", tool.name)
    while f"{key}.input" in schemas:
        key += "_"
    schemas[f"{key}.input"] = _moved(tool.input_schema, f"#/components/schemas/{key}.input")
    answer: dict[str, Any] = {}
    if tool.output_schema is not None:
        schemas[f"{key}.output"] = _moved(tool.output_schema, f"#/components/schemas/{key}.output")
        answer = {"$ref": f"#/components/schemas/{key}.output"}
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
                "content": {"application/json": {"schema": answer}, "text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": _failure("The call failed."),
        },
    }


def _failure(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Failure"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _moved(value: Any, to: str) -> Any:
    """Returns a schema whose references to itself lead to its place in the document."""
    if isinstance(value, list):
        return [_moved(each, to) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(each, to) for key, each in value.items() if key not in _OWN_DOCUMENT}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved


def _resources() -> dict[str, Any]:
    return {
        "operationId": "resources",
        "summary": "List the resources, or read one",
        "parameters": [{"name": "uri", "in": "query", "schema": {"type": "string"}, "description": "Which one to read."}],
        "responses": {
            "200": {"description": "The list, or the contents.", "content": {"application/json": {"schema": {}}}},
            "default": _failure("There is no such resource."),
        },
    }


def _prompt(prompt: Any) -> dict[str, Any]:
    return {
        "operationId": f"prompt_{prompt.name}",
        "summary": prompt.title or prompt.name,
        "description": prompt.description or prompt.name,
        "parameters": [
            {
                "name": each.name,
                "in": "query",
                "required": bool(each.required),
                "schema": {"type": "string"},
                "description": each.description or each.name,
            }
            for each in prompt.arguments or ()
        ],
        "responses": {
            "200": {"description": "The messages.", "content": {"application/json": {"schema": {"type": "array"}}}},
            "default": _failure("There is no such prompt."),
        },
    }
