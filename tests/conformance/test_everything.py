"""Every fixture of the conformance suite, called in memory in both eras, with the suite's exact texts."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, MissingCapability, RpcError
from mcp_actors.examples.everything import server as packaged
from mcp_actors.examples.everything.content import ADDRESS_BOOK_SCHEMA
from mcp_actors.testing import connected_pair
from mcp_actors.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    TextContent,
    TextResourceContents,
)

from .everything_server import server
from .scripted_server import KEYWORDS, LEGACY, MODERN
from .user import User, connected

pytestmark = pytest.mark.slow

# -- The conformance client, run as the suite runs it, against scripted servers over stdio ---------------

HERE = Path(__file__).parent
META = "io.modelcontextprotocol/"
LIMIT = 120.0  # seconds; the client itself gives up 25 s after its start

Message = dict[str, Any]


def run(
    url: str, scenario: str, version: str, context: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "MCP_CONFORMANCE_SCENARIO": scenario,
        "MCP_CONFORMANCE_PROTOCOL_VERSION": version,
        "MCP_CONFORMANCE_CONTEXT": json.dumps({"name": scenario, **(context or {})}),
    }
    command = [sys.executable, str(HERE / "everything_client.py"), url]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def play(
    directory: Path,
    scenario: str,
    version: str,
    context: dict[str, Any] | None = None,
    script: str | None = None,
) -> list[Message]:
    """Every message that the server received."""
    transcript = directory / "transcript"
    command = [sys.executable, str(HERE / "scripted_server.py"), script or scenario, str(transcript)]
    done = run("stdio:" + shlex.join(command), scenario, version, context)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in transcript.read_text().splitlines()]


def calls(messages: list[Message]) -> list[Message]:
    return [message["params"] for message in messages if message.get("method") == "tools/call"]


def test_initialize(tmp_path: Path) -> None:
    messages = play(tmp_path, "initialize", LEGACY)
    methods = [message["method"] for message in messages if message.get("method") != "server/discover"]
    assert methods[:3] == ["initialize", "notifications/initialized", "tools/list"]
    (initialize,) = [message["params"] for message in messages if message["method"] == "initialize"]
    assert initialize["protocolVersion"] == LEGACY
    assert {"name", "version"} <= set(initialize["clientInfo"])


def test_tools_call_legacy(tmp_path: Path) -> None:
    messages = play(tmp_path, "tools_call", LEGACY)
    (call,) = calls(messages)
    assert call["name"] == "add_numbers"
    assert call["arguments"] == {"a": 2, "b": 3}
    assert "_meta" not in call or META + "protocolVersion" not in call["_meta"]


def test_tools_call_modern(tmp_path: Path) -> None:
    messages = play(tmp_path, "tools_call", MODERN, script="tools_call-modern")
    (call,) = calls(messages)
    assert call["arguments"] == {"a": 2, "b": 3}
    assert all(message["params"]["_meta"][META + "protocolVersion"] == MODERN for message in messages)
    assert not any(message["method"] in ("initialize", "notifications/initialized") for message in messages)


def test_elicitation_defaults(tmp_path: Path) -> None:
    messages = play(tmp_path, "elicitation-sep1034-client-defaults", LEGACY)
    (answer,) = [message["result"] for message in messages if message.get("id") == "question"]
    assert answer["action"] == "accept"
    assert answer["content"] == {
        "name": "John Doe",
        "age": 30,
        "score": 95.5,
        "status": "active",
        "verified": True,
    }


def test_sse_retry_makes_its_call(tmp_path: Path) -> None:
    """Reconnecting is a matter of HTTP; here it must only not be in the way."""
    (call,) = calls(play(tmp_path, "sse-retry", LEGACY))
    assert call["name"] == "test_reconnection"


def test_request_metadata(tmp_path: Path) -> None:
    messages = play(tmp_path, "request-metadata", MODERN)
    assert len(messages) >= 3  # the refused one, the same again, and more
    assert messages[0]["method"] == messages[1]["method"]
    assert messages[0]["id"] != messages[1]["id"]
    for message in messages:
        meta = message["params"]["_meta"]
        assert meta[META + "protocolVersion"] == MODERN
        assert set(meta[META + "clientCapabilities"]) >= {"elicitation", "sampling", "roots"}
        assert all(isinstance(value, dict) for value in meta[META + "clientCapabilities"].values())
        assert {"name", "version"} <= set(meta[META + "clientInfo"])


def test_request_state(tmp_path: Path) -> None:
    messages = play(tmp_path, "sep-2322-client-request-state", MODERN)
    ids = [message["id"] for message in messages if "id" in message]
    assert len(ids) == len(set(ids))
    by_name: dict[str, list[Message]] = {}
    for call in calls(messages):
        by_name.setdefault(call["name"], []).append(call)
    first, retry = by_name["test_mrtr_echo_state"]
    assert not {"requestState", "inputResponses"} & set(first)
    assert retry["requestState"] == '{"nonce": "\\u00e9 1.0"}'
    assert retry["inputResponses"]["confirm"]["action"] == "accept"
    assert retry["inputResponses"]["confirm"]["content"] == {"confirmed": True}
    first, retry = by_name["test_mrtr_no_state"]
    assert "requestState" not in retry
    assert "confirm" in retry["inputResponses"]
    for call in by_name["test_mrtr_unrelated"] + by_name["test_mrtr_no_result_type"]:
        assert not {"requestState", "inputResponses"} & set(call)
    assert len(by_name["test_mrtr_no_result_type"]) == 1


def test_standard_headers(tmp_path: Path) -> None:
    messages = play(tmp_path, "http-standard-headers", MODERN)
    assert [call["name"] for call in calls(messages)] == ["test_headers", "my-hyphenated-tool"]
    reads = [message["params"]["uri"] for message in messages if message["method"] == "resources/read"]
    assert reads == ["file:///path/to/file%20name.txt", "https://example.com/resource?id=123"]
    assert [m["params"]["name"] for m in messages if m["method"] == "prompts/get"] == ["test_prompt"]


def test_custom_headers(tmp_path: Path) -> None:
    """The arguments reach the server as they are, an explicit null too."""
    context = {
        "toolCalls": [
            {"name": "test_custom_headers", "arguments": {"region": " us west\t", "verbose": False}},
            {"name": "test_custom_headers_null", "arguments": {"region": "", "verbose": None}},
        ]
    }
    messages = play(tmp_path, "http-custom-headers", MODERN, context)
    assert [{"name": call["name"], "arguments": call["arguments"]} for call in calls(messages)] == context[
        "toolCalls"
    ]


def test_schema_reference(tmp_path: Path) -> None:
    messages = play(tmp_path, "json-schema-ref-no-deref", MODERN)
    assert any(message["method"] == "tools/list" for message in messages)
    assert calls(messages) == []


def test_schema_preservation(tmp_path: Path) -> None:
    (call,) = calls(play(tmp_path, "json-schema-2020-12-preservation", MODERN))
    assert call["name"] == "json_schema_echo"
    assert call["arguments"] == {"schema": KEYWORDS}


@pytest.mark.parametrize("version", [LEGACY, MODERN])
def test_default_drive_against_our_own_server(version: str) -> None:
    """A scenario that the table does not know: connect, list, call the first tool."""
    url = "stdio:" + shlex.join([sys.executable, "-m", "mcp_actors.examples.everything"])
    done = run(url, "something-new", version)
    assert done.returncode == 0, done.stderr


def test_failure_is_one_line(tmp_path: Path) -> None:
    done = run(f"stdio:{sys.executable} -c pass", "initialize", LEGACY)
    assert done.returncode == 1
    assert done.stderr.startswith("initialize: ")
    assert "Traceback" not in done.stderr


def test_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "everything_client.py")],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert "usage" in done.stderr


# -- Every fixture of the conformance suite, called in memory --------------------------------------------

NAMES = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_tool_with_logging",
    "test_tool_with_progress",
    "test_error_handling",
    "test_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_reconnection",
    "json_schema_2020_12_tool",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_logging_tool",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
]


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def said(client: Client, name: str, arguments: dict[str, Any] | None = None) -> str:
    result = await client.call_tool(name, arguments or {})
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def test_there_is_one_truth() -> None:
    assert server is packaged


async def test_listing(era: str) -> None:
    async with connected(era) as client:
        tools = {tool.name: tool async for tool in client.tools()}
        assert set(NAMES) <= set(tools)
        assert all(tool.description for tool in tools.values())
        assert tools["json_schema_2020_12_tool"].input_schema == ADDRESS_BOOK_SCHEMA
        mirrored = [
            tool
            for tool in tools.values()
            if any("x-mcp-header" in each for each in tool.input_schema.get("properties", {}).values())
        ]
        assert [tool.name for tool in mirrored] == ["test_custom_header"]
        prompts = [prompt async for prompt in client.prompts()]
        assert {prompt.name for prompt in prompts} == {
            "test_simple_prompt",
            "test_prompt_with_arguments",
            "test_prompt_with_embedded_resource",
            "test_prompt_with_image",
            "test_input_required_result_prompt",
        }
        assert all(prompt.description for prompt in prompts)
        uris = {resource.uri async for resource in client.resources()}
        assert uris == {
            *("test://static-text", "test://static-binary", "test://watched-resource"),
            *("skill://pdf-processing/SKILL.md", "skill://acme/engineering/code-review/SKILL.md"),
        }
        templates = [template.uri_template async for template in client.resource_templates()]
        assert templates == ["test://template/{id}/data"]


async def test_first_tool_takes_no_arguments(era: str) -> None:
    """The suite calls the first tool with an empty object, and wants no protocol error."""
    async with connected(era) as client:
        page = await client.list_tools()
        await client.call_tool(page.tools[0].name, {})


async def test_content(era: str) -> None:
    async with connected(era) as client:
        assert await said(client, "test_simple_text") == "This is a simple text response for testing."
        (image,) = (await client.call_tool("test_image_content")).content
        assert isinstance(image, ImageContent)
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data).startswith(b"\x89PNG\r\n\x1a\n")
        (audio,) = (await client.call_tool("test_audio_content")).content
        assert isinstance(audio, AudioContent)
        assert audio.mime_type == "audio/wav"
        assert base64.b64decode(audio.data)[8:12] == b"WAVE"
        (embedded,) = (await client.call_tool("test_embedded_resource")).content
        assert isinstance(embedded, EmbeddedResource)
        assert embedded.resource == TextResourceContents(
            uri="test://embedded-resource",
            mime_type="text/plain",
            text="This is an embedded resource content.",
        )
        text, image, mixed = (await client.call_tool("test_multiple_content_types")).content
        assert text == TextContent(text="Multiple content types test:")
        assert isinstance(image, ImageContent)
        assert isinstance(mixed, EmbeddedResource)
        assert mixed.resource == TextResourceContents(
            uri="test://mixed-content-resource",
            mime_type="application/json",
            text='{"test":"data","value":123}',
        )


async def test_logging(era: str, autojump_clock: trio.testing.MockClock) -> None:
    user = User()
    async with connected(era, user) as client:
        await client.set_log_level("info")
        assert await said(client, "test_tool_with_logging") == "Tool with logging executed successfully"
        await client.call_tool("test_logging_tool")
    messages = [
        "Tool execution started",
        "Tool processing data",
        "Tool execution completed",
        "Logging tool executed",
    ]
    assert user.logged == [("info", message) for message in messages]


async def test_no_log_message_without_a_level_in_the_modern_era() -> None:
    user = User()
    async with connected("modern", elicitation=user.elicitation) as client:
        notified = await client.call_tool("test_logging_tool")
    assert not notified.is_error
    assert user.logged == []


async def test_progress(era: str, autojump_clock: trio.testing.MockClock) -> None:
    seen: list[tuple[float, float | None]] = []
    async with connected(era) as client:
        await client.call_tool(
            "test_tool_with_progress", on_progress=lambda p: seen.append((p.progress, p.total))
        )
    assert seen == [(0, 100), (50, 100), (100, 100)]


async def test_errors(era: str) -> None:
    async with connected(era) as client:
        result = await client.call_tool("test_error_handling")
        assert result.is_error
        assert result.content == [TextContent(text="This tool intentionally returns an error for testing")]
        # The revisions with sessions have no code of its own for it.
        with pytest.raises(MissingCapability if era == "modern" else RpcError) as caught:
            await client.call_tool("test_missing_capability")
        assert caught.value.data == {"requiredCapabilities": {"sampling": {}}}


async def test_raw_schema_is_enforced(era: str) -> None:
    async with connected(era) as client:
        good = await said(client, "json_schema_2020_12_tool", {"name": "Ada", "email": "a@b.c"})
        assert json.loads(good.split(": ", 1)[1]) == {"name": "Ada", "email": "a@b.c"}
        for arguments in ({"name": "Ada"}, {"email": "a@b.c", "surprise": 1}, {"email": 7}):
            assert (await client.call_tool("json_schema_2020_12_tool", arguments)).is_error


async def test_reconnection(era: str, autojump_clock: trio.testing.MockClock) -> None:
    async with connected(era) as client:
        assert "completed" in await said(client, "test_reconnection")


async def test_asking_the_model_and_the_user(era: str) -> None:
    user = User()
    user.answer = {"username": "ada", "email": "ada@example.com"}
    async with connected(era, user) as client:
        assert await said(client, "test_sampling", {"prompt": "Who?"}) == "LLM response: Paris"
        text = await said(client, "test_elicitation", {"message": "Tell me"})
        assert text == f"User response: action=accept, content={json.dumps(user.answer, sort_keys=True)}"
        assert user.forms[0].message == "Tell me"
        assert user.forms[0].requested_schema["required"] == ["username", "email"]


async def test_defaults(era: str) -> None:
    user = User()
    async with connected(era, user) as client:
        text = await said(client, "test_elicitation_sep1034_defaults")
    properties = user.forms[0].requested_schema["properties"]
    found = {name: (schema["type"], schema["default"]) for name, schema in properties.items()}
    assert found == {
        "name": ("string", "John Doe"),
        "age": ("integer", 30),
        "score": ("number", 95.5),
        "status": ("string", "active"),
        "verified": ("boolean", True),
    }
    assert properties["status"]["enum"] == ["active", "inactive", "pending"]
    prefix = "Elicitation completed: action=accept, content="
    assert text.startswith(prefix)
    assert json.loads(text.removeprefix(prefix)) == {name: default for name, (_, default) in found.items()}


async def test_enums(era: str) -> None:
    user = User()
    user.answer = {"untitledSingle": "option2", "titledMulti": ["value1", "value3"]}
    async with connected(era, user) as client:
        assert '"titledMulti": ["value1", "value3"]' in await said(client, "test_elicitation_sep1330_enums")
    properties = user.forms[0].requested_schema["properties"]
    assert properties["untitledSingle"]["enum"]
    assert "oneOf" not in properties["untitledSingle"]
    assert all({"const", "title"} == set(each) for each in properties["titledSingle"]["oneOf"])
    assert len(properties["legacyEnum"]["enum"]) == len(properties["legacyEnum"]["enumNames"])
    assert properties["untitledMulti"]["items"]["enum"]
    assert all({"const", "title"} == set(each) for each in properties["titledMulti"]["items"]["anyOf"])


async def test_questions_are_answered_by_the_client(era: str) -> None:
    """What the suite does by hand in the modern era, left to the client, in both."""
    user = User()
    user.answer = {"name": "Alice", "ok": True, "color": "blue", "value": "x", "context": "chess"}
    expected = {
        "test_input_required_result_elicitation": "Hello, Alice!",
        "test_input_required_result_sampling": "The model says: Paris",
        "test_input_required_result_list_roots": "1 root(s): file:///home/user",
        "test_input_required_result_request_state": 'state-ok: action=accept, content={"ok": true}',
        "test_input_required_result_tampered_state": 'integrity-ok: action=accept, content={"ok": true}',
        "test_input_required_result_multiple_inputs": "Name: Alice; Greeting: Paris; Roots: 1",
        "test_input_required_result_multi_round": "Alice likes blue",
        "test_input_required_result_capabilities": "capabilities-ok: elicit_input, sample_input",
        "test_streaming_elicitation": 'Streaming complete: action=accept, content={"ok": true}',
    }
    async with connected(era, user) as client:
        found = {name: await said(client, name) for name in expected}
        assert found == expected
        prompt = await client.get_prompt("test_input_required_result_prompt")
        assert prompt.messages[0].content == TextContent(text="Prompt with context: chess")


async def test_resources(era: str) -> None:
    async with connected(era) as client:
        (text,) = (await client.read_resource("test://static-text")).contents
        assert text == TextResourceContents(
            uri="test://static-text",
            mime_type="text/plain",
            text="This is the content of the static text resource.",
        )
        (blob,) = (await client.read_resource("test://static-binary")).contents
        assert isinstance(blob, BlobResourceContents)
        assert blob.mime_type == "image/png"
        (data,) = (await client.read_resource("test://template/123/data")).contents
        assert isinstance(data, TextResourceContents)
        assert (data.uri, data.mime_type) == ("test://template/123/data", "application/json")
        assert json.loads(data.text) == {"id": "123", "templateTest": True, "data": "Data for ID: 123"}


async def test_prompts_and_completion(era: str) -> None:
    async with connected(era) as client:
        prompt = await client.get_prompt("test_simple_prompt")
        assert prompt.messages[0].content == TextContent(text="This is a simple prompt for testing.")
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "hello", "arg2": "world"})
        text = "Prompt with arguments: arg1='hello', arg2='world'"
        assert prompt.messages[0].content == TextContent(text=text)
        uri = "test://example-resource"
        prompt = await client.get_prompt("test_prompt_with_embedded_resource", {"resourceUri": uri})
        embedded = prompt.messages[0].content
        assert isinstance(embedded, EmbeddedResource)
        assert embedded.resource == TextResourceContents(
            uri=uri, mime_type="text/plain", text="Embedded resource content for testing."
        )
        assert isinstance(prompt.messages[1].content, TextContent)
        prompt = await client.get_prompt("test_prompt_with_image")
        assert isinstance(prompt.messages[0].content, ImageContent)
        assert isinstance(prompt.messages[1].content, TextContent)
        reference = PromptReference(name="test_prompt_with_arguments")
        assert (await client.complete(reference, "arg1", "te")).values == ["test", "testing"]


async def test_changes_are_heard(era: str) -> None:
    async with connected(era) as client, client.listen(tools=True, prompts=True) as events:
        await client.call_tool("test_trigger_tool_change")
        heard = await anext(aiter(events))
        assert "tools" in heard.kind
        assert "appearing_tool" in {tool.name async for tool in client.tools()}
        await client.call_tool("test_trigger_tool_change")
        await client.call_tool("test_trigger_prompt_change")
        async for event in events:
            if "prompts" in event.kind:
                break
        assert "appearing_prompt" in {prompt.name async for prompt in client.prompts()}
        await client.call_tool("test_trigger_prompt_change")


async def test_a_sleep_that_was_cancelled_or_has_ended_does_not_count_as_running() -> None:
    async with connected_pair(packaged) as client:

        async def until(what: str) -> dict[str, int]:
            while True:
                counted: dict[str, int] = (await client.call_tool("activity")).data
                if counted[what]:
                    return counted

        await client.call_tool("sleep", {"seconds": 0.01, "steps": 1})
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "sleep", {"seconds": 600, "steps": 1})
                assert await until("sleeping") == {"sleeping": 1, "slept": 1, "cancelled": 0}
                nursery.cancel_scope.cancel()
            counted = await until("cancelled")
    assert counted == {"sleeping": 0, "slept": 1, "cancelled": 1}
