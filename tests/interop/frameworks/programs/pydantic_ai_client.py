"""An agent of pydantic-ai whose model follows a script: ``pydantic_ai_client.py stdio|http ADDRESS… < calls.json``.

Prints the tools as its model is given them, and the output of each call as the model is sent it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def main(binding: str, *address: str) -> None:
    calls = json.load(sys.stdin)
    schemas: dict[str, Any] = {}
    outputs: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        schemas.update({each.name: each.parameters_json_schema for each in info.function_tools})
        parts = [each for each in messages[-1].parts if isinstance(each, ToolReturnPart | RetryPromptPart)]
        outputs.extend(each.content for each in parts)
        if len(outputs) < len(calls):
            # JSON text is what providers send.
            name, arguments = calls[len(outputs)]
            return ModelResponse(parts=[ToolCallPart(name, json.dumps(arguments))])
        return ModelResponse(parts=[TextPart("done")])

    client: Any = address[0] if binding == "http" else StdioTransport(address[0], list(address[1:]))
    toolset: Any = MCPToolset(client, max_retries=5)
    agent = Agent(FunctionModel(model), toolsets=[toolset])
    await agent.run("Go.")
    report = {"schemas": {"as listed": schemas}, "outputs": outputs}
    print(json.dumps(report, default=lambda media: base64.b64encode(media.data).decode()))


asyncio.run(main(*sys.argv[1:]))
