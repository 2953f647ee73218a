"""A server made with the official Python SDK, dual-era: ``python_server.py stdio|http|sse``.

With a URL it takes a free port, which the web server under the SDK writes to stderr.

It has the part of an everything server that the drivers here and our own client call, under the same names, so that
the drivers can be proved against the SDK itself.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import (
    AssistantMessage,
    Context,
    Elicit,
    Image,
    MCPServer,
    Resolve,
    Sample,
    UserMessage,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.types import (
    Completion,
    CreateMessageResult,
    EmbeddedResource,
    PromptReference,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel

server = MCPServer("official-python", version="2.0.0", instructions="An official server.")
state: dict[str, Any] = {"sleeping": 0, "slept": 0, "cancelled": 0, "watched": "Watched resource content"}

RETRY = 200  # milliseconds until a client may come back for the rest of a stream
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415478da63f8cfc000000301010018dd8db00000000049454e44ae426082"
)


class Sum(BaseModel):
    total: float
    terms: int


class Person(BaseModel):
    username: str
    email: str


@server.tool()
async def test_simple_text() -> str:
    """One text."""
    return "This is a simple text response for testing."


@server.tool()
async def test_image_content() -> Image:
    """One picture."""
    return Image(data=PIXEL, format="png")


@server.tool()
async def test_embedded_resource() -> EmbeddedResource:
    """One resource."""
    return EmbeddedResource(
        type="resource",
        resource=TextResourceContents(
            uri="test://embedded-resource",
            mime_type="text/plain",
            text="This is an embedded resource content.",
        ),
    )


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Three log messages."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(text)
    return "Tool with logging executed successfully"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Three times progress."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
    return "done"


@server.tool()
async def test_error_handling() -> str:
    """An error for the model."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool()
async def echo(message: str) -> str:
    """The same again."""
    return message


@server.tool()
async def add(a: float, b: float) -> Sum:
    """A sum."""
    return Sum(total=a + b, terms=2)


def ask_model(prompt: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return Sample([message], max_tokens=100)


@server.tool()
async def test_sampling(prompt: str, answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks the client's model."""
    assert isinstance(answer.content, TextContent)
    return f"LLM response: {answer.content.text}"


def ask_person(message: str) -> Elicit[Person]:
    return Elicit(message, Person)


@server.tool()
async def test_elicitation(message: str, person: Annotated[Person, Resolve(ask_person)]) -> str:
    """Asks the user."""
    return f"User response: action=accept, content={person.model_dump_json()}"


@server.tool()
async def sleep(seconds: float, steps: int, ctx: Context) -> str:
    """Sleeps, with progress."""
    state["sleeping"] += 1
    try:
        for step in range(1, steps + 1):
            await anyio.sleep(seconds / steps)
            await ctx.report_progress(step, steps)
    except anyio.get_cancelled_exc_class():
        state["cancelled"] += 1
        raise
    finally:
        state["sleeping"] -= 1
    state["slept"] += 1
    return f"slept {seconds:g} s"


@server.tool()
async def activity() -> dict[str, int]:
    """What the sleeps did."""
    return {name: state[name] for name in ("sleeping", "slept", "cancelled")}


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes its stream, where it has one that a client can come back to, and answers a moment later."""
    can_close = ctx.request_context.close_sse_stream is not None
    await ctx.close_sse_stream()
    await anyio.sleep(0.1)
    return "closed" if can_close else "kept"


@server.tool()
async def touch(text: str, ctx: Context) -> str:
    """Changes the watched resource."""
    state["watched"] = text
    await ctx.notify_resource_updated("test://watched-resource")
    return "touched"


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Adds a tool, and tells both those who subscribe and the session."""
    server.add_tool(test_simple_text, name=name)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.resource("test://static-text", name="static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", name="static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """A picture."""
    return PIXEL


@server.resource("test://template/{id}/data", name="template", mime_type="application/json")
async def template(id: str) -> str:
    """One for each id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", name="watched-resource", mime_type="text/plain")
async def watched() -> str:
    """Changes."""
    return state["watched"]


@server.prompt()
async def test_simple_prompt() -> list[UserMessage]:
    """No arguments."""
    return [UserMessage("This is a simple prompt for testing.")]


@server.prompt()
async def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage | AssistantMessage]:
    """Two arguments."""
    return [UserMessage(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"), AssistantMessage("I see.")]


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
    words = ("paris", "park", "party") if isinstance(ref, PromptReference) else ("7", "70", "71")
    return Completion(
        values=[word for word in words if word.startswith(argument.value)], total=3, has_more=False
    )


class Events(EventStore):
    """Every event of every stream, for good: this server does not live long."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream, _ = self.events[int(last_event_id) - 1]
        for number, (other, message) in enumerate(self.events, 1):
            if number > int(last_event_id) and other == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


if __name__ == "__main__":
    match sys.argv[1]:
        case "http":
            server.run("streamable-http", port=0, event_store=Events(), retry_interval=RETRY)
        case "sse":
            server.run("sse", port=0)
        case _:
            server.run()
