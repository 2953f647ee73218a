"""Waits for the end of a task on the stream of ``tasks/result``, and asks the client there (MCP 2025-11-25, Tasks)."""

from __future__ import annotations

from typing import Any

import trio

from mcp_actors.abc import TaskRecord
from mcp_actors.context import Context
from mcp_actors.errors import CallTimeout, RpcError
from mcp_actors.extensions import ask_client
from mcp_actors.tasks.changes import Changes
from mcp_actors.tasks.dialects import RELATED_TASK
from mcp_actors.tasks.states import answered, questions_of

__all__ = ["ResultStreams"]


class ResultStreams:
    """The calls of ``tasks/result`` that wait at this node.

    Args:
        changes: Keeps the answers.
        seconds: Seconds for which a client may take to answer one question before it is asked again.
    """

    def __init__(self, changes: Changes, seconds: float) -> None:
        self._changes = changes
        self._seconds = seconds
        # Several calls may wait for one task: each question is asked on the stream of one of them.
        self._being_asked: set[tuple[str, str]] = set()

    async def end_of(self, id: str, ctx: Context) -> TaskRecord | None:
        """Returns a task's last value, ``None`` once the task is gone; asks the client of this call meanwhile.

        Raises:
            SharedStateUnavailable: The task cannot be looked at, or an answer cannot be kept.
            ConnectionLost, SessionExpired: The client has gone.
        """
        while True:
            record = await self._changes.watch.until(
                id, lambda record: record.is_terminal or self._open(record) is not None, self._changes.clock
            )
            if record is None or record.is_terminal:
                return record
            key = self._open(record)
            if key is not None:
                await self._ask(record, key, ctx)

    def _open(self, record: TaskRecord) -> str | None:
        """The key of a question that nobody asks at this node."""
        if record.state == "input_required":
            for key in questions_of(record):
                if (record.id, key) not in self._being_asked:
                    return key
        return None

    async def _ask(self, record: TaskRecord, key: str, ctx: Context) -> None:
        place = (record.id, key)
        answer: dict[str, Any] | None = None

        def take(newest: TaskRecord | None) -> None:
            if newest is None or newest.is_terminal or key not in questions_of(newest):
                # It was answered elsewhere, or nobody waits for the answer any more.
                scope.cancel(reason="the question was withdrawn")

        question = questions_of(record)[key]
        meta = {**question["params"].get("_meta", {}), RELATED_TASK: {"taskId": record.id}}
        self._being_asked.add(place)
        try:
            with self._changes.watch.interest(record.id, take), trio.CancelScope() as scope:
                try:
                    params = {**question["params"], "_meta": meta}
                    result = await ask_client(ctx, question["method"], params, seconds=self._seconds)
                    answer = {"result": result}
                except CallTimeout:
                    # A person may be away: the task waits, and the client is asked again.
                    pass
                except RpcError as error:
                    answer = {"error": {"code": error.code, "message": error.message, "data": error.data}}
            if answer is not None:
                given = {key: answer}
                await self._changes.apply(record, lambda newest, now: answered(newest, given, now))
        finally:
            self._being_asked.discard(place)
            # Another call may ask what this one could not.
            self._changes.watch.changed_elsewhere(record.id)
