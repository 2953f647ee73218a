"""Capabilities: what is declared exists, what is not declared does not, on both sides and at run time."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Client, Server
from mcp_actors.errors import LocalProtocolError
from mcp_actors.testing import raw_client

from .peers import EVERY, LEGACY, MODERN, ask, begin, scripted

GATED: dict[str, tuple[str, dict[str, Any]]] = {
    "tools/list": ("tools", {}),
    "tools/call": ("tools", {"name": "x"}),
    "resources/list": ("resources", {}),
    "resources/templates/list": ("resources", {}),
    "resources/read": ("resources", {"uri": "x://a"}),
    "prompts/list": ("prompts", {}),
    "prompts/get": ("prompts", {"name": "x"}),
}
SUBSCRIBING = {
    "resources/subscribe": ("resources", {"uri": "x://a"}),
    "resources/unsubscribe": ("resources", {"uri": "x"}),
}


async def declared(peer: Any, version: str) -> dict[str, Any]:
    if version == MODERN:
        capabilities: dict[str, Any] = (await ask(peer, version, "d", "server/discover"))["result"][
            "capabilities"
        ]
        return capabilities
    result: dict[str, Any] = await peer.initialize(version)
    return dict(result["capabilities"])


@pytest.mark.parametrize("version", EVERY)
async def test_a_server_without_anything_declares_nothing_and_answers_nothing(version: str) -> None:
    async with raw_client(Server("empty")) as peer:
        assert await declared(peer, version) == {"logging": {}}
        gated = GATED if version == MODERN else {**GATED, **SUBSCRIBING}
        for method, (_, params) in gated.items():
            error = (await ask(peer, version, method, method, params))["error"]
            assert error["code"] == -32601, method


@pytest.mark.parametrize("version", EVERY)
async def test_a_server_declares_what_it_answers(version: str) -> None:
    server = Server("full")
    server.add_tool(lambda: None, name="x")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_prompt(lambda: "p", name="x")
    async with raw_client(server) as peer:
        expected: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "logging": {},
        }
        if version != "2024-11-05":
            expected["completions"] = {}
        assert await declared(peer, version) == expected
        for method, (_, params) in GATED.items():
            assert "result" in await ask(peer, version, method, method, params), method


@pytest.mark.parametrize("version", EVERY)
async def test_what_a_session_was_promised_stays(version: str) -> None:
    """A list that became empty is an empty list; a client need not expect its server to unlearn a method."""
    server = Server("shrinking")
    server.add_tool(lambda: None, name="x")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_prompt(lambda: "p", name="x")
    async with raw_client(server) as peer:
        before = await declared(peer, version)
        server.remove_tool("x")
        server.remove_resource("x://a")
        server.remove_prompt("x")
        for method, member in (
            ("tools/list", "tools"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
            ("prompts/list", "prompts"),
        ):
            assert (await ask(peer, version, method, method))["result"][member] == []
        assert (await ask(peer, version, 1, "tools/call", {"name": "x"}))["error"]["code"] == -32602
    async with raw_client(server) as peer:
        assert await declared(peer, version) == before


@pytest.mark.parametrize("version", EVERY)
async def test_what_is_added_while_serving_is_declared_and_answered(version: str) -> None:
    server = Server("growing")
    async with raw_client(server) as peer:
        await begin(peer, version)
        assert (await ask(peer, version, 1, "tools/list"))["error"]["code"] == -32601
        server.add_tool(lambda: None, name="x")
        assert [tool["name"] for tool in (await ask(peer, version, 2, "tools/list"))["result"]["tools"]] == [
            "x"
        ]
    async with raw_client(server) as peer:
        assert "tools" in await declared(peer, version)


async def test_completion_of_the_first_revision_needs_no_capability() -> None:
    server = Server("s")
    server.add_prompt(lambda: "p", name="p")
    ref = {"type": "ref/prompt", "name": "nobody"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    async with raw_client(server) as peer:
        assert "completions" not in (await peer.initialize("2024-11-05"))["capabilities"]
        assert (await peer.request(1, "completion/complete", params))["error"]["code"] == -32602


async def test_declarations_of_the_users_own_pass_through() -> None:
    server = Server("s", extensions={"acme/x": {"on": True}}, experimental={"y": {}})
    async with raw_client(server) as peer:
        for version in ("2025-11-25", MODERN):
            capabilities = await declared(peer, version)
            assert capabilities["extensions"] == {"acme/x": {"on": True}}
            assert capabilities["experimental"] == {"y": {}}


# -- the client's side ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_a_client_does_not_ask_for_what_was_not_declared(version: str) -> None:
    async with Client(Server("empty", versions=(version,))) as client:
        sent = client.tree().link.frames_out
        for attempt in (
            client.list_tools(),
            client.call_tool("x"),
            client.list_resources(),
            client.list_resource_templates(),
            client.read_resource("x://a"),
            client.list_prompts(),
            client.get_prompt("x"),
            client.subscribe_resource("x://a"),
        ):
            with pytest.raises(LocalProtocolError):
                await attempt
        assert client.tree().link.frames_out == sent


async def test_methods_of_the_other_era_do_not_exist() -> None:
    async with scripted(MODERN) as (client, _):
        with pytest.raises(LocalProtocolError, match=MODERN):
            await client.subscribe_resource("x://a")
    server = Server("s")
    async with Client(server, era="modern") as client:
        assert (await client.request("server/discover"))["supportedVersions"] == list(EVERY)


@pytest.mark.parametrize("version", LEGACY)
async def test_questions_that_were_not_declared_are_refused(version: str) -> None:
    async with scripted(version) as (_, peer):
        for method in (
            "roots/list",
            "sampling/createMessage",
            "elicitation/create",
            "acme/thing",
            "tools/list",
        ):
            answer = await peer.request(method, method, {"messages": [], "maxTokens": 1, "message": "?"})
            # A method that the revision has is refused for its mode, which was not declared.
            has_modes = method == "elicitation/create" and version >= "2025-06-18"
            assert answer["error"]["code"] == (-32602 if has_modes else -32601)
        assert (await peer.request("p", "ping"))["result"] == {}
