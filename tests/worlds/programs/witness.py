"""A server over stdio that writes down all that it is sent, and its end: ``witness.py FILE``.

It knows nothing of our package, and speaks MCP 2025-11-25.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FORM = {
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(number: int | str, text: str) -> None:
    say(id=number, result={"content": [{"type": "text", "text": text}]})


def call(number: int | str, params: dict[str, Any]) -> None:
    """Begins one of three tools: ``steps`` reports three times, ``ask`` asks, and ``slow`` never ends."""
    if params["name"] == "ask":
        say(id=f"for {number}", method="elicitation/create", params=FORM)
        return
    for step in range(3 if params["name"] == "steps" else 1):
        report = {"progressToken": params["_meta"]["progressToken"], "progress": step + 1}
        say(method="notifications/progress", params=report)
    if params["name"] == "steps":
        answer(number, "all steps")


def main() -> None:
    asked: dict[str, int | str] = {}
    with open(sys.argv[1], "a", buffering=1) as written:
        written.write(json.dumps({"pid": os.getpid()}) + "\n")
        for line in sys.stdin:
            written.write(line)
            message = json.loads(line)
            method = message.get("method")
            if method == "initialize":
                about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "witness", "version": "1"}}
                say(id=message["id"], result={"protocolVersion": "2025-11-25", **about})
            elif method == "tools/call":
                asked[f"for {message['id']}"] = message["id"]
                call(message["id"], message["params"])
            elif method is None:
                result = message["result"]
                answer(asked[message["id"]], f"{result['action']} {result['content']['name']}")
        written.write(json.dumps({"method": "end"}) + "\n")


main()
