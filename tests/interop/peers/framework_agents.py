"""Agents of four frameworks whose models follow a script, each in an environment that has its framework alone.

Usage: framework_agents.py google-adk|langchain|openai-agents|pydantic-ai stdio|http ADDRESS… < calls.json, where the
input is a list of [tool, arguments], and the address a command or a URL.

Prints the tools as the model is given them, in each way in which the framework converts schemas, and the output of each
call as the model is sent it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from typing import Any

PATIENCE = 60.0  # seconds for what these frameworks give five; a busy machine needs more to start a server

Report = dict[str, Any]


async def openai_agents(binding: str, address: list[str], calls: list[Any]) -> Report:
    from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class ScriptedModel(Model):
        def __init__(self, script: list[Any]) -> None:
            self.script = list(script)
            self.schemas: dict[str, Any] = {}
            self.seen: list[Any] = []

        async def get_response(self, *, input: Any, tools: Any, **more: Any) -> ModelResponse:
            self.schemas = {each.name: each.params_json_schema for each in tools}
            self.seen = input
            output: Any
            if self.script:
                name, arguments = self.script.pop(0)
                id, text = str(len(self.script)), json.dumps(arguments)
                output = ResponseFunctionToolCall(type="function_call", call_id=id, name=name, arguments=text)
            else:
                done = ResponseOutputText(type="output_text", text="done", annotations=[])
                output = ResponseOutputMessage(
                    type="message", id="last", role="assistant", status="completed", content=[done]
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> Any:
            raise NotImplementedError

    async def run(script: list[Any], strict: bool) -> ScriptedModel:
        server: Any
        if binding == "stdio":
            parameters: Any = {"command": address[0], "args": address[1:]}
            server = MCPServerStdio(parameters, client_session_timeout_seconds=PATIENCE)
        else:
            server = MCPServerStreamableHttp({"url": address[0]}, client_session_timeout_seconds=PATIENCE)
        model = ScriptedModel(script)
        async with server:
            config: Any = {"convert_schemas_to_strict": strict}
            agent = Agent("agent", model=model, mcp_servers=[server], mcp_config=config)
            await Runner.run(agent, "Go.", max_turns=len(script) + 2)
        return model

    set_tracing_disabled(True)
    model, strict = await run(calls, strict=False), await run([], strict=True)
    outputs = [each["output"] for each in model.seen if each.get("type") == "function_call_output"]
    return {"schemas": {"as listed": model.schemas, "strict": strict.schemas}, "outputs": outputs}


async def pydantic_ai(binding: str, address: list[str], calls: list[Any]) -> Report:
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

    client: Any = address[0] if binding == "http" else StdioTransport(address[0], address[1:])
    toolset: Any = MCPToolset(client, max_retries=5, init_timeout=PATIENCE)
    await Agent(FunctionModel(model), toolsets=[toolset]).run("Go.")
    return {"schemas": {"as listed": schemas}, "outputs": outputs}


async def langchain(binding: str, address: list[str], calls: list[Any]) -> Report:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langchain_mcp_adapters.client import MultiServerMCPClient

    given: dict[str, Any] = {}

    class ScriptedModel(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **more: Any) -> Any:
            given.update({each.name: each for each in tools})
            return self

    connection: Any = {"transport": "streamable_http", "url": address[0]}
    if binding == "stdio":
        connection = {"transport": "stdio", "command": address[0], "args": address[1:]}
    script: list[Any] = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": str(number)}])
        for number, (name, arguments) in enumerate(calls)
    ]
    model = ScriptedModel(messages=iter([*script, AIMessage("done")]))
    agent = create_agent(model, await MultiServerMCPClient({"journeys": connection}).get_tools())
    ended = await agent.ainvoke({"messages": [("user", "Go.")]})
    answers = [each for each in ended["messages"] if isinstance(each, ToolMessage)]
    outputs = [
        {"content": each.content, "artifact": each.artifact, "status": each.status} for each in answers
    ]
    schemas = {
        conversion: {
            name: convert_to_openai_tool(each, strict=strict)["function"]["parameters"]
            for name, each in given.items()
        }
        for conversion, strict in (("as listed", None), ("strict", True))
    }
    return {"schemas": schemas, "outputs": outputs}


async def google_adk(binding: str, address: list[str], calls: list[Any]) -> Report:
    from google.adk.agents import LlmAgent
    from google.adk.features import FeatureName, override_feature_enabled
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.adk.tools.mcp_tool import (
        McpToolset,
        StdioConnectionParams,
        StreamableHTTPConnectionParams,
    )
    from google.genai import types
    from mcp import StdioServerParameters

    class ScriptedModel(BaseLlm):
        script: list[Any]
        schemas: dict[str, Any]
        outputs: list[Any]

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            for tool in llm_request.config.tools or ():
                for each in tool.function_declarations:
                    schema = each.parameters_json_schema
                    if schema is None:
                        schema = each.parameters.model_dump(mode="json", exclude_none=True, by_alias=True)
                    self.schemas[each.name] = schema
            for part in llm_request.contents[-1].parts:
                if part.function_response is not None:
                    self.outputs.append(part.function_response.response)
            part = types.Part(text="done")
            if self.script:
                name, arguments = self.script.pop(0)
                part = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    async def run(script: list[Any], as_json_schema: bool) -> ScriptedModel:
        override_feature_enabled(FeatureName.JSON_SCHEMA_FOR_FUNC_DECL, as_json_schema)
        parameters: Any = StreamableHTTPConnectionParams(url=address[0], timeout=PATIENCE)
        if binding == "stdio":
            command = StdioServerParameters(command=address[0], args=address[1:])
            parameters = StdioConnectionParams(server_params=command, timeout=PATIENCE)
        toolset = McpToolset(connection_params=parameters)
        model = ScriptedModel(model="scripted", script=script, schemas={}, outputs=[])
        try:
            agent = LlmAgent(name="agent", model=model, tools=[toolset])
            await InMemoryRunner(agent).run_debug("Go.", quiet=True)
        finally:
            await toolset.close()
        return model

    model, gemini = await run(calls, as_json_schema=True), await run([], as_json_schema=False)
    return {"schemas": {"as listed": model.schemas, "gemini": gemini.schemas}, "outputs": model.outputs}


AGENTS = {
    "google-adk": google_adk,
    "langchain": langchain,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the frameworks warn about each other and about what they deprecate
    framework, binding, *address = sys.argv[1:]
    report = asyncio.run(AGENTS[framework](binding, address, json.load(sys.stdin)))
    print(json.dumps(report, default=lambda media: base64.b64encode(media.data).decode()))
