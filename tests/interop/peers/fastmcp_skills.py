"""Skills (SEP-2640) with FastMCP, either side, over stdio.

    fastmcp_skills.py serve FOLDER
    fastmcp_skills.py proxy COMMAND [ARG...]
    fastmcp_skills.py read COMMAND [ARG...]

The reader prints one JSON report: the entries, and the bytes (in base64) of each file, each verified by FastMCP.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.server.providers.proxy import FastMCPProxy
from fastmcp.skills import SkillsClientExtension
from fastmcp.skills.provider import SkillsDirectoryProvider
from mcp.shared.exceptions import MCPError


def client_of(command: list[str]) -> Client[Any]:
    return Client(StdioTransport(command[0], command[1:]), extensions=[SkillsClientExtension()])


async def read(command: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {"same": True, "skills": {}}
    async with client_of(command) as client:
        entries = await client.list_skills()
        report["entries"] = [each.model_dump(mode="json", exclude_none=True) for each in entries]
        for entry in entries:
            report["same"] = report["same"] and await client.get_skill(entry.uri) == entry
            skill = await client.read_skill(entry.uri)
            report["skills"][entry.uri] = {
                path: base64.b64encode(content).decode() for path, content in skill.files.items()
            }
        try:
            await client.get_skill("skill://nothing/SKILL.md")
        except MCPError as error:
            report["missing"] = error.error.code
    return report


what, *rest = sys.argv[1:]
if what == "serve":
    FastMCP("fastmcp", providers=[SkillsDirectoryProvider(rest[0])]).run(show_banner=False)
elif what == "proxy":
    FastMCPProxy(client_factory=lambda: client_of(rest), skills=True).run(show_banner=False)
else:
    print(json.dumps(asyncio.run(read(rest))))
