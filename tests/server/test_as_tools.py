"""Prompts and resources as tools: the same that other clients see, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.errors import LocalProtocolError, RpcError
from mcp_actors.gateway import Gateway
from mcp_actors.server import prompts_as_tools, resources_as_tools
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import EmbeddedResource
from tests.server.test_access import Authenticating
from tests.server.test_mounts import make_library

EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


def make_server(**options: Any) -> Server:
    server = Server("library", **options)
    server.mount("lib", make_library(), exclude=["find", "count"])
    server.add_resource("library://cover", lambda: b"png", name="cover", mime_type="image/png")
    prompts_as_tools(server)
    resources_as_tools(server)
    return server


@EACH_ERA
async def test_a_host_with_tools_alone_lists_and_uses_everything(era: str) -> None:
    async with Client(make_server(page_size=1), era=era) as client:
        listed = [each async for each in client.tools()]
        assert [each.name for each in listed] == [
            "list_prompts",
            "get_prompt",
            "list_resources",
            "read_resource",
        ]
        assert all(each.annotations and each.annotations.read_only_hint for each in listed)
        (prompt,) = (await client.call_tool("list_prompts")).data
        assert (prompt["name"], [each["name"] for each in prompt["arguments"]]) == (
            "lib_recommend",
            ["mood", "author"],
        )
        found = await client.call_tool("get_prompt", {"name": "lib_recommend", "arguments": {"mood": "sad"}})
        assert found.data["messages"] == [
            {"role": "user", "content": {"type": "text", "text": "Recommend for the sad"}}
        ]
        resources = (await client.call_tool("list_resources")).data
        assert [each["uri"] for each in resources["resources"]] == ["library://index", "library://cover"]
        assert [each["uriTemplate"] for each in resources["resourceTemplates"]] == ["library://books/{title}"]
        for uri, text in (("library://index", "Krabat, Momo"), ("library://books/Momo", "the text of Momo")):
            assert (await client.call_tool("read_resource", {"uri": uri})).text == text
        (cover,) = (await client.call_tool("read_resource", {"uri": "library://cover"})).content
        assert isinstance(cover, EmbeddedResource)
        assert cover.resource.mime_type == "image/png"


@EACH_ERA
@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_prompt", {"name": "none"}, "unknown prompt: none"),
        ("get_prompt", {"name": "lib_recommend"}, "mood"),
        ("read_resource", {"uri": "library://none"}, "there is no resource 'library://none'"),
    ],
)
async def test_a_model_reads_its_mistakes(era: str, tool: str, arguments: dict[str, Any], said: str) -> None:
    async with Client(make_server(), era=era) as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert said in result.text


async def test_scopes_are_those_of_the_caller() -> None:
    server = make_server()
    server.add_prompt(lambda: "p", name="secret", scopes=["inner"])
    server.add_resource("library://secret", lambda: "s", name="secret", scopes=["inner"])
    for scopes, sees in (((), False), (("inner",), True)):
        transport = Authenticating(Principal("ada", scopes=frozenset(scopes)))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, transport)
            async with Client(transport, era="2025-11-25") as client:
                prompts = (await client.call_tool("list_prompts")).text
                resources = (await client.call_tool("list_resources")).text
                assert ("secret" in prompts, "secret" in resources) == (sees, sees)
                for tool, arguments in (
                    ("get_prompt", {"name": "secret"}),
                    ("read_resource", {"uri": "library://secret"}),
                ):
                    try:
                        may = not (await client.call_tool(tool, arguments)).is_error
                    except RpcError:
                        may = False
                    assert may is sees
            nursery.cancel_scope.cancel()


@EACH_ERA
async def test_middleware_sees_the_request_that_is_made(era: str) -> None:
    server = make_server()
    seen: list[str] = []

    @server.middleware
    async def note(ctx: Context, call_next: Any) -> Any:
        seen.append(ctx.method)
        return await call_next()

    async with Client(server, era=era) as client:
        await client.call_tool("read_resource", {"uri": "library://index"})
    assert seen[-2:] == ["tools/call", "resources/read"]


def test_a_gateway_and_a_name_that_is_taken_are_refused() -> None:
    with pytest.raises(TypeError, match="which is no gateway"):
        prompts_as_tools(Gateway([]))
    server = make_server()
    with pytest.raises(LocalProtocolError, match="there is already a tool 'list_resources'"):
        resources_as_tools(server)
