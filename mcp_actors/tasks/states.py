"""The state machine of a task: pure functions that make a record's next value.

Both dialects have the same machine (MCP 2025-11-25, Tasks, Task Status Lifecycle; SEP-2663)::

    working         -> working | input_required | completed | failed | cancelled
    input_required  -> working | input_required | completed | failed | cancelled

Each function returns the next value, or ``None`` if the event means nothing in the state that the task is in: a
terminal state never changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from mcp_actors.abc import TaskRecord, TaskState
from mcp_actors.supervision.printable import encodable

__all__ = [
    "NEXT_STATES",
    "answered",
    "answers_of",
    "asked",
    "cancelled",
    "completed",
    "described",
    "failed",
    "messages_of",
    "questions_of",
    "restarted",
    "seconds_left",
    "sent",
    "taken",
    "took_messages",
    "withdrawn",
]

_LIVE: frozenset[TaskState] = frozenset({"working", "input_required", "completed", "failed", "cancelled"})
_ENDED: frozenset[TaskState] = frozenset()

NEXT_STATES: Mapping[TaskState, frozenset[TaskState]] = MappingProxyType(
    {
        "working": _LIVE,
        "input_required": _LIVE,
        "completed": _ENDED,
        "failed": _ENDED,
        "cancelled": _ENDED,
    }
)
"""The states that may follow each state."""

# Characters of a status message that are kept: it is a sentence for people, and is sent with every look at the task.
LONGEST_MESSAGE = 1000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_list = msgspec.json.Decoder(list[Any]).decode
_NOTHING_WAITS: Mapping[str, bytes] = MappingProxyType(
    {"questions": b"{}", "answers": b"{}", "messages": b"[]"}
)


def questions_of(record: TaskRecord) -> dict[str, Any]:
    """Returns the questions that are not answered yet, by key."""
    return _decode(record.questions)


def answers_of(record: TaskRecord) -> dict[str, Any]:
    """Returns the answers that the function has not taken yet, by key."""
    return _decode(record.answers)


def messages_of(record: TaskRecord) -> list[Any]:
    """Returns the messages that the function has not taken yet."""
    return _decode_list(record.messages)


def seconds_left(record: TaskRecord, now: float) -> float:
    """Returns the seconds until a task's time is up, which are never more than it was given: a clock may be set back.

    Args:
        record: The task.
        now: Seconds since the epoch.
    """
    return math.inf if record.ttl is None else max(min(record.created + record.ttl - now, record.ttl), 0.0)


def _next(record: TaskRecord, state: TaskState, now: float, **changes: Any) -> TaskRecord | None:
    if state not in NEXT_STATES[record.state]:
        return None
    if changes.get("message") is not None:
        changes["message"] = _readable(changes["message"])
    # The wall clock may be set back; what clients see of a task never goes back.
    updated = max(now, record.updated)
    return msgspec.structs.replace(
        record, state=state, updated=updated, revision=record.revision + 1, **changes
    )


def _readable(message: str) -> str:
    """A sentence that JSON can hold, which it cannot with lone surrogates, and that is not too long."""
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 1]}…"
    return encodable(message)


def described(record: TaskRecord, message: str | None, now: float) -> TaskRecord | None:
    """The function has reported its status."""
    readable = None if message is None else _readable(message)
    return None if readable == record.message else _next(record, record.state, now, message=readable)


def asked(record: TaskRecord, questions: Mapping[str, Any], now: float) -> TaskRecord | None:
    """The function asks the client, perhaps beside other questions of its own; keys that are new."""
    together = {**questions_of(record), **questions}
    return _next(record, "input_required", now, questions=_encode(together)) if questions else None


def answered(record: TaskRecord, answers: Mapping[str, Any], now: float) -> TaskRecord | None:
    """The client has answered some of the questions. Answers to others, or to none, mean nothing."""
    questions = questions_of(record)
    fitting = {key: answer for key, answer in answers.items() if key in questions}
    if not fitting:
        return None
    left = {key: question for key, question in questions.items() if key not in fitting}
    kept = {**answers_of(record), **fitting}
    state: TaskState = "input_required" if left else "working"
    return _next(record, state, now, questions=_encode(left), answers=_encode(kept))


def taken(record: TaskRecord, keys: Iterable[str], now: float) -> TaskRecord | None:
    """The function has taken answers, or wants none any more: these keys are neither asked nor answered."""
    gone = set(keys)
    questions, answers = questions_of(record), answers_of(record)
    left = {key: question for key, question in questions.items() if key not in gone}
    kept = {key: answer for key, answer in answers.items() if key not in gone}
    if len(left) == len(questions) and len(kept) == len(answers):
        return None
    state: TaskState = "input_required" if left else "working"
    return _next(record, state, now, questions=_encode(left), answers=_encode(kept))


def withdrawn(record: TaskRecord, keys: Iterable[str], now: float) -> TaskRecord | None:
    """The function wants no answers any more. Always a change, so that a question which was cut off cannot come later.

    Each change is kept only on top of the one that it was made of.
    """
    return taken(record, keys, now) or _next(record, record.state, now)


def sent(record: TaskRecord, message: Any, now: float) -> TaskRecord | None:
    """The client has sent a message to the function."""
    return _next(record, record.state, now, messages=_encode([*messages_of(record), message]))


def took_messages(record: TaskRecord, count: int, now: float) -> TaskRecord | None:
    """The function has taken so many messages in all."""
    gone = count - record.messages_taken
    if gone <= 0:
        return None
    left = _encode(messages_of(record)[gone:])
    return _next(record, record.state, now, messages=left, messages_taken=count)


def completed(record: TaskRecord, outcome: bytes, now: float) -> TaskRecord | None:
    """The function has returned ``outcome``, which is ``{"result": …}``."""
    return _next(record, "completed", now, outcome=outcome, **_NOTHING_WAITS)


def failed(record: TaskRecord, outcome: bytes, message: str | None, now: float) -> TaskRecord | None:
    """The function has failed with ``outcome``: ``{"error": …}``, or a result that its dialect calls a failure."""
    return _next(record, "failed", now, outcome=outcome, message=message, **_NOTHING_WAITS)


def cancelled(record: TaskRecord, message: str | None, now: float) -> TaskRecord | None:
    """The client does not want the task any more."""
    return _next(record, "cancelled", now, message=message, **_NOTHING_WAITS)


def restarted(record: TaskRecord, node: str, now: float) -> TaskRecord | None:
    """Another node runs the function again from its start, as its own is gone."""
    if not record.restartable or record.node == node:
        return None
    changes = {"node": node, "runs": record.runs + 1, "message": None}
    return _next(record, "working", now, questions=b"{}", answers=b"{}", **changes)
