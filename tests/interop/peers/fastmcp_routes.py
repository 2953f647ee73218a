"""Calls an API by FastMCP: given its URL and calls on standard input, prints the answers.

It runs in an environment that has FastMCP and not this package.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx2
from fastmcp import Client, FastMCP


async def main() -> None:
    given = json.load(sys.stdin)
    document = httpx2.get(f"{given['url']}/openapi.json").json()
    headers = {"Authorization": "Bearer ann-token"}
    async with httpx2.AsyncClient(base_url=given["url"], headers=headers) as api:
        server: Any = FastMCP.from_openapi(document, client=api)
        answers = {}
        async with Client(server) as client:
            for name, arguments in given["calls"]:
                # It calls a tool what the operation's id has before its first two underscores.
                tool = name.partition("__")[0]
                try:
                    result = await client.call_tool(tool, arguments, raise_on_error=False)
                except RuntimeError as error:
                    # A result that its client refuses.
                    answers[name] = f"RuntimeError: {error}"
                    continue
                text = "".join(getattr(each, "text", "") for each in result.content)
                kinds = [type(each).__name__ for each in result.content]
                value = (result.structured_content or {}).get("result", result.structured_content)
                answers[name] = text if result.is_error else kinds if value is None else value
    json.dump({"answers": answers}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
