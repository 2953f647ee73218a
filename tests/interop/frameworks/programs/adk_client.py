"""An agent of google-adk whose model follows a script: ``adk_client.py stdio|http ADDRESS… < calls.json``.

Prints the tools as its model is given them, in the two ways in which the framework converts schemas, and the output of
each call as the model is sent it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.features import FeatureName, override_feature_enabled
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from google.genai import types
from mcp import StdioServerParameters


class ScriptedModel(BaseLlm):
    calls: list[Any]
    schemas: dict[str, Any] = {}
    outputs: list[Any] = []

    async def generate_content_async(
        self, request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for tool in request.config.tools or ():
            for each in tool.function_declarations:
                schema = each.parameters_json_schema
                if schema is None:
                    schema = each.parameters.model_dump(mode="json", exclude_none=True, by_alias=True)
                self.schemas[each.name] = schema
        for part in request.contents[-1].parts:
            if part.function_response is not None:
                self.outputs.append(part.function_response.response)
        if self.calls:
            name, arguments = self.calls.pop(0)
            part = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
        else:
            part = types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def run(binding: str, address: list[str], calls: list[Any], as_json_schema: bool) -> ScriptedModel:
    override_feature_enabled(FeatureName.JSON_SCHEMA_FOR_FUNC_DECL, as_json_schema)
    parameters: Any = StreamableHTTPConnectionParams(url=address[0], timeout=30)
    if binding == "stdio":
        command = StdioServerParameters(command=address[0], args=address[1:])
        parameters = StdioConnectionParams(server_params=command, timeout=30)
    toolset = McpToolset(connection_params=parameters)
    model = ScriptedModel(model="scripted", calls=calls, schemas={}, outputs=[])
    agent = LlmAgent(name="agent", model=model, tools=[toolset])
    try:
        await InMemoryRunner(agent).run_debug("Go.", quiet=True)
    finally:
        await toolset.close()
    return model


async def main(binding: str, *address: str) -> None:
    calls = json.load(sys.stdin)
    model = await run(binding, list(address), calls, as_json_schema=True)
    gemini = await run(binding, list(address), [], as_json_schema=False)
    print(
        json.dumps(
            {"schemas": {"as listed": model.schemas, "gemini": gemini.schemas}, "outputs": model.outputs}
        )
    )


warnings.simplefilter("ignore")
asyncio.run(main(*sys.argv[1:]))
