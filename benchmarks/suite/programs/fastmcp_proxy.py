"""FastMCP's proxy of one server: ``fastmcp_proxy.py URL UPSTREAM``; runs in an environment of its own.

``UPSTREAM`` is JSON: a URL, or a command as a list. Its session is shared by all calls, which is the faster one of
FastMCP's two ways: the other opens a session for each call.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import urlsplit

import anyio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy


async def main(url: str, upstream: str | list[str]) -> None:
    transport: Any = (
        StreamableHttpTransport(upstream)
        if isinstance(upstream, str)
        else StdioTransport(upstream[0], upstream[1:])
    )
    async with Client(transport) as client:
        proxy = create_proxy(client)
        if url == "stdio:":
            await proxy.run_async("stdio", show_banner=False)
            return
        port = urlsplit(url).port
        options: dict[str, Any] = {"host": "127.0.0.1", "show_banner": False, "log_level": "warning"}
        await proxy.run_async("http", port=port, json_response=True, **options)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], json.loads(sys.argv[2]))
