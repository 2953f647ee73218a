"""Our client drives the official servers over stdio."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import CallTimeout, Client, RpcError
from mcp_actors.types import (
    BlobResourceContents,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from .installation import Peers

LIMIT = 40.0  # seconds for one test; they take about one
DRIVERS = Path(__file__).parent / "peers"
LEGACY, MODERN = "2025-11-25", "2026-07-28"
WATCHED = "test://watched-resource"


def stdio(*command: object) -> str:
    return "stdio:" + shlex.join(str(part) for part in command)


class User:
    """What a person, a model and a log window would do on the client's side, and what they saw."""

    def __init__(self) -> None:
        self.sampled: list[CreateMessageParams] = []
        self.elicited: list[ElicitFormParams | ElicitUrlParams] = []
        self.logged: list[tuple[str, Any]] = []
        self.changed: list[tuple[str, str | None]] = []
        self.answer: dict[str, Any] = {}
        self.news = trio.Event()

    async def sampling(self, params: CreateMessageParams) -> CreateMessageResult:
        self.sampled.append(params)
        return CreateMessageResult(
            role="assistant", content=TextContent(text="I am the model"), model="fake-1"
        )

    async def elicitation(self, params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        self.elicited.append(params)
        return ElicitResult(action="accept", content=dict(self.answer))

    def on_log(self, level: str, data: Any, logger: str | None) -> None:
        self.logged.append((level, data))

    def on_change(self, kind: str, uri: str | None) -> None:
        self.changed.append((kind, uri))
        self.news.set()
        self.news = trio.Event()

    def options(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "elicitation": self.elicitation,
            "roots": ["file:///home/peer"],
            "on_log": self.on_log,
            "on_change": self.on_change,
        }


def text_of(content: Sequence[Any]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


# The official Python SDK's server, which speaks both eras.


@pytest.fixture(params=["legacy", "modern", "auto"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python_server(peers: Peers) -> str:
    return stdio(peers.python, DRIVERS / "python_server.py")


async def test_python_server_features(python_server: str, era: str) -> None:
    user = User()
    user.answer = {"username": "ada", "email": "ada@example.com"}
    with trio.fail_after(LIMIT):
        async with Client(python_server, era=era, **user.options()) as client:
            assert client.version == (LEGACY if era == "legacy" else MODERN)
            assert client.era == ("legacy" if era == "legacy" else "modern")
            assert client.server_info.name == "official-python"
            assert client.instructions == "An official server."

            names = {tool.name async for tool in client.tools()}
            assert {"echo", "add", "sleep", "test_sampling"} <= names
            result = await client.call_tool("echo", {"message": "gruß 🐍\n\u2028"})
            assert text_of(result.content) == "gruß 🐍\n\u2028"
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


async def test_python_server_resources_and_prompts(python_server: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(python_server, era=era) as client:
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
            assert caught.value.data == {"uri": "test://nothing"}

            arguments = {"arg1": "one", "arg2": "two"}
            prompt = await client.get_prompt("test_prompt_with_arguments", arguments)
            assert [message.role for message in prompt.messages] == ["user", "assistant"]
            reference = PromptReference(name="test_prompt_with_arguments")
            completion = await client.complete(reference, "arg1", "par")
            assert completion.values == ["paris", "park", "party"]


async def test_python_server_progress_and_cancellation(python_server: str, era: str) -> None:
    seen: list[tuple[float, float | None]] = []
    with trio.fail_after(LIMIT):
        async with Client(python_server, era=era) as client:
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
            # So does the clock.
            with pytest.raises(CallTimeout):
                await client.call_tool("sleep", {"seconds": 60, "steps": 1}, timeout=0.1)
            while (await activity(client))["sleeping"]:  # noqa: ASYNC110 - another process: only asking can tell
                await trio.sleep(0.02)
            assert (await activity(client))["cancelled"] == 2


async def activity(client: Client) -> dict[str, int]:
    result = await client.call_tool("activity")
    decoded: dict[str, int] = json.loads(text_of(result.content))
    return decoded


async def test_python_server_change_notifications(python_server: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(python_server, era="modern") as client, client.listen(uris=[WATCHED]) as events:
            await client.call_tool("touch", {"text": "new"})
            async for event in events:
                assert event.uri == WATCHED
                break
            (contents,) = (await client.read_resource(WATCHED)).contents
            assert contents.text == "new"


async def test_python_server_logging_in_the_modern_era(python_server: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(python_server, era="modern", on_log=user.on_log) as client:
            await client.set_log_level("info")
            await client.call_tool("test_tool_with_logging")
    texts = ["Tool execution started", "Tool processing data", "Tool execution completed"]
    assert user.logged == [("info", text) for text in texts]


async def test_fifty_calls_at_once(python_server: str, era: str) -> None:
    answers: dict[int, str] = {}
    with trio.fail_after(LIMIT):
        async with Client(python_server, era=era) as client:

            async def call(number: int) -> None:
                result = await client.call_tool("echo", {"message": f"message {number}"})
                answers[number] = text_of(result.content)

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(call, number)
    assert answers == {number: f"message {number}" for number in range(50)}


# The reference servers, made with the official TypeScript SDK.


@pytest.fixture
def everything(peers: Peers) -> str:
    package = peers.package("@modelcontextprotocol/server-everything")
    return stdio(peers.node, package / "dist" / "index.js", "stdio")


async def test_everything_server_tools(everything: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(everything, **user.options()) as client:
            assert (client.era, client.version) == ("legacy", LEGACY)
            assert client.server_info.name == "mcp-servers/everything"
            names = {tool.name async for tool in client.tools()}
            assert {"echo", "get-sum", "trigger-sampling-request", "trigger-elicitation-request"} <= names

            assert text_of((await client.call_tool("echo", {"message": "hello"})).content) == "Echo: hello"
            weather = await client.call_tool("get-structured-content", {"location": "Chicago"})
            assert weather.structured_content["conditions"] == "Light rain / drizzle"
            image = await client.call_tool("get-tiny-image")
            assert any(isinstance(block, ImageContent) for block in image.content)
            links = await client.call_tool("get-resource-links", {"count": 4})
            assert sum(isinstance(block, ResourceLink) for block in links.content) == 4
            arguments = {"resourceType": "Text", "resourceId": 7}
            reference = await client.call_tool("get-resource-reference", arguments)
            assert any(isinstance(block, EmbeddedResource) for block in reference.content)
            annotated = await client.call_tool("get-annotated-message", {"messageType": "error"})
            assert annotated.content[0].annotations.priority == 1.0
            wrong = await client.call_tool("get-sum", {"a": "one", "b": 2})
            assert wrong.is_error


async def test_everything_server_asks(everything: str) -> None:
    user = User()
    user.answer = {"name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(everything, **user.options()) as client:
            sampled = await client.call_tool("trigger-sampling-request", {"prompt": "hi", "maxTokens": 20})
            assert "I am the model" in text_of(sampled.content)
            assert user.sampled[0].max_tokens == 20
            assert user.sampled[0].system_prompt == "You are a helpful test server."

            elicited = await client.call_tool("trigger-elicitation-request")
            text = text_of(elicited.content)
            assert "- Name: Ada" in text
            # The defaults of the form were filled in by the client.
            assert "- Favorite Integer: 42" in text
            assert '"untitledMultipleSelectEnum": [\n      "Guitar"\n    ]' in text

            roots = await client.call_tool("get-roots-list")
            assert "file:///home/peer" in text_of(roots.content)


async def test_everything_server_progress(everything: str) -> None:
    seen: list[tuple[float, float | None]] = []
    with trio.fail_after(LIMIT):
        async with Client(everything) as client:
            result = await client.call_tool(
                "trigger-long-running-operation",
                {"duration": 0.5, "steps": 5},
                on_progress=lambda progress: seen.append((progress.progress, progress.total)),
            )
    assert "completed" in text_of(result.content)
    assert seen == [(step, 5) for step in range(1, 6)]


async def test_everything_server_resources_and_prompts(everything: str) -> None:
    user = User()
    uri = "demo://resource/dynamic/text/7"
    with trio.fail_after(LIMIT):
        async with Client(everything, **user.options()) as client:
            documents = [resource async for resource in client.resources()]
            assert any(document.uri.startswith("demo://resource/static/document/") for document in documents)
            (contents,) = (await client.read_resource(documents[0].uri)).contents
            assert contents.text
            templates = [template.uri_template async for template in client.resource_templates()]
            assert "demo://resource/dynamic/text/{resourceId}" in templates
            (contents,) = (await client.read_resource(uri)).contents
            assert contents.text.startswith("Resource 7:")
            (contents,) = (await client.read_resource("demo://resource/dynamic/blob/7")).contents
            assert isinstance(contents, BlobResourceContents)

            await client.subscribe_resource(uri)
            await client.call_tool("toggle-subscriber-updates")
            while ("resources/updated", uri) not in [
                (kind.removeprefix("notifications/"), at) for kind, at in user.changed
            ]:
                await user.news.wait()
            await client.unsubscribe_resource(uri)

            prompt = await client.get_prompt("args-prompt", {"city": "Paris", "state": "Texas"})
            assert prompt.messages[0].content.text == "What's weather in Paris, Texas?"
            reference = PromptReference(name="completable-prompt")
            assert (await client.complete(reference, "department", "E")).values == ["Engineering"]
            names = await client.complete(reference, "name", "", {"department": "Sales"})
            assert names.values == ["David", "Eve", "Frank"]
            template = ResourceTemplateReference(uri="demo://resource/dynamic/text/{resourceId}")
            assert (await client.complete(template, "resourceId", "5")).values == ["5"]


async def test_everything_server_housekeeping(everything: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(everything, **user.options()) as client:
            await client.ping()
            await client.set_log_level("debug")
            await client.call_tool("toggle-simulated-logging")
            await client.call_tool("toggle-simulated-logging")
            with pytest.raises(RpcError) as caught:
                await client.get_prompt("no-such-prompt")
            assert caught.value.code == -32602
            with pytest.raises(RpcError) as caught:
                await client.request("acme/unknown", {})
            assert caught.value.code == -32601
    assert any("Received" in str(data) or "message" in str(data) for _, data in user.logged)


@pytest.fixture
def filesystem(peers: Peers, tmp_path: Path) -> str:
    (tmp_path / "hello.txt").write_text("hello from a file\n")
    package = peers.package("@modelcontextprotocol/server-filesystem")
    return stdio(peers.node, package / "dist" / "index.js", tmp_path)


async def test_filesystem_server(filesystem: str, tmp_path: Path) -> None:
    with trio.fail_after(LIMIT):
        async with Client(filesystem) as client:
            assert client.era == "legacy"
            names = {tool.name async for tool in client.tools()}
            assert {"read_text_file", "write_file", "list_directory", "search_files"} <= names
            read = await client.call_tool("read_text_file", {"path": str(tmp_path / "hello.txt")})
            assert read.structured_content == {"content": "hello from a file\n"}
            new = tmp_path / "gruß 🐍.txt"
            await client.call_tool("write_file", {"path": str(new), "content": "x" * 300_000})
            assert new.read_text() == "x" * 300_000
            listing = await client.call_tool("list_directory", {"path": str(tmp_path)})
            assert text_of(listing.content) == "[FILE] gruß 🐍.txt\n[FILE] hello.txt"
            large = await client.call_tool("read_text_file", {"path": str(new)})
            assert text_of(large.content) == "x" * 300_000
            outside = await client.call_tool("read_text_file", {"path": "/etc/passwd"})
            assert outside.is_error
            assert "Access denied" in text_of(outside.content)


async def test_filesystem_server_uses_our_roots(peers: Peers, filesystem: str, tmp_path: Path) -> None:
    """It asks for the roots when it is initialized, and lets go of the directory from its command line."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "note.txt").write_text("a note")
    with trio.fail_after(LIMIT):
        async with Client(filesystem, roots=[other.as_uri()]) as client:
            allowed = ""
            while str(other) not in allowed:
                allowed = text_of((await client.call_tool("list_allowed_directories")).content)
            assert allowed == f"Allowed directories:\n{other}"
            refused = await client.call_tool("read_text_file", {"path": str(tmp_path / "hello.txt")})
            assert refused.is_error
            read = await client.call_tool("read_text_file", {"path": str(other / "note.txt")})
            assert text_of(read.content) == "a note"
