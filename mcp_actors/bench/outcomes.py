"""Answers of any server, sorted: a result, or one of the ways in which a call fails."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from mcp_actors.printable import printable

__all__ = ["Incoming", "Outcome", "incoming", "outcome"]

_LONGEST_TEXT = 300
_RAW = msgspec.Raw()
# Most results have neither: they need no second reading.
_SUSPECT = re.compile(rb'"isError"\s*:\s*true|"resultType"\s*:\s*"(?!complete")')


class Incoming(msgspec.Struct, gc=False):
    """The members of a message that say what it is."""

    id: Any = None
    method: str | None = None
    result: msgspec.Raw = _RAW
    error: msgspec.Raw = _RAW


class _ErrorObject(msgspec.Struct):
    code: int = 0
    message: str = ""


class _ToolResult(msgspec.Struct, rename="camel"):
    is_error: bool = False
    result_type: str = "complete"
    content: Any = None


class Outcome(NamedTuple):
    """``kind`` is empty for a result; ``text`` is what the server said."""

    kind: str = ""
    text: str = ""


_GOOD = Outcome()
_message = msgspec.json.Decoder(Incoming)
_error = msgspec.json.Decoder(_ErrorObject)
_result = msgspec.json.Decoder(_ToolResult)


def incoming(data: bytes) -> Incoming | None:
    """Returns what a message is; ``None`` if it is no JSON-RPC message."""
    try:
        return _message.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def outcome(answer: Incoming) -> Outcome:
    """Returns how a call has ended."""
    error, result = bytes(answer.error), bytes(answer.result)
    if error:
        try:
            found = _error.decode(error)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Outcome("malformed answer", _cut(error.decode(errors="replace")))
        return Outcome(f"rpc error {found.code}", _cut(found.message))
    if not result:
        return Outcome("malformed answer", "an answer without a result and without an error")
    if _SUSPECT.search(result) is None:
        return _GOOD
    try:
        body = _result.decode(result)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _GOOD  # a result of another method than tools/call may have such members
    if body.is_error:
        return Outcome("tool error", _cut(_first_text(body.content)))
    if body.result_type == "input_required":
        return Outcome("input required", "the server asks the client something before it answers")
    return _GOOD


def _first_text(content: Any) -> str:
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return str(block["text"])
    return ""


def _cut(text: str) -> str:
    return printable(" ".join(text.split()), _LONGEST_TEXT)
