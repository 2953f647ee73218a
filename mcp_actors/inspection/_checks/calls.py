"""Checks by calls of tools, which are made only where that was allowed.

Tools are called that say of themselves that they only read, and that need no arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_actors._schema.validate import compile_schema
from mcp_actors.inspection._checks.requests import NO_NAME
from mcp_actors.inspection.answers import ServerAnswer, shown
from mcp_actors.inspection.inspected import SpokenEra
from mcp_actors.inspection.rule import NotApplicable

__all__ = ["callable_tools", "content_blocks", "structured_results", "unknown_tool"]

# Tools that are called.
MAX_CALLS = 8
# The members that a block of content of a type must have.
_BLOCKS = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": ("resource",),
}


def callable_tools(spoken: SpokenEra) -> list[dict[str, Any]]:
    """Returns the tools that only read, by their own words, and that need no arguments."""
    if not spoken.declares("tools") or "tools" not in spoken.lists:
        raise NotApplicable("it declares no tools")
    return [tool for tool in spoken.lists["tools"].items if isinstance(tool, dict) and _may_be_called(tool)][
        :MAX_CALLS
    ]


def _may_be_called(tool: Mapping[str, Any]) -> bool:
    annotations, schema = tool.get("annotations"), tool.get("inputSchema")
    return (
        isinstance(tool.get("name"), str)
        and isinstance(annotations, Mapping)
        and annotations.get("readOnlyHint") is True
        and isinstance(schema, Mapping)
        and not schema.get("required")
    )


async def _called(spoken: SpokenEra) -> list[tuple[dict[str, Any], ServerAnswer]]:
    tools = callable_tools(spoken)
    if not tools:
        raise NotApplicable("no tool says that it only reads, and needs no arguments")
    done = spoken.calls
    for tool in tools:
        if tool["name"] not in done:
            params = {"name": tool["name"], "arguments": {}}
            answer = await spoken.conversation.ask("tools/call", params)
            done[tool["name"]] = answer
            if answer.gone is not None and (not spoken.is_http or not spoken.era.asks_by_retry):
                # It takes longer than is waited for here, which no rule forbids.
                await spoken.conversation.notify("notifications/cancelled", {"requestId": answer.id})
    return [(tool, done[tool["name"]]) for tool in tools]


async def unknown_tool(spoken: SpokenEra) -> list[str]:
    """A tool that does not exist is refused by an error of the protocol."""
    if not spoken.declares("tools"):
        raise NotApplicable("it declares no tools")
    answer = await spoken.conversation.ask("tools/call", {"name": NO_NAME, "arguments": {}})
    if answer.error is None:
        return [f"a call of a tool that does not exist was answered by {answer.summary()}"]
    return []


async def content_blocks(spoken: SpokenEra) -> list[str]:
    """The result of a call has content, whose blocks are of types that exist."""
    found = []
    for tool, answer in await _called(spoken):
        name = shown(tool["name"])
        if answer.result is None:
            if answer.error is None and answer.gone is None:
                found.append(f"the call of the tool {name} was answered by {answer.summary()}")
            continue
        if answer.result.get("resultType", "complete") != "complete":
            continue
        content = answer.result.get("content")
        if not isinstance(content, list):
            found.append(f"the result of the tool {name} has the content {shown(content)}")
            continue
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            members = _BLOCKS.get(kind) if isinstance(kind, str) else None
            if members is None or any(each not in block for each in members):
                found.append(f"the result of the tool {name} has the block {shown(block)}")
    return found


async def structured_results(spoken: SpokenEra) -> list[str]:
    """A tool with a schema of its output gives structured content that fits it."""
    found, judged = [], 0
    for tool, answer in await _called(spoken):
        schema, result = tool.get("outputSchema"), answer.result
        if not isinstance(schema, dict) or result is None or result.get("isError") is True:
            continue
        if result.get("resultType", "complete") != "complete":
            continue
        judged += 1
        if "structuredContent" not in result:
            found.append(f"the tool {shown(tool['name'])} has an outputSchema, and gave no structuredContent")
            continue
        try:
            problems = compile_schema(schema).problems(result["structuredContent"])
        except ValueError:
            continue
        found += [
            f"the structuredContent of the tool {shown(tool['name'])}: {shown(each)}" for each in problems[:3]
        ]
    if not judged:
        raise NotApplicable("no tool that was called has an outputSchema")
    return found
