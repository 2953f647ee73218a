"""An agent of openai-agents whose model follows a script: ``openai_agents_client.py stdio|http ADDRESS… < calls.json``.

Prints the tools as its model is given them, by their names in the two ways in which the framework converts schemas, and
the output of each call as the model is sent it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class ScriptedModel(Model):
    def __init__(self, calls: list[list[Any]]) -> None:
        self.calls = list(calls)
        self.schemas: dict[str, Any] = {}
        self.seen: list[Any] = []

    async def get_response(self, *, input: Any, tools: Any, **more: Any) -> ModelResponse:
        self.schemas = {each.name: each.params_json_schema for each in tools}
        self.seen = input
        output: list[Any]
        if self.calls:
            name, arguments = self.calls.pop(0)
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    call_id=str(len(self.calls)),
                    name=name,
                    arguments=json.dumps(arguments),
                )
            ]
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(
                    type="message", id="last", role="assistant", status="completed", content=[text]
                )
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


async def run(binding: str, address: list[str], calls: list[list[Any]], strict: bool) -> ScriptedModel:
    server: Any
    if binding == "stdio":
        server = MCPServerStdio(
            {"command": address[0], "args": address[1:]}, client_session_timeout_seconds=30
        )
    else:
        server = MCPServerStreamableHttp({"url": address[0]}, client_session_timeout_seconds=30)
    model = ScriptedModel(calls)
    async with server:
        agent = Agent(
            "agent", model=model, mcp_servers=[server], mcp_config={"convert_schemas_to_strict": strict}
        )
        await Runner.run(agent, "Go.", max_turns=len(calls) + 2)
    return model


async def main(binding: str, *address: str) -> None:
    set_tracing_disabled(True)
    calls = json.load(sys.stdin)
    model = await run(binding, list(address), calls, strict=False)
    strict = await run(binding, list(address), [], strict=True)
    outputs = [each["output"] for each in model.seen if each.get("type") == "function_call_output"]
    print(json.dumps({"schemas": {"as listed": model.schemas, "strict": strict.schemas}, "outputs": outputs}))


asyncio.run(main(*sys.argv[1:]))
