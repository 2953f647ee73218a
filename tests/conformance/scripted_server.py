"""A stand-in for the servers that the conformance suite puts before a client, over stdio.

Usage: scripted_server.py SCENARIO TRANSCRIPT

It knows nothing of the engine: it reads lines, answers as the script of the scenario says, and writes every message
that it received to TRANSCRIPT, one JSON document a line, for the test to judge.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

LEGACY, MODERN = "2025-11-25", "2026-07-28"
FORM = {"type": "object", "properties": {"confirmed": {"type": "boolean", "description": "Confirm?"}}}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
    "required": [],
}
ADD_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
KEYWORDS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object"}},
    "properties": {"address": {"$ref": "#/$defs/address"}, "phone": {"type": "string"}},
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["address"]}]}],
    "if": {"required": ["phone"]},
    "then": {"required": ["phone"]},
    "else": {},
    "additionalProperties": False,
}
NULLABLE = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
    },
    "required": ["region"],
}


class Refusal(Exception):
    """The error response to send."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


def tool(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": schema or {"type": "object", "properties": {}}}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


class Script:
    """What all the servers do. ``modern`` says in which era, ``lenient`` that unknown requests get ``{}``."""

    modern = False
    lenient = False
    tools: list[dict[str, Any]] = []

    def __init__(self, transcript: Any) -> None:
        self.transcript = transcript

    def read(self) -> dict[str, Any] | None:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        self.transcript.write(line.decode("utf-8").strip() + "\n")
        self.transcript.flush()
        message: dict[str, Any] = json.loads(line)
        return message

    def write(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Sends a request of our own and waits for the response to it, as a legacy server may."""
        self.write(id="question", method=method, params=params)
        while (message := self.read()) is not None:
            if message.get("id") == "question" and "method" not in message:
                answer: dict[str, Any] = message["result"]
                return answer
        raise EOFError

    def serve(self) -> None:
        while (message := self.read()) is not None:
            if "method" not in message or "id" not in message:
                continue
            try:
                self.write(
                    id=message["id"], result=self.answer(message["method"], message.get("params") or {})
                )
            except Refusal as refusal:
                self.write(id=message["id"], error=refusal.error)

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "server/discover" if self.modern else "initialize": self.introduce,
            "tools/list": lambda params: self.stamp({"tools": self.tools}),
            "tools/call": lambda params: self.stamp(self.call(params)),
        }
        if method in handlers:
            return handlers[method](params)
        return self.other(method, params)

    def other(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.lenient:
            return {}
        raise Refusal(-32601 if self.modern else -32000, f"no such method here: {method}")

    def introduce(self, params: dict[str, Any]) -> dict[str, Any]:
        info = {"name": "scripted", "version": "1.0.0"}
        if self.modern:
            return self.stamp(
                {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "serverInfo": info}
            )
        return {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": info}

    def stamp(self, result: dict[str, Any]) -> dict[str, Any]:
        return (
            {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
            if self.modern
            else result
        )

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(-32602, f"no such tool: {params['name']}")


class Initialize(Script):
    lenient = True


class ToolsCall(Script):
    tools = [tool("add_numbers", ADD_NUMBERS)]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        return text(str(params["arguments"]["a"] + params["arguments"]["b"]))


class ToolsCallModern(ToolsCall):
    modern = True


class ElicitationDefaults(Script):
    tools = [tool("test_client_elicitation_defaults")]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        answer = self.ask(
            "elicitation/create", {"message": "Accept the defaults", "requestedSchema": DEFAULTS}
        )
        return text(json.dumps(answer))


class SseRetry(Script):
    lenient = True
    tools = [tool("test_reconnection")]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        return text("Reconnection test completed successfully")


class RequestMetadata(Script):
    """Refuses the first request of all, even though it asks for a version that the refusal then names."""

    modern = True
    refused = False

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not self.refused:
            self.refused = True
            raise Refusal(
                -32022, "Unsupported protocol version", {"supported": [MODERN], "requested": MODERN}
            )
        return super().answer(method, params)


class RequestState(Script):
    modern = True
    bare = False
    tools = [
        tool(name)
        for name in (
            "test_mrtr_echo_state",
            "test_mrtr_no_state",
            "test_mrtr_unrelated",
            "test_mrtr_no_result_type",
        )
    ]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        question = {"method": "elicitation/create", "params": {"message": "Go on?", "requestedSchema": FORM}}
        self.bare = params["name"] == "test_mrtr_no_result_type"
        asks = params["name"] in ("test_mrtr_echo_state", "test_mrtr_no_state")
        if not asks or "inputResponses" in params:
            return text("ok")
        state = (
            {"requestState": '{"nonce": "\\u00e9 1.0"}'} if params["name"] == "test_mrtr_echo_state" else {}
        )
        return {"resultType": "input_required", "inputRequests": {"confirm": question}, **state}

    def stamp(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result without a result type means that it is complete."""
        return result if self.bare and "content" in result else super().stamp(result)


class StandardHeaders(Script):
    modern = True
    tools = [tool("test_headers"), tool("my-hyphenated-tool")]

    def introduce(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().introduce(params) | {"capabilities": {"tools": {}, "resources": {}, "prompts": {}}}

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        return text("ok")

    def other(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        uris = ["file:///path/to/file%20name.txt", "https://example.com/resource?id=123"]
        if method == "resources/list":
            return self.stamp({"resources": [{"uri": uri, "name": uri} for uri in uris]})
        if method == "resources/read":
            return self.stamp({"contents": [{"uri": params["uri"], "text": "text"}]})
        if method == "prompts/list":
            return self.stamp({"prompts": [{"name": "test_prompt", "description": "A prompt"}]})
        if method == "prompts/get":
            return self.stamp({"messages": [{"role": "user", "content": {"type": "text", "text": "text"}}]})
        return super().other(method, params)


class CustomHeaders(Script):
    modern = True
    tools = [tool("test_custom_headers", NULLABLE), tool("test_custom_headers_null", NULLABLE)]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        return text("ok")


class SchemaReference(Script):
    modern = True
    tools = [
        tool("refers", {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/canary.json"}}})
    ]


class SchemaPreservation(Script):
    modern = True
    tools = [tool("json_schema_2020_12_tool", KEYWORDS), tool("json_schema_echo")]

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        return text(json.dumps(params["arguments"]["schema"]))


SCRIPTS: dict[str, type[Script]] = {
    "initialize": Initialize,
    "tools_call": ToolsCall,
    "tools_call-modern": ToolsCallModern,
    "elicitation-sep1034-client-defaults": ElicitationDefaults,
    "sse-retry": SseRetry,
    "request-metadata": RequestMetadata,
    "sep-2322-client-request-state": RequestState,
    "http-standard-headers": StandardHeaders,
    "http-custom-headers": CustomHeaders,
    "json-schema-ref-no-deref": SchemaReference,
    "json-schema-2020-12-preservation": SchemaPreservation,
}


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8") as transcript:
        SCRIPTS[sys.argv[1]](transcript).serve()
