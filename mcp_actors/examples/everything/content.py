"""Tools for each kind of content, logging, progress and errors, two with a schema written by hand; and resources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from mcp_actors import Context, MissingCapability, ToolError
from mcp_actors.examples.everything.app import PIXEL_BASE64, PIXEL_PNG, SILENCE_BASE64, Activity, server
from mcp_actors.types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

__all__ = [
    "ADDRESS_BOOK_SCHEMA",
    "LONGEST_SLEEP",
    "WORDS",
    "Sum",
    "activity",
    "add",
    "divide",
    "echo",
    "sleep",
    "touch",
]


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


# -- Tools that a person would try first -----------------------------------------------------------------

LONGEST_SLEEP = 3600.0
"""Seconds. A tool that anyone may call needs an end, even if it is never cancelled."""


@attrs.frozen
class Sum:
    """The answer of ``add``: becomes the tool's output schema and its structured content."""

    total: float
    terms: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False))
async def echo(message: str) -> str:
    """Say the message back.

    Args:
        message: what to say
    """
    return message


@server.tool(annotations=ToolAnnotations(read_only_hint=True), inline=True)
def add(a: float, b: float) -> Sum:
    """Add two numbers.

    Args:
        a: the first term
        b: the second term
    """
    return Sum(total=a + b, terms=2)


@server.tool
def divide(a: float, b: float) -> float:
    """Divide a by b, in a worker thread; dividing by zero is an error that the model gets to read."""
    if b == 0:
        raise ToolError("cannot divide by zero")
    return a / b


@server.tool
async def sleep(seconds: float, steps: int = 10, *, ctx: Context) -> str:
    """Sleep, and report progress after each step. Cancel it to see what cancelling does.

    Args:
        seconds: how long to sleep altogether
        steps: how many times to report progress
    """
    if not 0 <= seconds <= LONGEST_SLEEP or not 1 <= steps <= 1000:
        raise ToolError(f"seconds must be within 0 and {LONGEST_SLEEP:g}, steps within 1 and 1000")
    state: Activity = ctx.state
    state.sleeping += 1
    try:
        for step in range(1, steps + 1):
            await trio.sleep(seconds / steps)
            await ctx.progress(step, steps, f"slept {step * seconds / steps:g} s")
    except trio.Cancelled:
        state.cancelled += 1
        raise
    finally:
        state.sleeping -= 1
    state.slept += 1
    return f"slept {seconds:g} s"


@server.tool
async def touch(text: str, *, ctx: Context) -> str:
    """Change the text of test://watched-resource and tell everyone who subscribed to it."""
    state: Activity = ctx.state
    state.watched_text = text
    ctx.server.resource_updated("test://watched-resource")
    return "touched"


@server.tool
async def activity(*, ctx: Context) -> dict[str, int]:
    """Counts the sleeps that run now, ended, and were cancelled since the server started."""
    state: Activity = ctx.state
    return {"sleeping": state.sleeping, "slept": state.slept, "cancelled": state.cancelled}


# -- Resources, prompts and completion -------------------------------------------------------------------

WORDS = ("paris", "park", "party", "rome", "test", "testing")
"""What the arguments of the fixtures complete to."""


@server.resource("test://static-text", name="static-text", title="Static text", mime_type="text/plain")
async def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", name="static-binary", title="Static picture", mime_type="image/png")
async def static_binary() -> bytes:
    """A picture that never changes."""
    return PIXEL_PNG


@server.resource("test://template/{id}/data", name="template", title="Template", mime_type="application/json")
async def template(id: str) -> dict[str, str | bool]:
    """One resource for each id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@server.resource("test://watched-resource", name="watched-resource", title="Watched", mime_type="text/plain")
async def watched_resource(ctx: Context) -> str:
    """Changes when the tool ``touch`` is called; subscribe to it."""
    state: Activity = ctx.state
    return state.watched_text


@server.prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments.

    Args:
        arg1: the first of them, which can be completed
        arg2: the second
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[EmbeddedResource | TextContent]:
    """A prompt that carries a resource."""
    return [
        EmbeddedResource(
            resource=TextResourceContents(
                uri=resourceUri, mime_type="text/plain", text="Embedded resource content for testing."
            )
        ),
        TextContent(text="Please process the embedded resource above."),
    ]


@server.prompt
async def test_prompt_with_image() -> list[ImageContent | TextContent]:
    """A prompt that carries a picture."""
    return [
        ImageContent(data=PIXEL_BASE64, mime_type="image/png"),
        TextContent(text="Please analyze the image above."),
    ]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that first asks the user what it is about."""
    answer = await ctx.elicit(
        "What context should the prompt use?",
        {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]},
        key="user_context",
    )
    return f"Prompt with context: {(answer.content or {}).get('context', 'none')}"


@server.completion(prompt="test_prompt_with_arguments", argument="arg1")
async def complete_arg1(value: str, context: Mapping[str, str]) -> list[str]:
    """Words that begin like what was typed so far."""
    return [word for word in WORDS if word.startswith(value)]


@server.completion(resource="test://template/{id}/data", argument="id")
async def complete_id(value: str, context: Mapping[str, str]) -> list[str]:
    """The first ten ids that begin like what was typed so far."""
    return [text for number in range(1, 1000) if (text := str(number)).startswith(value)][:10]
