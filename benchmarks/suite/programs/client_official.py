"""The official Python client, and FastMCP's after it: ``client_official.py WORK [fastmcp]``. See `scenarios.clients`.

It runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import sys
from typing import Any

# Neither this package nor the suite is in that environment: the module is found beside this one.
measure = importlib.import_module("calling_asyncio").measure


def client_of(work: dict[str, Any], fast: bool) -> Any:
    target: Any = work["url"]
    if target == "memory:":
        # Where it is imported it switches on logging, so not for the other transports.
        target = importlib.import_module("official").server
    elif target.startswith("stdio:"):
        command, *arguments = shlex.split(target.removeprefix("stdio:"))
        if fast:
            target = importlib.import_module("fastmcp.client.transports").StdioTransport(command, arguments)
        else:
            stdio = importlib.import_module("mcp.client.stdio")
            target = stdio.StdioServerParameters(command=command, args=arguments)
    package = importlib.import_module("fastmcp" if fast else "mcp")
    return package.Client(target, mode="legacy" if work["era"] == "legacy" else "auto")


async def main(work: dict[str, Any], fast: bool) -> None:
    async with client_of(work, fast) as client:

        async def add(number: int) -> int:
            result = await client.call_tool("add", {"a": number, "b": 1})
            total: int = result.structured_content["total"]
            return total

        await measure(add, max(work["windows"]), work["warm_up"])
        print(json.dumps([await measure(add, window, work["seconds"]) for window in work["windows"]]))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[-1] == "fastmcp"))
