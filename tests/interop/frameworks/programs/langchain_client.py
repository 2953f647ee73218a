"""An agent of LangChain whose model follows a script: ``langchain_client.py stdio|http ADDRESS… < calls.json``.

Prints the tools as its model is given them, in the two ways in which the framework converts schemas, and the output of
each call as the model is sent it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_mcp_adapters.client import MultiServerMCPClient


class ScriptedModel(GenericFakeChatModel):
    given: dict[str, Any] = {}

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        self.given.update({each.name: each for each in tools})
        return self


async def main(binding: str, *address: str) -> None:
    calls = json.load(sys.stdin)
    connection: dict[str, Any] = {"transport": "streamable_http", "url": address[0]}
    if binding == "stdio":
        connection = {"transport": "stdio", "command": address[0], "args": list(address[1:])}
    client = MultiServerMCPClient({"journeys": connection})  # type: ignore[dict-item]
    tools = await client.get_tools()
    script: list[Any] = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": str(number)}])
        for number, (name, arguments) in enumerate(calls)
    ]
    model = ScriptedModel(messages=iter([*script, AIMessage("done")]))
    ended = await create_agent(model, tools).ainvoke({"messages": [("user", "Go.")]})
    answers = [each for each in ended["messages"] if isinstance(each, ToolMessage)]
    outputs = [
        {"content": each.content, "artifact": each.artifact, "status": each.status} for each in answers
    ]
    converted = {name: convert_to_openai_tool(each) for name, each in model.given.items()}
    schemas = {name: each["function"]["parameters"] for name, each in converted.items()}
    strict = {
        name: convert_to_openai_tool(each, strict=True)["function"]["parameters"]
        for name, each in model.given.items()
    }
    report = {"schemas": {"as listed": schemas, "strict": strict}, "outputs": outputs}
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:]))
