"""Tools for each kind of content, for logging, progress and errors, and two with a schema written by hand."""

from __future__ import annotations

import json
from typing import Any

import trio

from mcp_actors import Context, MissingCapability, ToolError
from mcp_actors.examples.everything.app import PIXEL_BASE64, SILENCE_BASE64, server
from mcp_actors.types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents

__all__ = ["ADDRESS_BOOK_SCHEMA"]

PAUSE = 0.05
"""Seconds between two notifications, so that a client sees them come one by one."""


@server.tool
async def test_simple_text() -> str:
    """Answers with one text."""
    return "This is a simple text response for testing."


@server.tool
async def test_image_content() -> ImageContent:
    """Answers with one picture."""
    return ImageContent(data=PIXEL_BASE64, mime_type="image/png")


@server.tool
async def test_audio_content() -> AudioContent:
    """Answers with one sound."""
    return AudioContent(data=SILENCE_BASE64, mime_type="audio/wav")


@server.tool
async def test_embedded_resource() -> EmbeddedResource:
    """Answers with a resource inside the result."""
    return EmbeddedResource(
        resource=TextResourceContents(
            uri="test://embedded-resource",
            mime_type="text/plain",
            text="This is an embedded resource content.",
        )
    )


@server.tool
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Answers with a text, a picture and a resource."""
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PIXEL_BASE64, mime_type="image/png"),
        EmbeddedResource(
            resource=TextResourceContents(
                uri="test://mixed-content-resource",
                mime_type="application/json",
                text=json.dumps({"test": "data", "value": 123}, separators=(",", ":")),
            )
        ),
    ]


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Sends three log messages while it works."""
    await ctx.log("info", "Tool execution started")
    await trio.sleep(PAUSE)
    await ctx.log("info", "Tool processing data")
    await trio.sleep(PAUSE)
    await ctx.log("info", "Tool execution completed")
    return "Tool with logging executed successfully"


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times; the answer is the token that the caller gave."""
    await ctx.progress(0, 100, "Completed step 0 of 100")
    await trio.sleep(PAUSE)
    await ctx.progress(50, 100, "Completed step 50 of 100")
    await trio.sleep(PAUSE)
    await ctx.progress(100, 100, "Completed step 100 of 100")
    return str(ctx.meta.get("progressToken", "no progress token"))


@server.tool
async def test_error_handling() -> str:
    """Fails in a way that the model gets to read."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Sends one log message, which arrives only if the caller asked for messages of that level."""
    await ctx.log("info", "Logging tool executed")
    return "Logging tool completed"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Works only for clients that declare sampling."""
    if ctx.peer.capabilities.sampling is None:
        raise MissingCapability({"sampling": {}})
    return "Success"


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Closes the stream under the client that waits, and goes on: the client comes back for the answer."""
    ctx.close_stream()
    await trio.sleep(2 * PAUSE)
    return "Reconnection test completed successfully"


ADDRESS_BOOK_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(input_schema=ADDRESS_BOOK_SCHEMA)
async def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Has an input schema that uses most of JSON Schema 2020-12."""
    return f"JSON Schema 2020-12 tool called with: {json.dumps(arguments, sort_keys=True)}"


@server.tool(
    input_schema={
        "type": "object",
        "properties": {
            "region": {"type": "string", "description": "mirrored in a header", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "default": 10},
        },
        "required": ["region"],
        "additionalProperties": False,
    }
)
async def test_custom_header(arguments: dict[str, Any]) -> str:
    """Has an argument that an HTTP client must also send as the header Mcp-Param-Region."""
    return f"region {arguments['region']}, limit {arguments.get('limit', 10)}"
