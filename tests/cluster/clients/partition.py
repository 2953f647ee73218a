"""Asks three nodes for one thing of each kind, before Redis is cut off, meanwhile and afterwards.

Usage: partition.py URL URL URL

It reads words from its standard input, one a line: ``begin`` begins a session at the first node, ``ask`` asks for
everything once. After each it prints one line of JSON: each question's name with the status of its answer, the answer
as far as it is JSON, and the seconds that it took. It needs nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

LEGACY, MODERN = "2025-11-25", "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
SILENCE = 30.0  # seconds after which a question counts as unanswered

Asked = dict[str, Any]


def post(url: str, method: str, params: dict[str, Any], headers: dict[str, str]) -> tuple[Asked, str]:
    """Returns what came of a request, and the session that its answer names."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    began = time.monotonic()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=SILENCE) as answer:
            status, session, text = (
                answer.status,
                answer.headers.get("Mcp-Session-Id", ""),
                answer.read().decode(),
            )
    except urllib.error.HTTPError as refusal:
        status, session, text = refusal.code, "", refusal.read().decode()
    except OSError as error:
        status, session, text = 0, "", str(error)
    return {"status": status, "answer": message_of(text), "took": time.monotonic() - began}, session


def message_of(text: str) -> Any:
    """The answer, or the last event of a stream, which has the answer in it."""
    data = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()]
    try:
        return json.loads(data[-1] if data else text)
    except ValueError:
        return text


class Questions:
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.session = ""

    def begin(self) -> dict[str, Asked]:
        asked, self.session = self.initialize(self.urls[0])
        return {"initialize": asked}

    def ask(self) -> dict[str, Asked]:
        holder, other, third = self.urls
        return {
            "stateless here": self.modern(holder, "echo", {"token": "t"}),
            "stateless there": self.modern(third, "echo", {"token": "t"}),
            "publish": self.modern(other, "publish", {"token": "t", "uri": "news://all"}),
            "session at its node": self.legacy(holder, "echo", {"token": "t"}),
            "stream at its node": self.legacy(holder, "slow", {"token": "t", "steps": 3, "pause": 0.1}),
            "session at another node": self.legacy(other, "echo", {"token": "t"}),
            "new session": self.initialize(other)[0],
            "new task": self.modern(third, "work", {"token": "t", "seconds": 0.1}, {PREFIX + "tasks": {}}),
        }

    def initialize(self, url: str) -> tuple[Asked, str]:
        info = {"name": "partition", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        return post(url, "initialize", params, {})

    def legacy(self, url: str, tool: str, arguments: dict[str, Any]) -> Asked:
        headers = {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": LEGACY}
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        return post(url, "tools/call", params, headers)[0]

    def modern(
        self, url: str, tool: str, arguments: dict[str, Any], extensions: dict[str, Any] | None = None
    ) -> Asked:
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        capabilities = {"extensions": extensions} if extensions else {}
        meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": capabilities}
        return post(url, "tools/call", {"name": tool, "arguments": arguments, "_meta": meta}, headers)[0]


def main(urls: list[str]) -> None:
    questions = Questions(urls)
    for word in sys.stdin:
        asked = questions.begin() if word.strip() == "begin" else questions.ask()
        print(json.dumps(asked), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
