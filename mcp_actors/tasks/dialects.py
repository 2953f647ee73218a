"""The forms in which the two dialects show a task: the core of MCP 2025-11-25, and the extension (SEP-2663).

A task belongs to the revision that created it, whose forms its questions and its outcome have.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from mcp_actors.abc import TaskRecord
from mcp_actors.errors import INTERNAL_ERROR, RpcError
from mcp_actors.tasks.states import questions_of

__all__ = [
    "IMMEDIATE_RESPONSE",
    "RELATED_TASK",
    "core_created",
    "core_result",
    "core_task",
    "detailed_task",
    "extension_created",
    "is_error",
    "outcome_of",
    "outcome_of_error",
]

RELATED_TASK = "io.modelcontextprotocol/related-task"
IMMEDIATE_RESPONSE = "io.modelcontextprotocol/model-immediate-response"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


# -- outcomes ---


def outcome_of(answer: Mapping[str, Any]) -> bytes:
    """Returns the outcome of a function: what a plain call would have been answered with, as JSON."""
    return _encode(answer)


def outcome_of_error(error: RpcError) -> bytes:
    """Returns the outcome of a task that the engine has failed."""
    return _encode({"error": {"code": error.code, "message": error.message}})


def is_error(result: Any) -> bool:
    """Whether a result of a tool says that the tool has failed."""
    return isinstance(result, dict) and result.get("isError") is True


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


# -- MCP 2025-11-25 ---


def core_task(record: TaskRecord) -> dict[str, Any]:
    """Returns a task in the form of MCP 2025-11-25."""
    shown: dict[str, Any] = {
        "taskId": record.id,
        "status": record.state,
        "createdAt": _time(record.created),
        "lastUpdatedAt": _time(record.updated),
        "ttl": None if record.ttl is None else _milliseconds(record.ttl),
        "pollInterval": _milliseconds(record.poll_interval),
    }
    if record.message is not None:
        shown["statusMessage"] = record.message
    return shown


def core_created(record: TaskRecord, immediate: str | None = None) -> dict[str, Any]:
    """Returns the answer to the request that created a task, with a text for the model meanwhile, if there is one."""
    created: dict[str, Any] = {"task": core_task(record)}
    if immediate is not None:
        created["_meta"] = {IMMEDIATE_RESPONSE: immediate}
    return created


def core_result(record: TaskRecord) -> dict[str, Any]:
    """Returns what the plain call would have returned, with the task that it belongs to in its ``_meta``.

    Raises:
        RpcError: What the plain call would have raised; or the task was cancelled.
    """
    related = {RELATED_TASK: {"taskId": record.id}}
    if record.outcome is None:
        raise RpcError(INTERNAL_ERROR, record.message or "the task was cancelled", {"_meta": related})
    outcome = _decode(record.outcome)
    if "error" in outcome:
        raise RpcError.from_wire(**outcome["error"])
    result: dict[str, Any] = outcome["result"]
    result["_meta"] = {**(result.get("_meta") or {}), **related}
    return result


# -- the extension ---


def _extension_task(record: TaskRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "taskId": record.id,
        "status": record.state,
        "createdAt": _time(record.created),
        "lastUpdatedAt": _time(record.updated),
        "ttlMs": None if record.ttl is None else _milliseconds(record.ttl),
        "pollIntervalMs": _milliseconds(record.poll_interval),
    }
    if record.message is not None:
        shown["statusMessage"] = record.message
    return shown


def extension_created(record: TaskRecord) -> dict[str, Any]:
    """Returns the answer to the request that created a task: neither questions nor an outcome."""
    return {"resultType": "task", **_extension_task(record)}


def detailed_task(record: TaskRecord) -> dict[str, Any]:
    """Returns a task with what its state brings: its questions, its result or its error, and never two of them."""
    shown = _extension_task(record)
    if record.state == "input_required":
        shown["inputRequests"] = questions_of(record)
    elif record.outcome is not None:
        shown |= _decode(record.outcome)
    return shown
