"""The official Python SDK's client calls one tool that says nothing, and prints one JSON report.

Usage: silent_call.py legacy|auto URL TOOL SECONDS

The client is as it comes: no timeout is given. Without any byte its HTTP client would give up after 300 seconds.
"""

from __future__ import annotations

import json
import sys
import time

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(mode: str, url: str, tool: str, seconds: str) -> None:
    async with Client(streamable_http_client(url), mode=mode) as client:
        began = time.monotonic()
        result = await client.call_tool(tool, {"seconds": float(seconds)})
        took = time.monotonic() - began
        report = {"version": client.protocol_version, "text": result.content[0].text, "took": took}
    print(json.dumps(report))


anyio.run(main, *sys.argv[1:])
