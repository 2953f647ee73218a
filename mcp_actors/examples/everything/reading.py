"""Resources, prompts and completion."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_actors import Context
from mcp_actors.examples.everything.app import PIXEL_BASE64, PIXEL_PNG, Activity, server
from mcp_actors.types import EmbeddedResource, ImageContent, TextContent, TextResourceContents

__all__ = ["WORDS"]

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
