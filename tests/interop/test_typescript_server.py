"""Our client drives a server made with the second generation of the official TypeScript SDK, in both eras.

Over stdio and Streamable HTTP: that SDK serves no HTTP+SSE any more.
"""

from __future__ import annotations

import json

import pytest
import trio

from mcp_actors import Client, RpcError
from mcp_actors.types import TextResourceContents

from .user import LEGACY, LIMIT, MODERN, User, require_watched_tools, rows, text_of

WATCHED = "test://watched-resource"
TABLE = [(binding, era) for binding in ("stdio", "http") for era in ("legacy", "modern", "auto")]
every_row = rows("typescript", *TABLE)
modern_rows = rows("typescript", *TABLE, without=["legacy", "auto"])
both_eras = rows("typescript", *TABLE, without=["auto"])


@every_row
async def test_features(target: str, era: str) -> None:
    user = User()
    user.answer = {"name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
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


@every_row
async def test_resources_and_prompts(target: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            assert [resource.uri async for resource in client.resources()] == [WATCHED]
            (contents,) = (await client.read_resource("test://template/7/data")).contents
            assert isinstance(contents, TextResourceContents)
            assert contents.text == "Data for ID: 7"
            with pytest.raises(RpcError) as caught:
                await client.read_resource("test://nothing")
            assert caught.value.data == {"uri": "test://nothing"}
            prompt = await client.get_prompt("greet", {"name": "Ada"})
            assert prompt.messages[0].content.text == "Greet Ada."


@every_row
async def test_progress_and_cancellation(target: str, era: str) -> None:
    seen: list[float] = []
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            before = await activity(client)
            arguments = {"seconds": 0.05, "steps": 5}
            await client.call_tool(
                "sleep", arguments, on_progress=lambda progress: seen.append(progress.progress)
            )
            assert seen == [1, 2, 3, 4, 5]
            with trio.CancelScope() as scope:
                arguments = {"seconds": 60, "steps": 1000}
                await client.call_tool("sleep", arguments, on_progress=lambda progress: scope.cancel())
            assert scope.cancelled_caught
            while (after := await activity(client))["sleeping"]:
                pass
            change = {name: after[name] - before[name] for name in after}
            assert change == {"sleeping": 0, "slept": 1, "cancelled": 1}


async def activity(client: Client) -> dict[str, int]:
    decoded: dict[str, int] = json.loads(text_of((await client.call_tool("activity")).content))
    return decoded


@modern_rows
async def test_change_notifications(target: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client, client.listen(uris=[WATCHED]) as events:
            await client.call_tool("touch", {"text": "new"})
            async for event in events:
                assert event.uri == WATCHED
                break
            (contents,) = (await client.read_resource(WATCHED)).contents
            assert contents.text == "new"


@both_eras
async def test_tools_are_watched(target: str, era: str) -> None:
    await require_watched_tools(target, era)


@every_row
async def test_comes_back_for_an_answer(target: str, era: str) -> None:
    """In a session over Streamable HTTP the server closes the stream in the middle of the call."""
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            result = await client.call_tool("test_reconnection")
    closed = target.endswith("/mcp") and era == "legacy"
    assert text_of(result.content) == ("closed" if closed else "kept")
