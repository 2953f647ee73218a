"""A server made with the first generation of the official Python SDK, over WebSocket: ``python_v1_server.py``.

It takes a free port, which the web server under it writes to stderr, and has the same part of an everything server as
``python_server.py``. That generation knows the legacy era only.
"""

from __future__ import annotations

import base64
import json
import warnings
from typing import Any

import anyio
import uvicorn
from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.fastmcp.prompts.base import AssistantMessage, UserMessage
from mcp.server.websocket import websocket_server
from mcp.types import Completion, PromptReference, SamplingMessage, TextContent
from pydantic import AnyUrl, BaseModel
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC"
)
server = FastMCP("official-python", instructions="An official server.")
state: dict[str, Any] = {"sleeping": 0, "slept": 0, "cancelled": 0, "watched": "Watched resource content"}


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


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    answer = await ctx.session.create_message([message], max_tokens=100)
    assert isinstance(answer.content, TextContent)
    return f"LLM response: {answer.content.text}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    answer = await ctx.elicit(message, Person)
    assert answer.action == "accept"
    return f"User response: action=accept, content={answer.data.model_dump_json()}"


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
async def test_reconnection() -> str:
    """Has no stream of its own to close."""
    return "kept"


@server.tool()
async def touch(text: str, ctx: Context) -> str:
    """Changes the watched resource, and tells the one who did it: this generation keeps no subscriptions."""
    state["watched"] = text
    await ctx.session.send_resource_updated(AnyUrl("test://watched-resource"))
    return "touched"


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
        values=[word for word in words if word.startswith(argument.value)], total=3, hasMore=False
    )


async def serve(websocket: WebSocket) -> None:
    """One connection, one session."""
    core = server._mcp_server  # its public `run` methods leave WebSocket out
    async with websocket_server(websocket.scope, websocket.receive, websocket._send) as (reading, writing):
        await core.run(reading, writing, core.create_initialization_options())


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK announces that WebSocket goes
    app = Starlette(routes=[WebSocketRoute("/ws", serve)])
    uvicorn.run(app, port=0, ws_max_size=2**24)
