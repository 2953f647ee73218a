"""Our client drives a server made with the official Python SDK, in both of its eras, over every binding it has.

WebSocket is that of the SDK's first generation, which knows the legacy era only; a client that is told nothing finds
that out by itself.
"""

from __future__ import annotations

import json

import pytest
import trio

from mcp_actors import CallTimeout, Client, RpcError
from mcp_actors.types import BlobResourceContents, PromptReference, TextResourceContents

from .user import LEGACY, LIMIT, MODERN, User, require_watched_tools, rows, text_of

WATCHED = "test://watched-resource"
TABLE = [
    *((binding, era) for binding in ("stdio", "http") for era in ("legacy", "modern", "auto")),
    ("sse", "legacy"),
    *(("ws", era) for era in ("legacy", "auto")),
]
every_row = rows("python", *TABLE)
modern_rows = rows("python", *TABLE, without=["legacy", "auto"])
both_eras = rows("python", *[row for row in TABLE if row[0] != "ws" and row[1] != "auto"])


@every_row
async def test_python_server_features(target: str, era: str) -> None:
    user = User()
    user.answer = {"username": "ada", "email": "ada@example.com"}
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
            is_legacy = era == "legacy" or target.startswith("ws:")
            assert client.version == (LEGACY if is_legacy else MODERN)
            assert client.era == ("legacy" if is_legacy else "modern")
            assert client.server_info.name == "official-python"
            assert client.instructions == "An official server."

            names = {tool.name async for tool in client.tools()}
            assert {"echo", "add", "sleep", "test_sampling"} <= names
            result = await client.call_tool("echo", {"message": "gruß 🐍\n\u2028"})
            assert text_of(result.content) == "gruß 🐍\n\u2028"
            # The SDK puts text into an object, and says so in the schema of the tool.
            assert result.structured_content == {"result": "gruß 🐍\n\u2028"}
            assert result.data == "gruß 🐍\n\u2028"
            assert await client.call_tool("echo", {"message": "hi"}, returns=str) == "hi"
            result = await client.call_tool("add", {"a": 2, "b": 3.5})
            assert result.structured_content == {"total": 5.5, "terms": 2}
            result = await client.call_tool("test_error_handling")
            assert result.is_error
            result = await client.call_tool("add", {"a": "two", "b": 1})
            assert result.is_error

            result = await client.call_tool("test_sampling", {"prompt": "Who are you?"})
            assert text_of(result.content) == "LLM response: I am the model"
            assert user.sampled[0].max_tokens == 100
            result = await client.call_tool("test_elicitation", {"message": "Tell me"})
            assert "ada@example.com" in text_of(result.content)
            assert user.elicited[0].message == "Tell me"


@every_row
async def test_python_server_resources_and_prompts(target: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            uris = {resource.uri async for resource in client.resources()}
            assert {"test://static-text", "test://static-binary", WATCHED} <= uris
            templates = [template.uri_template async for template in client.resource_templates()]
            assert templates == ["test://template/{id}/data"]
            (contents,) = (await client.read_resource("test://template/123/data")).contents
            assert isinstance(contents, TextResourceContents)
            assert json.loads(contents.text)["id"] == "123"
            (contents,) = (await client.read_resource("test://static-binary")).contents
            assert isinstance(contents, BlobResourceContents)
            with pytest.raises(RpcError) as caught:
                await client.read_resource("test://nothing")
            # The SDK's first generation tells it in the text alone.
            error = caught.value
            assert (error.message if target.startswith("ws:") else error.data["uri"]).endswith(
                "test://nothing"
            )

            arguments = {"arg1": "one", "arg2": "two"}
            prompt = await client.get_prompt("test_prompt_with_arguments", arguments)
            assert [message.role for message in prompt.messages] == ["user", "assistant"]
            reference = PromptReference(name="test_prompt_with_arguments")
            completion = await client.complete(reference, "arg1", "par")
            assert completion.values == ["paris", "park", "party"]


@every_row
async def test_python_server_progress_and_cancellation(target: str, era: str) -> None:
    seen: list[tuple[float, float | None]] = []
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            before = await activity(client)
            await client.call_tool(
                "sleep",
                {"seconds": 0.05, "steps": 5},
                on_progress=lambda progress: seen.append((progress.progress, progress.total)),
            )
            assert seen == [(step, 5) for step in range(1, 6)]

            # Leaving the scope round a call tells the server.
            with trio.CancelScope() as scope:
                await client.call_tool(
                    "sleep", {"seconds": 60, "steps": 1000}, on_progress=lambda progress: scope.cancel()
                )
            assert scope.cancelled_caught
            assert (await quiet(client))["cancelled"] - before["cancelled"] == 1
            # So does the clock. On a busy machine it may run out before the call has begun there, and a server of the
            # SDK's first generation then lets the call go on.
            clocks = 0
            while (await quiet(client))["cancelled"] - before["cancelled"] < 2:
                clocks += 1
                limit = 0.1 * 2**clocks
                with pytest.raises(CallTimeout):
                    await client.call_tool("sleep", {"seconds": 10 * limit, "steps": 1}, timeout=limit)
            assert (await quiet(client))["cancelled"] - before["cancelled"] <= 1 + clocks


async def quiet(client: Client) -> dict[str, int]:
    """What the sleeps did, once none goes on."""
    while (done := await activity(client))["sleeping"]:  # noqa: ASYNC110 - another process: only asking can tell
        await trio.sleep(0.02)
    return done


async def activity(client: Client) -> dict[str, int]:
    result = await client.call_tool("activity")
    decoded: dict[str, int] = json.loads(text_of(result.content))
    return decoded


@modern_rows
async def test_python_server_change_notifications(target: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client, client.listen(uris=[WATCHED]) as events:
            await client.call_tool("touch", {"text": "new"})
            async for event in events:
                assert event.uri == WATCHED
                break
            (contents,) = (await client.read_resource(WATCHED)).contents
            assert contents.text == "new"


@both_eras
async def test_python_server_tools_are_watched(target: str, era: str) -> None:
    await require_watched_tools(target, era)


@modern_rows
async def test_python_server_logging_in_the_modern_era(target: str, era: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, on_log=user.on_log) as client:
            await client.set_log_level("info")
            await client.call_tool("test_tool_with_logging")
    texts = ["Tool execution started", "Tool processing data", "Tool execution completed"]
    assert user.logged == [("info", text) for text in texts]


@every_row
async def test_fifty_calls_at_once(target: str, era: str) -> None:
    answers: dict[int, str] = {}
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:

            async def call(number: int) -> None:
                result = await client.call_tool("echo", {"message": f"message {number}"})
                answers[number] = text_of(result.content)

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(call, number)
    assert answers == {number: f"message {number}" for number in range(50)}


@every_row
async def test_comes_back_for_an_answer(target: str, era: str) -> None:
    """In a session over Streamable HTTP the server closes the stream in the middle of the call."""
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            result = await client.call_tool("test_reconnection")
    closed = target.endswith("/mcp") and era == "legacy"
    assert text_of(result.content) == ("closed" if closed else "kept")
