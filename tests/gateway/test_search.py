"""The list of a gateway within a budget: tools of all upstreams are found and called, by those who may see them."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Client, Reshape, Server
from mcp_actors.errors import ConfigurationError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.gateway import configured_gateway
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.types import Tool
from tests.server.generated_tools import make_tools

EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


def add_tool(server: Server, upstream: str, tool: Tool) -> None:
    async def call(arguments: dict[str, Any]) -> str:
        return f"{upstream} {tool.name} {arguments['id']}"

    server.add_tool(call, name=tool.name, description=tool.description, input_schema=tool.input_schema)


def make_upstream(name: str) -> Server:
    server = Server(name)
    for tool in make_tools()[:60]:
        add_tool(server, name, tool)
    return server


def make_gateway() -> Gateway[Any]:
    shape = {"github_get_issue": Reshape(name="bug", description="Reads a defect of the product.")}
    upstreams = [
        Upstream(name="a", target=make_upstream("a"), tools=shape),
        Upstream(name="b", target=make_upstream("b"), include=["github_get_*"]),
    ]

    def visible(principal: Any, upstream: str, kind: str, name: str) -> bool:
        return name != "github_delete_issue"

    return Gateway(upstreams, budget=500, pinned=["b_github_get_issue"], visible=visible)


@EACH_ERA
async def test_tools_of_upstreams_are_found_and_called(era: str) -> None:
    async with Client(make_gateway(), era=era) as client:
        listed = [each.name async for each in client.tools()]
        assert listed == ["search_tools", "call_tool", "b_github_get_issue"]

        async def found(query: str) -> list[str]:
            result = await client.call_tool("search_tools", {"query": query, "limit": 20})
            return [each["name"] for each in result.data["tools"]]

        assert (await found("read a defect of the product"))[0] == "bug"
        assert "a_github_delete_issue" not in await found("delete an issue of github")
        called = await client.call_tool("call_tool", {"name": "bug", "arguments": {"id": "7"}})
        assert called.text == "a github_get_issue 7"
        hidden = await client.call_tool(
            "call_tool", {"name": "a_github_delete_issue", "arguments": {"id": "7"}}
        )
        assert hidden.is_error
        assert (await client.call_tool("b_github_get_branch", {"id": "8"})).text == "b github_get_branch 8"
        listed = [each.name async for each in client.tools()]
        assert listed[3:] == ["b_github_get_branch", "bug"]


def test_a_configuration_has_a_budget() -> None:
    servers = {"mcpServers": {"a": {"command": "a"}}}
    entries = read_server_entries({**servers, "gateway": {"budget": 100, "pinned": ["a_*"]}})
    assert (entries.gateway.budget, entries.gateway.pinned) == (100, ["a_*"])
    assert "tools/list" in configured_gateway(entries)._features.around
    with pytest.raises(ConfigurationError, match=r"gateway.budget: it has to be a number of tokens above 0"):
        read_server_entries({**servers, "gateway": {"budget": "100"}})
