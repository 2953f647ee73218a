"""A thread that writes entries, so that no call waits for a disk or a network."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["EXIT_TIMEOUT", "MAX_WAITING", "MAX_WAITING_BYTES", "EntryThread", "weight_of"]

# Entries that wait to be written, and the bytes of what is shown of their arguments; beyond either of them new ones are
# lost, and that is told. With masked arguments they take some 10 MiB.
MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
# Seconds in which the process writes what waits before it ends.
EXIT_TIMEOUT = 5.0


class EntryThread:
    """Calls ``write`` with one entry after the other, in a thread that begins with the first one.

    Args:
        write: Writes an entry; it may block.
        lose: Is called with each error of ``write``, in the thread.
    """

    def __init__(self, write: Callable[[Any], object], lose: Callable[[Exception], None]) -> None:
        self._write = write
        self._lose = lose
        self._begin()
        atexit.register(self.flush, EXIT_TIMEOUT)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, entry: Any, weight: int) -> bool:
        """Takes an entry; returns whether there was room for it.

        Args:
            entry: What is written.
            weight: Its bytes. One that is heavier than all may be is taken where nothing waits: a client chooses the
                size of its arguments, and must not keep its call out of a log by it.
        """
        if self._process != os.getpid():
            # A fork has a copy of what waits, which its parent writes, and no thread.
            self._begin()
        with self._changed:
            if len(self._waiting) >= MAX_WAITING or (
                self._waiting and self._bytes + weight > MAX_WAITING_BYTES
            ):
                return False
            self._waiting.append((entry, weight))
            self._bytes += weight
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mcp-actors audit", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def flush(self, seconds: float) -> bool:
        """Waits until everything is written, for at most ``seconds``; returns whether it is."""
        if self._process != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                entry, weight = self._waiting.popleft()
                self._bytes -= weight
                self._writing = True
            try:
                self._write(entry)
            except Exception as error:
                self._lose(error)
            # What a client sent is not kept until the next entry comes.
            del entry
            with self._changed:
                self._writing = False
                self._changed.notify_all()


def weight_of(value: Any) -> int:
    """Returns the bytes that a value and what is in it take, and no more than `MAX_WAITING_BYTES`."""
    weight, left = 0, [value]
    while left and weight < MAX_WAITING_BYTES:
        each = left.pop()
        weight += sys.getsizeof(each)
        if isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            left += each
    return min(weight, MAX_WAITING_BYTES)
