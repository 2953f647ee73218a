"""Steps that wait for a connection are run together: one thread at a time, one transaction, one write to the disk."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import attrs
import outcome
import trio

from mcp_actors.errors import SharedStateUnavailable

__all__ = ["BatchedConnection", "FileStep"]

# Steps of one transaction: other processes wait for its end.
MAX_BATCH = 256
# Steps that wait, and their bytes; more are refused.
MAX_WAITING = 8192
MAX_WAITING_BYTES = 64 * 1024 * 1024

Result = TypeVar("Result", covariant=True)


class FileStep(Protocol[Result]):
    """A function of a connection, which runs in a thread and inside a transaction."""

    def __call__(self, connection: sqlite3.Connection, /) -> Result: ...


@attrs.define(eq=False)
class _WaitingStep:
    step: FileStep[Any]
    weight: int
    done: trio.Event = attrs.field(factory=trio.Event)
    result: outcome.Outcome[Any] | None = None
    given_up: bool = False


class BatchedConnection:
    """A connection that one thread at a time uses, for all the steps that wait for it.

    Args:
        connection: It is used by this object alone, until `finish` returns.
        begin: The statement that begins a transaction: ``BEGIN IMMEDIATE`` for steps that write.
        timeout: Seconds that a step may take, waiting included.
    """

    def __init__(self, connection: sqlite3.Connection, begin: str, timeout: float) -> None:
        self._connection = connection
        self._begin = begin
        self._timeout = timeout
        # A thread that is stuck in the file system keeps its token, so that there is never a second one.
        self._limiter = trio.CapacityLimiter(1)
        self._waiting: deque[_WaitingStep] = deque()
        self._weight = 0
        self._arrived = trio.Event()

    def __repr__(self) -> str:
        return f"<BatchedConnection {len(self._waiting)} waiting>"

    async def run(self, step: FileStep[Result], weight: int = 0) -> Result:
        """Runs a step and returns its result when its transaction is committed.

        If it is cancelled, the step is run or not run.

        Args:
            step: The function.
            weight: Bytes that it holds while it waits.

        Raises:
            SharedStateUnavailable: The file cannot be read or written, is locked, or it took too long; the step
                may have been run.
        """
        if len(self._waiting) >= MAX_WAITING or self._weight + weight > max(MAX_WAITING_BYTES, weight):
            await trio.lowlevel.checkpoint()
            raise SharedStateUnavailable("tasks", f"{len(self._waiting)} steps wait for the file")
        waiting = _WaitingStep(step, weight)
        self._waiting.append(waiting)
        self._weight += weight
        self._arrived.set()
        try:
            with trio.move_on_after(self._timeout):
                await waiting.done.wait()
        finally:
            waiting.given_up = True
        if waiting.result is None:
            raise SharedStateUnavailable("tasks", f"the file did not answer for {self._timeout:g} s")
        result: Result = waiting.result.unwrap()
        return result

    async def work(self) -> None:
        """Runs what waits, until it is cancelled."""
        while True:
            batch = self._take()
            if not batch:
                self._arrived = trio.Event()
                await self._arrived.wait()
                continue
            try:
                results = await trio.to_thread.run_sync(
                    self._transact,
                    [each.step for each in batch],
                    limiter=self._limiter,
                    abandon_on_cancel=True,
                )
            except (sqlite3.Error, OSError) as error:
                for each in batch:
                    each.result = outcome.Error(_unavailable(error))
            else:
                for each, result in zip(batch, results, strict=True):
                    each.result = result
            finally:
                for each in batch:
                    each.done.set()

    def _take(self) -> list[_WaitingStep]:
        batch: list[_WaitingStep] = []
        while self._waiting and len(batch) < MAX_BATCH:
            waiting = self._waiting.popleft()
            self._weight -= waiting.weight
            if not waiting.given_up:
                batch.append(waiting)
        return batch

    def _transact(self, steps: Sequence[FileStep[Any]]) -> list[outcome.Outcome[Any]]:
        """Runs steps in a transaction, in a thread. A step that refuses its arguments has changed nothing."""
        self._connection.execute(self._begin)
        try:
            results = [_outcome_of(step, self._connection) for step in steps]
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return results

    async def finish(self, last: FileStep[object] | None = None) -> None:
        """Runs a last step and closes the connection, when nothing else uses it. It is bounded, and not cancelled.

        Raises:
            SharedStateUnavailable: The last step failed.
        """

        def close() -> None:
            try:
                if last is not None:
                    self._transact([last])
            finally:
                self._connection.close()

        try:
            with trio.move_on_after(self._timeout, shield=True):
                await trio.to_thread.run_sync(close, limiter=self._limiter, abandon_on_cancel=True)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error


def _outcome_of(step: FileStep[Any], connection: sqlite3.Connection) -> outcome.Outcome[Any]:
    try:
        return outcome.Value(step(connection))
    except (sqlite3.IntegrityError, ValueError, OverflowError) as error:
        return outcome.Error(error)


def _unavailable(error: Exception) -> SharedStateUnavailable:
    unavailable = SharedStateUnavailable("tasks", str(error))
    unavailable.__cause__ = error
    return unavailable
