"""Our client drives a server made with the second generation of the official TypeScript SDK, in both eras."""

from __future__ import annotations

import json

import pytest
import trio

from mcp_actors import Client, RpcError
from mcp_actors.types import (
    TextResourceContents,
)

from .installation import Peers
from .user import DRIVERS, LEGACY, LIMIT, MODERN, User, stdio, text_of

WATCHED = "test://watched-resource"


@pytest.fixture(params=["legacy", "modern", "auto"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(peers: Peers) -> str:
    return stdio(peers.node, DRIVERS / "typescript_server.mjs", peers.modules)


async def test_features(server: str, era: str) -> None:
    user = User()
    user.answer = {"name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(server, era=era, **user.options()) as client:
            assert client.version == (LEGACY if era == "legacy" else MODERN)
            assert client.server_info.name == "official-typescript"
            assert client.instructions == "An official server."
            assert {"echo", "add", "ask"} <= {tool.name async for tool in client.tools()}
            result = await client.call_tool("echo", {"message": "gruß 🐍\n\u2028"})
            assert text_of(result.content) == "gruß 🐍\n\u2028"
            result = await client.call_tool("add", {"a": 2, "b": 3.5})
            assert result.structured_content == {"total": 5.5}
            assert (await client.call_tool("add", {"a": "two", "b": 1})).is_error
            result = await client.call_tool("ask")
            assert text_of(result.content) == "Hello, Ada!"
            assert user.elicited[0].message == "Who?"
            await client.set_log_level("info")
            await client.call_tool("log")
            assert user.logged == [("info", "a message")]


async def test_resources_and_prompts(server: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(server, era=era) as client:
            assert [resource.uri async for resource in client.resources()] == [WATCHED]
            (contents,) = (await client.read_resource("test://template/7/data")).contents
            assert isinstance(contents, TextResourceContents)
            assert contents.text == "Data for ID: 7"
            with pytest.raises(RpcError) as caught:
                await client.read_resource("test://nothing")
            assert caught.value.data == {"uri": "test://nothing"}
            prompt = await client.get_prompt("greet", {"name": "Ada"})
            assert prompt.messages[0].content.text == "Greet Ada."


async def test_progress_and_cancellation(server: str, era: str) -> None:
    seen: list[float] = []
    with trio.fail_after(LIMIT):
        async with Client(server, era=era) as client:
            arguments = {"seconds": 0.05, "steps": 5}
            await client.call_tool(
                "sleep", arguments, on_progress=lambda progress: seen.append(progress.progress)
            )
            assert seen == [1, 2, 3, 4, 5]
            with trio.CancelScope() as scope:
                arguments = {"seconds": 60, "steps": 1000}
                await client.call_tool("sleep", arguments, on_progress=lambda progress: scope.cancel())
            assert scope.cancelled_caught
            state = {"sleeping": 1}
            while state["sleeping"]:
                state = json.loads(text_of((await client.call_tool("activity")).content))
            assert state == {"sleeping": 0, "slept": 1, "cancelled": 1}


async def test_change_notifications(server: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(server, era="modern") as client, client.listen(uris=[WATCHED]) as events:
            await client.call_tool("touch", {"text": "new"})
            async for event in events:
                assert event.uri == WATCHED
                break
            (contents,) = (await client.read_resource(WATCHED)).contents
            assert contents.text == "new"
