"""Messages as bytes, encoded in advance, so that sending one costs almost nothing during the measurement."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from mcp_actors.bench.eras import LEGACY_VERSION, META, MODERN_VERSION, Era
from mcp_actors.bench.errors import LoadError

__all__ = [
    "Calls",
    "Message",
    "answer_to",
    "cancelled",
    "check_sums",
    "id_of",
    "notification",
    "opening",
    "request",
]

SAMPLE = 200
_ID = re.compile(rb'"id": ?(\d+)')


class Message(NamedTuple):
    """An encoded message, with the values that HTTP mirrors in headers."""

    data: bytes
    id: int | None = None
    method: str = ""
    name: str = ""

    def headers(self, era: Era, version: str = "") -> dict[str, str]:
        if era == "legacy":
            return {} if self.method == "initialize" else {"mcp-protocol-version": version or LEGACY_VERSION}
        named = {"mcp-name": self.name} if self.name else {}
        return {"mcp-protocol-version": MODERN_VERSION, "mcp-method": self.method} | named


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0"} | message, separators=(",", ":")).encode()


def request(era: Era, id: int, method: str, params: dict[str, Any], *, progress: bool = False) -> Message:
    meta: dict[str, Any] = {"progressToken": id} if progress else {}
    if era == "modern":
        meta |= META
    if meta:
        params = params | {"_meta": meta}
    name = str(params.get("name") or params.get("uri") or "")
    return Message(_encoded({"id": id, "method": method, "params": params}), id, method, name)


def notification(method: str, params: dict[str, Any] | None = None) -> Message:
    return Message(_encoded({"method": method} | ({"params": params} if params else {})), None, method)


def cancelled(id: int) -> Message:
    return notification("notifications/cancelled", {"requestId": id, "reason": "no longer wanted"})


def opening(era: Era, id: int, version: str = "") -> Message:
    """The first request of a connection; ``version`` is the revision that a legacy one asks for, or the latest."""
    if era == "modern":
        return request(era, id, "server/discover", {})
    params = {
        "protocolVersion": version or LEGACY_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    return request(era, id, "initialize", params)


class Calls:
    """Calls of a tool ``(a, b) -> {total}``: ``calls[id]`` asks for ``id + 1``."""

    def __init__(self, era: Era, tool: str = "add") -> None:
        data = request(
            era, 987654321, "tools/call", {"name": tool, "arguments": {"a": 987654321, "b": 1}}
        ).data
        self._template = data.replace(b"%", b"%%").replace(b"987654321", b"%d")
        self._tool = tool

    def __getitem__(self, id: int) -> Message:
        return Message(self._template % (id, id), id, "tools/call", self._tool)


def id_of(data: bytes) -> int | None:
    """Returns the id of an answer; ``None`` for a notification."""
    match = _ID.search(data)
    return int(match[1]) if match else None


def answer_to(data: bytes) -> dict[str, Any]:
    """The result in an answer. Raises `LoadError` for an error."""
    answer = json.loads(data)
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, dict) or result.get("isError"):
        raise LoadError(f"not a good answer: {data[:300]!r}")
    return result


def check_sums(answers: Sequence[bytes], chance: random.Random) -> None:
    """Checks that every answer is a result and, in a sample, the right sum."""
    for data in answers:
        if b'"error"' in data or b'"isError":true' in data:
            raise LoadError(f"not a good answer: {data[:300]!r}")
    for data in chance.sample(answers, min(SAMPLE, len(answers))):
        id = id_of(data)
        if id is None or answer_to(data).get("structuredContent") != {"total": id + 1}:
            raise LoadError(f"a wrong sum: {data[:300]!r}")
