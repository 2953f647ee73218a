"""Gateways of configurations, and bridges, as a library."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client, Server
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.auth import BearerToken
from mcp_actors.errors import ConfigurationError
from mcp_actors.gateway import SessionPolicy, Upstream, bridge_to, configured_gateway, upstreams_of
from mcp_actors.gateway.server_entries import read_server_entries

SERVES = Path(__file__).parents[1] / "server_entries" / "serves.py"


def inner() -> Server:
    server = Server("inner", version="7", instructions="Ask the inner one.")

    @server.tool
    def greet(name: str) -> str:
        return f"hello {name}"

    return server


async def test_a_gateway_of_a_configuration(nursery: Any) -> None:
    await nursery.start(inner().serve, "memory:configured")
    value = {
        "mcpServers": {
            "memory": {"url": "memory:configured", "rename": {"greet": "hi"}},
            "child": {
                "command": sys.executable,
                "args": [str(SERVES), "${WORD}"],
                "env": {"A": "b"},
                "prefix": "c-",
            },
            "off": {"command": "nothing", "disabled": True},
        },
        "gateway": {"name": "all", "instructions": "Ask them."},
    }
    os.environ["WORD"] = "w"
    try:
        gateway = configured_gateway(value, version="3")
        async with Client(gateway) as client:
            assert (client.server_info.name, client.server_info.version) == ("all", "3")
            assert client.instructions is not None
            assert client.instructions.startswith("Ask them.")
            found = await client.call_tool("c-started", {"names": ["A"]}, returns=dict[str, str])
            assert (found["A"], found["args"]) == ("b", "w")
            assert (await client.call_tool("hi", {"name": "Ada"})).text == "hello Ada"
    finally:
        del os.environ["WORD"]
    nursery.cancel_scope.cancel()


def test_the_members_of_an_entry_are_the_settings_of_its_upstream() -> None:
    members: dict[str, Any] = {
        "prefix": "p-",
        "rename": {"a": "b"},
        "include": ["x*"],
        "exclude": ["xy"],
        "sessions": "own",
        "lazy": True,
        "era": "legacy",
        "timeout": 5,
        "cap": 50,
        "scopes": ["read"],
    }
    entries = read_server_entries(
        {"mcpServers": {"one": {"url": "https://a.example/mcp", **members}, "two": {"command": "x"}}}
    )
    one, two = upstreams_of(entries, access={"one": BearerToken("t"), "two": BearerToken("t")})
    assert {name: getattr(one, name) for name in members} == members
    assert two == Upstream(name="two", target=two.target)
    assert callable(one.target)
    # What takes no access is given none.
    assert callable(two.target)
    assert one.target() is not one.target()
    assert two.target() is not two.target()


def test_names_that_cannot_be_are_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"one": {"command": "x", "rename": {"a": "c", "b": "c"}}}}')
    with pytest.raises(ConfigurationError, match=r"mcp\.json: .*'one'"):
        configured_gateway(path)


async def test_a_bridge_presents_itself_as_its_server() -> None:
    async with Client(bridge_to(inner())) as client:
        assert (client.server_info.name, client.server_info.version) == ("inner", "7")
        assert client.instructions == "Ask the inner one."
        assert [tool.name async for tool in client.tools()] == ["greet"]
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"


@pytest.mark.parametrize(("sessions", "connections"), [("shared", 1), ("own", 2)])
async def test_connections_of_a_bridge_may_be_shared_or_own(
    nursery: Any, sessions: SessionPolicy, connections: int
) -> None:
    made: list[ClientTransport] = []
    await nursery.start(inner().serve, "memory:bridged")

    def make() -> ClientTransport:
        made.append(client_transport("memory:bridged"))
        return made[-1]

    bridge = bridge_to(make, sessions=sessions, settings={"era": "legacy", "lazy": True})
    await nursery.start(bridge.serve, "memory:bridge")
    async with Client("memory:bridge", era="legacy") as one, Client("memory:bridge", era="legacy") as two:
        for client in (one, two, one, two):
            assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"
    assert len(made) == connections
    nursery.cancel_scope.cancel()
