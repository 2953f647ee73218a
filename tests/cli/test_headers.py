"""``--header`` and ``--bearer-env``: what is sent with them, and that no error shows what they hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from .conftest import Ran

Mcp = Callable[..., Ran]
SECRET = "s3cret-value"


class Demanding(BaseHTTPRequestHandler):
    """An MCP server that keeps the headers of each request, and demands some of them."""

    demanded: dict[str, str] = {}
    received: list[dict[str, str]] = []

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.received.append(headers)
        message = json.loads(self.rfile.read(int(headers["content-length"])))
        if any(headers.get(name) != value for name, value in self.demanded.items()):
            self.answer(401, b"")
        elif message["method"] == "tools/list":
            tool = {"name": "hello", "inputSchema": {"type": "object"}}
            self.answer(200, self.result(message, {"tools": [tool]}))
        elif message["method"] == "initialize":
            self.answer(
                200,
                self.result(
                    message,
                    {
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "demanding", "version": "1"},
                    },
                ),
            )
        else:
            self.answer(202, b"")

    def do_GET(self) -> None:
        self.answer(405, b"")

    def result(self, message: dict[str, object], result: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def demanding() -> Iterator[tuple[str, type[Demanding]]]:
    handler = type("DemandingOnce", (Demanding,), {"demanded": {}, "received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp", handler
        server.shutdown()
        thread.join()


def test_headers_come_with_every_request(mcp: Mcp, demanding: tuple[str, type[Demanding]]) -> None:
    url, handler = demanding
    handler.demanded = {"x-api-key": SECRET, "x-tenant": "a:b"}
    words = ["--header", f"X-Api-Key: {SECRET} ", "--header", "X-Tenant:a:b"]
    result = mcp("list", url, "--era", "legacy", *words)
    assert (result.returncode, result.stderr) == (0, "")
    assert "  hello()" in result.stdout.splitlines()
    assert len(handler.received) >= 3


def test_a_token_comes_from_the_environment(
    mcp: Mcp, demanding: tuple[str, type[Demanding]], environment: dict[str, str]
) -> None:
    url, handler = demanding
    handler.demanded = {"authorization": f"Bearer {SECRET}"}
    environment["MY_TOKEN"] = f"{SECRET}\n"
    result = mcp("list", url, "--era", "legacy", "--bearer-env", "MY_TOKEN")
    assert (result.returncode, result.stderr) == (0, "")
    environment["MY_TOKEN"] = "another"
    refused = mcp("list", url, "--era", "legacy", "--bearer-env", "MY_TOKEN")
    assert refused.returncode == 1
    assert "it does not accept the headers that were given" in refused.stderr
    assert "another" not in refused.stderr


HTTP = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize(
    ("url", "words", "says"),
    [
        ("stdio:true", ["--header", f"X-Key:{SECRET}"], "are for http, https, ws and wss URLs"),
        ("tcp://127.0.0.1:9", ["--bearer-env", "HELD"], "are for http, https, ws and wss URLs"),
        (HTTP, ["--header", SECRET], "--header number 1 has no colon: write --header NAME:VALUE"),
        (HTTP, ["--header", f"X Key {SECRET}:1"], "--header number 1 has no usable name"),
        (HTTP, ["--header", f"X-Key:{SECRET}\nY:1"], "the value of --header X-Key holds a line break"),
        (HTTP, ["--header", f"X-Key:{SECRET}é"], "the value of --header X-Key holds"),
        (HTTP, ["--header", "a:1", "--header", f"A:{SECRET}"], "--header A is given twice"),
        (HTTP, ["--header", f"Mcp-Method:{SECRET}"], "the protocol sets these headers itself: mcp-method"),
        ("ws://127.0.0.1:9/", ["--header", f"Upgrade:{SECRET}"], "sets these headers itself: upgrade"),
        (HTTP, ["--bearer-env", SECRET], "is not set; it takes the name of a variable, not a token"),
        (HTTP, ["--bearer-env", "EMPTY"], "the environment variable EMPTY is empty"),
        (HTTP, ["--bearer-env", "BLANKS"], "the environment variable BLANKS holds no token"),
        (HTTP, ["--bearer-env", "HELD", "--header", "authorization:x"], "exclude each other"),
    ],
)
def test_wrong_headers(mcp: Mcp, environment: dict[str, str], url: str, words: list[str], says: str) -> None:
    environment.update(EMPTY=" ", BLANKS=f"Bearer {SECRET}", HELD=SECRET)
    result = mcp("list", url, *words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert SECRET not in result.stderr
    assert "Traceback" not in result.stderr
