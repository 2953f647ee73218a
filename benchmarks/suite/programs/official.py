"""The official Python SDK, and FastMCP after it: ``official.py URL [fastmcp]``; runs in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import mcp.types
import pydantic
from typing_extensions import TypedDict

if sys.argv[-1] == "fastmcp":
    from fastmcp import Context, FastMCP

    server: Any = FastMCP("peer")
else:
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("peer")

ITEM = "bench://item"


class Sum(TypedDict):
    total: int


def tell(word: str) -> None:
    with open(os.environ["MCP_BENCHMARK_TELL"], "a") as file:
        file.write(f"{word} {time.monotonic()!r}\n")


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return {"total": a + b}


@server.tool()
async def add_awaiting(a: int, b: int) -> Sum:
    """Adds two numbers, after others had their turn."""
    await anyio.lowlevel.checkpoint()
    return {"total": a + b}


@server.tool()
async def echo(text: str) -> str:
    """Gives back what it gets."""
    return text


@server.tool()
async def hang() -> None:
    """Waits for good; tells when it began and when it was cancelled."""
    tell("began")
    try:
        await anyio.sleep_forever()
    finally:
        tell("cancelled")


@server.tool()
async def steps(count: int, size: int, ctx: Context) -> str:
    """Reports progress ``count`` times with messages of ``size`` characters."""
    for number in range(1, count + 1):
        await ctx.report_progress(number, total=count, message="x" * size)
    return "done"


@server.resource(ITEM)
async def item() -> str:
    """The one resource."""
    return "an item"


@server.prompt()
async def greet(name: str) -> str:
    """The one prompt."""
    return f"Greet {name}."


def measure_codec(seconds: float) -> None:
    """The SDK's own models, to and from JSON; prints microseconds a message by its size."""
    adapter = pydantic.TypeAdapter(mcp.types.JSONRPCMessage)
    answer = {}
    for size in (100, 10_000, 1_000_000):
        params = {"name": "echo", "arguments": {"text": "x" * size}}
        data = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        text = mcp.types.TextContent(type="text", text="x" * size)
        result = mcp.types.CallToolResult(content=[text])

        def decode(data: bytes = data) -> None:
            request = adapter.validate_json(data)
            mcp.types.CallToolRequestParams.model_validate(request.params)

        def encode(result: Any = result) -> None:
            dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
            message = mcp.types.JSONRPCResponse(jsonrpc="2.0", id=1, result=dumped)
            message.model_dump_json(by_alias=True, exclude_none=True).encode()

        answer[size] = {"decode_us": each_us(decode, seconds), "encode_us": each_us(encode, seconds)}
    print(json.dumps(answer))


def each_us(work: Callable[[], None], seconds: float) -> float:
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds / 6:
        for _ in range(10):
            work()
        count += 10
    return elapsed / count * 1e6


def main(url: str, fast: bool) -> None:
    if url.startswith("codec:"):
        measure_codec(float(url.removeprefix("codec:")))
        return
    if url == "stdio:":
        server.run(**({"show_banner": False} if fast else {}))
        return
    port = urlsplit(url).port
    # Progress needs a stream; single answers are compared as JSON everywhere.
    plain = os.environ.get("MCP_BENCHMARK_STREAMS") != "1"
    if fast:
        options = {"host": "127.0.0.1", "show_banner": False, "log_level": "warning"}
        server.run("streamable-http", port=port, json_response=plain, **options)
        return
    server.settings.log_level = "WARNING"
    server.run("streamable-http", port=port, json_response=plain, max_sessions=None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[-1] == "fastmcp")
