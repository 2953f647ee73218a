"""A thread that writes entries, so that no call waits for a disk or a network."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["EXIT_TIMEOUT", "MAX_WAITING", "EntryThread"]

# Entries that wait to be written; beyond it they are lost, and that is told. They take some 10 MiB.
MAX_WAITING = 10_000
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
        self._waiting: deque[Any] = deque()
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, entry: Any) -> bool:
        """Takes an entry; returns whether there was room for it."""
        if self._process != os.getpid():
            # A fork has a copy of what waits, which its parent writes, and no thread.
            self._begin()
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting.append(entry)
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
                entry = self._waiting.popleft()
                self._writing = True
            try:
                self._write(entry)
            except Exception as error:
                self._lose(error)
            with self._changed:
                self._writing = False
                self._changed.notify_all()
