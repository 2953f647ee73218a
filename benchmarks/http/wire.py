"""Raw HTTP/1.1 and MCP for clients that cost little: requests as bytes, replies parsed no further than needed."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from benchmarks.load import LEGACY_VERSION, META, MODERN_VERSION, Era
from benchmarks.suite.process import LoadError

__all__ = ["PATH", "Reply", "ReplyReader", "call", "handshake", "initialized", "result_of", "sum_template"]

PATH = "/mcp"
FIRST_ID = 1_000_000
LAST_ID = 9_999_999

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nmcp-session-id: *([\x21-\x7e]+)", re.IGNORECASE)
_DATA = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
# Heads repeat but for the date: each is parsed once, and a day of seconds is not kept.
_MOST_HEADS = 1000
_CHUNK_LINES = -2
_UNTIL_CLOSE = -1


class Reply(NamedTuple):
    """A whole response. The body of an event stream is its text, chunks joined."""

    status: int
    head: bytes
    body: bytes

    @property
    def session(self) -> str:
        match = _SESSION.search(self.head)
        return match[1].decode() if match else ""


class ReplyReader:
    """Cuts the bytes of one connection into replies, one outstanding at a time."""

    __slots__ = ("_rest", "received")

    _heads: dict[bytes, tuple[int, int]] = {}

    def __init__(self) -> None:
        self._rest = b""
        self.received = 0

    def feed(self, data: bytes) -> Reply | None:
        """The reply that is complete with ``data``, if one is."""
        self.received += len(data)
        if self._rest:
            data = self._rest + data
        end = data.find(b"\r\n\r\n") + 4
        if end == 3:
            self._rest = data
            return None
        head = data[:end]
        status, length = self._heads.get(head) or self._parse(head)
        if length >= 0:
            if len(data) - end < length:
                self._rest = data
                return None
            if len(data) - end > length:
                raise LoadError(f"more than one answer: {data[:300]!r}")
            self._rest = b""
            return Reply(status, head, data[end:])
        body = _joined_chunks(data, end)
        if body is None:
            self._rest = data
            return None
        self._rest = b""
        return Reply(status, head, body)

    def _parse(self, head: bytes) -> tuple[int, int]:
        try:
            status = int(head[9:12])
        except ValueError:
            raise LoadError(f"not HTTP: {head[:200]!r}") from None
        length = _LENGTH.search(head)
        if length is not None:
            parsed = status, int(length[1])
        elif _CHUNKED.search(head):
            parsed = status, _CHUNK_LINES
        elif status in (202, 204):
            parsed = status, 0
        else:
            raise LoadError(f"an answer whose end is not told: {head!r}")
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[head] = parsed
        return parsed


def _joined_chunks(data: bytes, start: int) -> bytes | None:
    """The body that begins at ``start`` if it has arrived as a whole, trailers and all."""
    pieces = []
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return None
        size = int(data[start:line_end].partition(b";")[0], 16)
        start = line_end + 2
        if not size:
            break
        if len(data) < start + size + 2:
            return None
        pieces.append(data[start : start + size])
        start += size + 2
    return b"".join(pieces) if data.endswith(b"\r\n\r\n") else None


def result_of(reply: Reply) -> dict[str, Any]:
    """The result that a reply carries, as JSON or as the last event of a stream. Raises `LoadError` for any other."""
    text = reply.body
    if not text.startswith(b"{"):
        events = [line for line in _DATA.findall(text) if line]
        text = events[-1] if events else b"{}"
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        answer = {}
    result = answer.get("result")
    if reply.status != 200 or not isinstance(result, dict) or result.get("isError"):
        raise LoadError(f"not a good answer: {reply.status} {reply.body[:300]!r}")
    return result


def _post(port: int, message: dict[str, Any], headers: dict[str, str]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    head = {
        "host": f"127.0.0.1:{port}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
    } | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _legacy_headers(session: str) -> dict[str, str]:
    return {"mcp-session-id": session, "mcp-protocol-version": LEGACY_VERSION}


def handshake(port: int) -> bytes:
    """The ``initialize`` that begins a legacy session."""
    params = {
        "protocolVersion": LEGACY_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    return _post(port, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, {})


def initialized(port: int, session: str) -> bytes:
    return _post(port, {"jsonrpc": "2.0", "method": "notifications/initialized"}, _legacy_headers(session))


def call(port: int, era: Era, session: str, id: int, tool: str, arguments: dict[str, Any]) -> bytes:
    """One ``tools/call``; the modern era has no session. Asks for progress, which tools of ours may report."""
    meta: dict[str, Any] = {"progressToken": id} if tool == "flood" else {}
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    headers = _legacy_headers(session)
    if era == "modern":
        meta |= META
        headers = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": tool}
    if meta:
        params["_meta"] = meta
    return _post(port, {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}, headers)


def sum_template(port: int, era: Era, session: str = "") -> bytes:
    """A call of ``add(a=ID, b=1)`` for ``template % (ID, ID)``; ids have seven digits, so its length stays true."""
    request = call(port, era, session, FIRST_ID, "add", {"a": FIRST_ID, "b": 1})
    pieces = request.replace(b"%", b"%%").split(str(FIRST_ID).encode())
    if len(pieces) != 3:
        raise LoadError("the request is not what it was meant to be")
    return b"%d".join(pieces)
