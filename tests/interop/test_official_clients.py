"""The official SDKs' clients, unchanged, drive our everything server over stdio, HTTP, HTTP+SSE and WebSocket.

Each client runs once and prints a report; the tests look at one feature of it each. The same drivers run against a
server made with the official SDK, so that a driver that is wrong is seen to be wrong by itself.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mcp_actors.examples.everything.app import PIXEL_PNG
from mcp_actors.examples.everything.content import ADDRESS_BOOK_SCHEMA

from .installation import Peers
from .servers import DRIVERS, Endpoint, reachable

LIMIT = 200.0  # seconds for one driver; it takes about two, and forty on a machine that is full
LEGACY, MODERN = "2025-11-25", "2026-07-28"
CLIENTS = {
    "python-legacy": LEGACY,
    "python-auto": MODERN,
    "typescript-sdk-legacy": LEGACY,
    "typescript-client-legacy": LEGACY,
    "typescript-client-auto": MODERN,
}
BINDINGS = ("stdio", "http", "sse")
ROWS = [
    (client, binding)
    for client, version in CLIENTS.items()
    for binding in BINDINGS
    if not (binding == "sse" and version == MODERN)  # HTTP+SSE belongs to the legacy era
] + [("typescript-sdk-legacy", "ws")]  # the only one of these that still has WebSocket

Report = dict[str, Any]


def drive(peers: Peers, client: str, server: Endpoint) -> Report:
    """Runs one driver to its end and returns its report; what it and the server wrote is in ``stderr``."""
    done = run(peers, client, server)
    code = server.process.stop() if server.process else 0
    written = done.stderr + (server.process.output if server.process else "")
    return {**report_of(done, client, written), "stderr": written, "server_code": code}


def run(peers: Peers, client: str, server: Endpoint) -> subprocess.CompletedProcess[str]:
    language, *rest = client.split("-")
    if language == "python":
        command = [str(peers.python), str(DRIVERS / "python_client.py"), *rest]
    else:
        command = [str(peers.node), str(DRIVERS / "typescript_client.mjs"), str(peers.modules), *rest]
    command += server.arguments
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def report_of(done: subprocess.CompletedProcess[str], client: str, written: str) -> Report:
    assert done.returncode == 0, f"{client} failed with {done.returncode}:\n{written[-6000:]}"
    report: Report = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module", params=ROWS, ids="-".join)
def row(request: pytest.FixtureRequest) -> tuple[str, str]:
    client, binding = request.param
    return str(client), str(binding)


@pytest.fixture(scope="module")
def client(row: tuple[str, str]) -> str:
    return row[0]


@pytest.fixture(scope="module")
def report(peers: Peers, row: tuple[str, str]) -> Report:
    client, binding = row
    with reachable(peers, "ours", binding) as server:
        return drive(peers, client, server)


def text_of(result: Any) -> str:
    assert "error" not in result, result
    return str(result["content"][0]["text"])


@pytest.mark.long
def test_driver_is_sound(peers: Peers, row: tuple[str, str]) -> None:
    """The control experiment: the official client with the official server."""
    client, binding = row
    with reachable(peers, "python", binding) as server:
        report = drive(peers, client, server)
    assert report["version"] == CLIENTS[client]
    assert report["activity"]["cancelled"] == 1
    assert text_of(report["test_sampling"]) == "LLM response: I am the model"
    assert report["together"]
    assert report["closed"]


def test_introduction(report: Report, client: str) -> None:
    assert report["version"] == CLIENTS[client]
    assert report["server"]["name"] == "mcp-actors-everything"
    assert report["server"]["version"] == "1.0.0"
    assert report["instructions"].startswith("Call any tool.")
    capabilities = report["capabilities"]
    assert set(capabilities) >= {"tools", "resources", "prompts", "completions", "logging"}
    assert capabilities["tools"] == {"listChanged": True}
    assert capabilities["resources"] == {"subscribe": True, "listChanged": True}


def test_legacy_methods(report: Report, client: str) -> None:
    if CLIENTS[client] == LEGACY:
        assert "error" not in report["ping"]
        assert "error" not in report["set_level"]
    else:
        assert "ping" not in report


def test_everything_is_listed(report: Report) -> None:
    assert set(report["tools"]) >= {"echo", "add", "sleep", "test_simple_text", "test_tool_with_progress"}
    assert all(tool["description"] for tool in report["tools"].values())
    assert report["tools"]["json_schema_2020_12_tool"]["inputSchema"] == ADDRESS_BOOK_SCHEMA
    assert report["tools"]["add"]["inputSchema"]["required"] == ["a", "b"]
    assert report["tools"]["add"]["inputSchema"]["properties"]["a"]["description"] == "the first term"
    assert set(report["tools"]["add"]["outputSchema"]["properties"]) == {"total", "terms"}
    assert report["tools"]["echo"]["annotations"]["readOnlyHint"] is True
    assert set(report["resources"]) == {
        "test://static-text",
        "test://static-binary",
        "test://watched-resource",
    }
    assert report["resources"]["test://static-binary"]["mimeType"] == "image/png"
    assert set(report["templates"]) == {"test://template/{id}/data"}
    arguments = report["prompts"]["test_prompt_with_arguments"]["arguments"]
    assert [(each["name"], each["required"]) for each in arguments] == [("arg1", True), ("arg2", True)]


def test_content(report: Report) -> None:
    assert text_of(report["test_simple_text"]) == "This is a simple text response for testing."
    (image,) = report["test_image_content"]["content"]
    assert image["type"] == "image"
    assert image["mimeType"] == "image/png"
    assert base64.b64decode(image["data"]) == PIXEL_PNG
    (resource,) = report["test_embedded_resource"]["content"]
    assert resource["type"] == "resource"
    assert resource["resource"]["uri"] == "test://embedded-resource"
    assert resource["resource"]["text"] == "This is an embedded resource content."
    assert text_of(report["echo"]) == "gruß 🐍\n\u2028"


def test_structured_content(report: Report) -> None:
    assert report["add"]["structuredContent"] == {"total": 5.5, "terms": 2}
    assert json.loads(text_of(report["add"])) == {"total": 5.5, "terms": 2}


def test_logging(report: Report) -> None:
    assert text_of(report["test_tool_with_logging"]) == "Tool with logging executed successfully"
    messages = ["Tool execution started", "Tool processing data", "Tool execution completed"]
    assert [entry for entry in report["logs"] if entry[1] in messages] == [
        ["info", text] for text in messages
    ]


def test_progress(report: Report, row: tuple[str, str]) -> None:
    client, binding = row
    steps = [[done, 100, f"Completed step {done} of 100"] for done in (0, 50, 100)]
    if client.startswith("typescript"):
        assert report["progress_read"] == steps
        told = report["progress"]
        # On these bindings both TypeScript SDKs handle a response before the notifications of the same read, and forget
        # the callback then. A client that does not run for longer than an answer waits for it loses steps in that way.
        assert told == (steps[: len(told)] if binding in ("stdio", "sse") else steps)
    else:
        assert report["progress"] == steps
    assert text_of(report["test_tool_with_progress"]) != "no progress token"


def test_comes_back_for_an_answer(report: Report) -> None:
    """Over Streamable HTTP in the legacy era the server closes the stream in the middle of this call."""
    assert text_of(report["test_reconnection"]) == "Reconnection test completed successfully"


def test_mirrored_argument(report: Report) -> None:
    """Over HTTP in the modern era the server refuses the call unless the header says the same, here in base64."""
    assert text_of(report["test_custom_header"]) == "region  Zürich , limit 3"


def test_session(report: Report, row: tuple[str, str]) -> None:
    client, binding = row
    if client.startswith("typescript"):
        assert bool(report["session"]) == (binding == "http" and CLIENTS[client] == LEGACY)
    else:
        assert "session" not in report  # that client does not tell


def test_errors(report: Report) -> None:
    assert report["test_error_handling"]["isError"] is True
    assert text_of(report["test_error_handling"]) == "This tool intentionally returns an error for testing"
    assert report["wrong_arguments"]["isError"] is True
    assert re.search(r"\ba\b", text_of(report["wrong_arguments"]))
    assert report["unknown_tool"]["error"]["code"] == -32602
    assert "no_such_tool" in report["unknown_tool"]["error"]["message"]


def test_sampling_and_elicitation(report: Report) -> None:
    (sampling,) = [params for method, params in report["asked"] if method == "sampling/createMessage"]
    assert sampling["maxTokens"] == 100
    (message,) = sampling["messages"]
    assert message["role"] == "user"
    content = message["content"]
    (block,) = content if isinstance(content, list) else [content]
    assert (block["type"], block["text"]) == ("text", "Who are you?")
    assert text_of(report["test_sampling"]) == "LLM response: I am the model"

    (elicitation,) = [params for method, params in report["asked"] if method == "elicitation/create"]
    assert elicitation["message"] == "Tell me"
    assert set(elicitation["requestedSchema"]["properties"]) == {"username", "email"}
    answered = {"email": "my email", "username": "my username"}
    assert (
        text_of(report["test_elicitation"]) == f"User response: action=accept, content={json.dumps(answered)}"
    )


def test_resources(report: Report) -> None:
    (text,) = report["test://static-text"]["contents"]
    assert text["uri"] == "test://static-text"
    assert text["mimeType"] == "text/plain"
    assert text["text"] == "This is the content of the static text resource."
    (binary,) = report["test://static-binary"]["contents"]
    assert base64.b64decode(binary["blob"]) == PIXEL_PNG
    (expanded,) = report["test://template/123/data"]["contents"]
    assert expanded["uri"] == "test://template/123/data"
    assert json.loads(expanded["text"]) == {"id": "123", "templateTest": True, "data": "Data for ID: 123"}


def test_missing_resource(report: Report, client: str) -> None:
    error = report["test://nothing"]["error"]
    # The second TypeScript SDK shows its user the modern code, whatever the server sent.
    shown = -32602 if CLIENTS[client] == MODERN or client == "typescript-client-legacy" else -32002
    assert error["code"] == shown
    assert error["data"] == {"uri": "test://nothing"}


def test_prompts(report: Report) -> None:
    (message,) = report["test_simple_prompt"]["messages"]
    assert message["content"]["text"] == "This is a simple prompt for testing."
    (message,) = report["test_prompt_with_arguments"]["messages"]
    assert message["content"]["text"] == "Prompt with arguments: arg1='one', arg2='two'"


def test_completion(report: Report) -> None:
    assert report["complete_prompt"]["completion"]["values"] == ["paris", "park", "party"]
    values = report["complete_template"]["completion"]["values"]
    assert values[:3] == ["7", "70", "71"]
    assert len(values) == 10


def test_cancellation(report: Report) -> None:
    """The handler saw it, at once, and nothing else was disturbed."""
    assert report["activity"] == {"sleeping": 0, "slept": 0, "cancelled": 1}


def test_subscription(report: Report, client: str) -> None:
    if CLIENTS[client] == MODERN:
        assert report["honored"] == {"resourceSubscriptions": ["test://watched-resource"]}
        expected = "modern touch"
    else:
        assert "error" not in report["subscribe"]
        assert "error" not in report["unsubscribe"]
        expected = "legacy touch"
    if client == "python-auto":
        assert report["event"] == ["ResourceUpdated", "test://watched-resource"]
    elif client == "python-legacy":
        assert report["notified"].count("notifications/resources/updated") == 1
    else:
        assert report["notified"] == [["notifications/resources/updated", "test://watched-resource"]]
    assert report["watched"]["contents"][0]["text"] == expected


def test_fifty_calls_at_once(report: Report) -> None:
    assert report["together"] is True


def test_ended_quietly(report: Report) -> None:
    """No traceback was written. Over stdio the server ended because its input did; elsewhere a signal sufficed."""
    assert report["closed"] is True
    assert report["server_code"] == 0
    assert "Traceback" not in report["stderr"]


def test_http_and_websocket_on_one_port(peers: Peers) -> None:
    """Three clients at once: a session over each of the two, and the stateless revision over HTTP."""
    clients = {
        "ws": "typescript-sdk-legacy",
        "http": "typescript-sdk-legacy",
        "modern": "typescript-client-auto",
    }
    with reachable(peers, "one-port", "http") as server, ThreadPoolExecutor() as threads:
        websocket = Endpoint("ws", (server.address[0].replace("http:", "ws:").replace("/mcp", "/ws"),))
        running = {
            name: threads.submit(run, peers, client, websocket if name == "ws" else server)
            for name, client in clients.items()
        }
        done = {name: each.result() for name, each in running.items()}
        assert server.process is not None
        code, written = server.process.stop(), server.process.output
    assert (code, "Traceback" in written) == (0, False), written[-6000:]
    for name, client in clients.items():
        report = report_of(done[name], client, done[name].stderr + written)
        assert report["version"] == CLIENTS[client]
        assert report["server"]["name"] == "mcp-actors-everything"
        assert bool(report["session"]) == (name == "http")
        assert text_of(report["test_sampling"]) == "LLM response: I am the model"
        assert report["together"]
        assert report["closed"]
