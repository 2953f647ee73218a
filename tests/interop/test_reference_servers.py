"""Our client drives the reference servers, which are made with the official TypeScript SDK.

The everything server is driven over every binding that it has; it knows the legacy era only, so a client that is told
nothing finds that out by itself.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from benchmarks.real_servers import (
    SPARE_DESCRIPTORS,
    SPARE_KIB,
    SPARE_TASKS,
    Levels,
    all_gone,
    children_of,
    configuration,
    processes_in,
)
from mcp_actors import Client, RpcError
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.types import (
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
)

from .installation import Peers
from .user import LEGACY, LIMIT, User, rows, stdio, text_of

every_row = rows("everything", ("stdio", "auto"), ("http", "auto"), ("sse", "auto"))


@every_row
async def test_everything_server_tools(target: str, era: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
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


@every_row
async def test_everything_server_asks(target: str, era: str) -> None:
    user = User()
    user.answer = {"name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
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


@every_row
async def test_everything_server_progress(target: str, era: str) -> None:
    seen: list[tuple[float, float | None]] = []
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client:
            result = await client.call_tool(
                "trigger-long-running-operation",
                {"duration": 0.5, "steps": 5},
                on_progress=lambda progress: seen.append((progress.progress, progress.total)),
            )
    assert "completed" in text_of(result.content)
    assert seen == [(step, 5) for step in range(1, 6)]


@every_row
async def test_everything_server_resources_and_prompts(target: str, era: str) -> None:
    user = User()
    uri = "demo://resource/dynamic/text/7"
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
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
            while ("resource_updated", uri) not in user.changed:
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


@every_row
async def test_everything_server_housekeeping(target: str, era: str) -> None:
    user = User()
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
            await client.ping()
            await client.set_log_level("debug")
            await client.call_tool("toggle-simulated-logging")
            # What it says before it has a stream for that is lost over HTTP, and the next comes after five seconds.
            while not any("message" in str(data) for _, data in user.logged):
                await user.news.wait()
            await client.call_tool("toggle-simulated-logging")
            with pytest.raises(RpcError) as caught:
                await client.get_prompt("no-such-prompt")
            assert caught.value.code == -32602
            with pytest.raises(RpcError) as caught:
                await client.request("acme/unknown", {})
            assert caught.value.code == -32601


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


# -- Eight servers of others behind a gateway whose processes are killed: `benchmarks.real_servers` in small ---
#
# ``MCP_REAL_SERVER_CALLS`` makes it as large as wanted.

ROOT = Path(__file__).parent.parent.parent
CALLS = int(os.environ.get("MCP_REAL_SERVER_CALLS", "150"))
SMALL = ["--calls", str(CALLS), "--legacy", "0", "--modern", "1", "--points", "2", "--calls-of-a-kill", "25"]
WARM = Levels(tasks=100, descriptors=70, children=13, kib=60_000)
SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.mark.long
def test_each_call_is_answered_or_fails_with_a_reason_while_servers_are_killed(peers: Peers) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.real_servers", *SMALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300 + CALLS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    outcomes = ast.literal_eval(done.stdout.splitlines()[-1].partition("}")[0] + "}")
    assert outcomes["answered"] > CALLS // 2
    assert outcomes["UpstreamUnavailable"] > 0


def test_the_configuration_has_eight_servers_that_a_gateway_can_read(tmp_path: Path) -> None:
    found = {
        "modules": "/there",
        "node": "/there/node",
        "environment": "/there/python",
        "sqlite": "/sql/python",
    }
    entries = list(read_server_entries(configuration(found, tmp_path)))
    assert len(entries) == 8
    assert not [entry for entry in entries if entry.unknown]
    assert {entry.cwd for entry in entries} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("name", "spare"),
    [("tasks", SPARE_TASKS), ("descriptors", SPARE_DESCRIPTORS), ("children", 0), ("kib", SPARE_KIB)],
)
def test_what_grows_beyond_what_is_spared_is_noticed(name: str, spare: int) -> None:
    assert replace(WARM, **{name: getattr(WARM, name) + spare}).is_no_more_than(WARM)
    assert not replace(WARM, **{name: getattr(WARM, name) + spare + 1}).is_no_more_than(WARM)


def test_a_process_that_is_left_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.real_servers.GONE_WITHIN", 0.1)
    with subprocess.Popen(SLEEPING, cwd=tmp_path) as process:
        assert process.pid in children_of(os.getpid())
        assert len(processes_in(tmp_path)) == 1
        with pytest.raises(AssertionError, match="processes are left"):
            all_gone(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
    all_gone(tmp_path)
    assert process.pid not in children_of(os.getpid())
