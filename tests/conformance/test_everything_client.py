"""The conformance client, run as the suite runs it, against scripted servers over stdio."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .scripted_server import KEYWORDS, LEGACY, MODERN

HERE = Path(__file__).parent
META = "io.modelcontextprotocol/"
LIMIT = 40.0  # seconds; the client itself gives up earlier

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
