"""Frameworks for agents as clients of a server: ``agents.py URL`` prints what they found as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.test import TestModel


async def main(url: str) -> None:
    agent = Agent(TestModel(call_tools=["add", "steps"]), toolsets=[MCPToolset(url)])
    ran = await agent.run("Add, and take the steps.")
    connection = {"transport": "streamable_http", "url": url}
    tools = {each.name: each for each in await MultiServerMCPClient({"ours": connection}).get_tools()}
    added = await tools["add"].ainvoke({"a": 2, "b": 3})
    print(json.dumps({"pydantic-ai": ran.output, "names": sorted(tools), "langchain": added}, default=str))


asyncio.run(main(sys.argv[1]))
